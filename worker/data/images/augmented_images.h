// Images that are changed at random in training.

#ifndef SYNCGRADS_WORKER_DATA_IMAGES_AUGMENTED_IMAGES_H_
#define SYNCGRADS_WORKER_DATA_IMAGES_AUGMENTED_IMAGES_H_

#include <memory>
#include <string>
#include <utility>

#include "proto/job.pb.h"
#include "worker/data/images/image_source.h"

namespace syncgrads {

// The images of another source. In training, they are shifted, mirrored, and their colours are
// changed, in this order; see v1::Augmentation. If they are of 8 bits, changed colours are rounded
// to the nearest byte. Immutable, so thread-safe.
class AugmentedImages : public ImageSource {
 public:
  // `augmentation` changes saturation only if the images have 3 channels.
  AugmentedImages(std::shared_ptr<const ImageSource> images, const v1::Augmentation& augmentation)
      : images_(std::move(images)), augmentation_(augmentation) {}

  const Shape& shape() const override { return images_->shape(); }
  std::string NameOf(size_t image) const override { return images_->NameOf(image); }
  absl::Status Read(size_t image, const ImageUse& use, absl::Span<float> pixels) const override;
  bool has_bytes() const override { return images_->has_bytes(); }
  absl::Status ReadBytes(size_t image, const ImageUse& use,
                         absl::Span<unsigned char> pixels) const override;
  bool is_slow() const override { return images_->is_slow(); }

 private:
  const std::shared_ptr<const ImageSource> images_;
  const v1::Augmentation augmentation_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_IMAGES_AUGMENTED_IMAGES_H_
