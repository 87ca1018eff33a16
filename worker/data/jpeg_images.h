// Images in JPEG files.

#ifndef SYNCGRADS_WORKER_DATA_JPEG_IMAGES_H_
#define SYNCGRADS_WORKER_DATA_JPEG_IMAGES_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/data/image_source.h"
#include "worker/storage/storage.h"

namespace syncgrads {

// Reads JPEG files of any size as squares of one size: scaled and cropped. For training, the
// crop is at a random position and mirrored half of the time; otherwise it is the centre.
// Immutable, so thread-safe.
class JpegImages : public ImageSource {
 public:
  // `size` is at most `smallest_side`; see JpegCrop.
  JpegImages(std::shared_ptr<const Storage> storage, std::vector<std::string> files,
             int64_t smallest_side, int64_t size)
      : storage_(std::move(storage)),
        files_(std::move(files)),
        smallest_side_(smallest_side),
        shape_(Shape::Image(3, size, size)) {}

  const Shape& shape() const override { return shape_; }
  std::string NameOf(size_t image) const override { return storage_->NameOf(files_[image]); }
  absl::Status Read(size_t image, const ImageUse& use, absl::Span<float> pixels) const override;
  bool is_slow() const override { return true; }

 private:
  const std::shared_ptr<const Storage> storage_;
  const std::vector<std::string> files_;
  const int64_t smallest_side_;
  const Shape shape_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_JPEG_IMAGES_H_
