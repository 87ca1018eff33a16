// A part of one JPEG image, decoded.

#ifndef SYNCGRADS_WORKER_DATA_JPEG_DECODER_H_
#define SYNCGRADS_WORKER_DATA_JPEG_DECODER_H_

// jpeglib.h needs both before it.
#include <cstddef>
#include <cstdio>
// clang-format off
#include <jpeglib.h>
// clang-format on

#include <csetjmp>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace syncgrads {

// Lines of pixels, each 3 bytes: red, green, blue.
struct PixelRegion {
  // Where it lies in the image.
  int left = 0;
  int top = 0;
  int width = 0;
  int height = 0;
  std::vector<unsigned char> bytes;

  const unsigned char* Line(int line) const {
    return bytes.data() + static_cast<size_t>(line - top) * width * 3;
  }
};

// Not thread-safe.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Finds the size of the image in `bytes`, which stay the caller's. Errors: DataLoss,
  // in libjpeg's words.
  absl::Status ReadHeader(absl::string_view bytes);
  int width() const { return static_cast<int>(image_.image_width); }
  int height() const { return static_cast<int>(image_.image_height); }

  // Of the image at 1/`denominator` (1, 2, 4 or 8) of its size, which is rounded up:
  // at least the lines and columns of `region`, which is widened to what was decoded.
  // What follows them is not looked at. Once for each header.
  //
  // Errors: DataLoss, in libjpeg's words: it is damaged, or cut short
  absl::Status ReadRegion(int denominator, PixelRegion& region);

 private:
  // What libjpeg calls with an error, which must not return.
  [[noreturn]] static void OnError(j_common_ptr image);
  static void OnMessage(j_common_ptr image, int level);
  static JpegDecoder& Of(j_common_ptr image);
  // They come back early, and return false, after an error; so nothing in them has a
  // destructor.
  bool TryHeader(absl::string_view bytes);
  bool TryStart(int denominator, PixelRegion& region);
  bool TryLines(PixelRegion& region);

  jpeg_decompress_struct image_ = {};
  jpeg_error_mgr errors_ = {};
  std::jmp_buf jump_;
  char message_[JMSG_LENGTH_MAX] = "";
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_JPEG_DECODER_H_
