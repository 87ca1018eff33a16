// Images that are read on demand.

#ifndef SYNCGRADS_WORKER_DATA_IMAGES_IMAGE_SOURCE_H_
#define SYNCGRADS_WORKER_DATA_IMAGES_IMAGE_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/nn/shape.h"

namespace syncgrads {

// The purpose for which an image is read. Random changes to it are a function of the seed, the
// step and the image.
struct ImageUse {
  bool training = false;
  uint64_t seed = 0;
  uint64_t step = 0;
};

// A list of images of one shape, numbered from 0. Thread-safe.
class ImageSource {
 public:
  virtual ~ImageSource() = default;

  virtual const Shape& shape() const = 0;
  // The image's name in errors: its file and its place in the file.
  virtual std::string NameOf(size_t image) const = 0;
  // Reads an image. Sets `pixels`, laid out as shape() describes, to numbers from 0 to 1.
  //
  // Errors:
  //   DataLoss  the image is damaged; names it
  //   others    those of Storage::Read
  virtual absl::Status Read(size_t image, const ImageUse& use, absl::Span<float> pixels) const = 0;
  // Whether the images are of 8 bits, and ReadBytes can be called.
  virtual bool has_bytes() const { return false; }
  // As Read, with bytes from 0 to 255 in place of numbers from 0 to 1.
  virtual absl::Status ReadBytes(size_t image, const ImageUse& use,
                                 absl::Span<unsigned char> pixels) const;
  // Whether reading takes so long that images should be read ahead.
  virtual bool is_slow() const = 0;

 protected:
  // Read, by ReadBytes.
  absl::Status ReadFromBytes(size_t image, const ImageUse& use, absl::Span<float> pixels) const;
};

// The number from 0 to 1 that a byte stands for.
inline float FromByte(unsigned char byte) { return static_cast<float>(byte) / 255.0f; }

// Images of 8 bits. Thread-safe.
class ByteImageSource : public ImageSource {
 public:
  bool has_bytes() const final { return true; }
  absl::Status Read(size_t image, const ImageUse& use, absl::Span<float> pixels) const final {
    return ReadFromBytes(image, use, pixels);
  }
  absl::Status ReadBytes(size_t image, const ImageUse& use,
                         absl::Span<unsigned char> pixels) const override = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_IMAGES_IMAGE_SOURCE_H_
