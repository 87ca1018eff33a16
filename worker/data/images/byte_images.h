// Images in memory, with one byte for each number.

#ifndef SYNCGRADS_WORKER_DATA_IMAGES_BYTE_IMAGES_H_
#define SYNCGRADS_WORKER_DATA_IMAGES_BYTE_IMAGES_H_

#include <string>
#include <utility>

#include "worker/data/images/image_source.h"

namespace syncgrads {

// The images of records of equal length. An image is stored channel by channel, line by line.
// Owns the records. Immutable, so thread-safe.
class ByteImages : public ByteImageSource {
 public:
  // A record has `stride` bytes; its image begins at byte `offset`. `path` is for errors.
  ByteImages(const Shape& shape, std::string records, size_t stride, size_t offset,
             std::string path)
      : shape_(shape),
        records_(std::move(records)),
        stride_(stride),
        offset_(offset),
        path_(std::move(path)) {}

  const Shape& shape() const override { return shape_; }
  std::string NameOf(size_t image) const override;
  absl::Status ReadBytes(size_t image, const ImageUse& use,
                         absl::Span<unsigned char> pixels) const override;
  bool is_slow() const override { return false; }

 private:
  const Shape shape_;
  const std::string records_;
  const size_t stride_;
  const size_t offset_;
  const std::string path_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_IMAGES_BYTE_IMAGES_H_
