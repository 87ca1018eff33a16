// Decodes a part of one JPEG image.

#ifndef SYNCGRADS_WORKER_DATA_IMAGES_JPEG_DECODER_H_
#define SYNCGRADS_WORKER_DATA_IMAGES_JPEG_DECODER_H_

// jpeglib.h needs both headers before it.
#include <cstddef>
#include <cstdint>
#include <cstdio>
// clang-format off
#include <jpeglib.h>
// clang-format on

#include <csetjmp>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace syncgrads {

// Lines of pixels with 3 bytes each: red, green, blue.
struct PixelRegion {
  // The position in the image.
  int left = 0;
  int top = 0;
  int width = 0;
  int height = 0;
  std::vector<unsigned char> bytes;

  const unsigned char* Line(int line) const {
    return bytes.data() + static_cast<size_t>(line - top) * width * 3;
  }
};

// libjpeg, with statuses instead of its error callbacks. Decodes one image after the other. Not
// thread-safe.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Reads the size of the image in `bytes`, which are not copied and must outlive ReadRegion.
  // Errors: DataLoss, with libjpeg's message.
  absl::Status ReadHeader(absl::string_view bytes);
  int width() const { return static_cast<int>(image_.image_width); }
  int height() const { return static_cast<int>(image_.image_height); }
  // The bytes of the whole image's coefficients. libjpeg holds them while it decodes an image with
  // several scans (progressive); 0 for other images.
  int64_t CoefficientBytes();

  // Decodes `region` of the image at 1/`denominator` (1, 2, 4 or 8) of its size, which is
  // rounded up. Widens `region` to what was decoded. Data after the region is not read. May be
  // called once after each ReadHeader.
  //
  // Errors: DataLoss, with libjpeg's message, if the image is damaged or cut short.
  absl::Status ReadRegion(int denominator, PixelRegion& region);

 private:
  // The callback of libjpeg for errors. It must not return.
  [[noreturn]] static void OnError(j_common_ptr image);
  static void OnMessage(j_common_ptr image, int level);
  static JpegDecoder& Of(j_common_ptr image);
  // These functions call libjpeg. After an error they are left by longjmp and return false, so
  // they must not have local objects with destructors.
  bool TryHeader(absl::string_view bytes);
  bool TryStart(int denominator, PixelRegion& region);
  bool TryLines(PixelRegion& region);

  jpeg_decompress_struct image_ = {};
  jpeg_error_mgr errors_ = {};
  std::jmp_buf jump_;
  char message_[JMSG_LENGTH_MAX] = "";
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_IMAGES_JPEG_DECODER_H_
