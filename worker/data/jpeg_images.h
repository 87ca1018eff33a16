// Images in JPEG files.

#ifndef SYNCGRADS_WORKER_DATA_JPEG_IMAGES_H_
#define SYNCGRADS_WORKER_DATA_JPEG_IMAGES_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/job.pb.h"
#include "worker/data/image_source.h"
#include "worker/storage/storage.h"

namespace syncgrads {

// How JPEG images become squares of one size. All numbers are given: 0 is not a default.
struct JpegCrops {
  // See ScaledCrop.
  int64_t smallest_side = 0;
  int64_t size = 0;
  v1::ImageNetSource::TrainingCrop training = v1::ImageNetSource::RANDOM_POSITION;
  // See DrawResizedCrop.
  double min_area = 0;
};

// Reads JPEG files of any size as squares of one size: scaled and cropped, at the centre except in
// training. Immutable, so thread-safe.
class JpegImages : public ImageSource {
 public:
  JpegImages(std::shared_ptr<const Storage> storage, std::vector<std::string> files,
             const JpegCrops& crops)
      : storage_(std::move(storage)),
        files_(std::move(files)),
        crops_(crops),
        shape_(Shape::Image(3, crops.size, crops.size)) {}

  const Shape& shape() const override { return shape_; }
  std::string NameOf(size_t image) const override { return storage_->NameOf(files_[image]); }
  absl::Status Read(size_t image, const ImageUse& use, absl::Span<float> pixels) const override;
  bool is_slow() const override { return true; }

 private:
  const std::shared_ptr<const Storage> storage_;
  const std::vector<std::string> files_;
  const JpegCrops crops_;
  const Shape shape_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_JPEG_IMAGES_H_
