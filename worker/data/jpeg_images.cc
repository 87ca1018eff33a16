#include "worker/data/jpeg_images.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/base/random.h"
#include "worker/data/crop.h"
#include "worker/data/jpeg.h"

namespace syncgrads {
namespace {

// Separates the crops from other uses of the job's seed.
constexpr uint64_t kCropStream = 5;
constexpr size_t kMaxFileBytes = size_t{1} << 30;

}  // namespace

absl::Status JpegImages::Read(size_t image, const ImageUse& use, absl::Span<float> pixels) const {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string bytes, storage_->Read(files_[image], kMaxFileBytes));
  RandomStream random(use.seed, {kCropStream, use.step, image});
  const auto crop_of = [&](int width, int height) {
    ScaledCrop crop = {crops_.smallest_side, crops_.size};
    if (!use.training) return crop(width, height);
    switch (crops_.training) {
      case v1::ImageNetSource::RANDOM_RESIZED:
        return DrawResizedCrop(width, height, crops_.size, crops_.min_area, random);
      case v1::ImageNetSource::RANDOM_POSITION:
        crop.left = random.NextUniform();
        crop.top = random.NextUniform();
        break;
      default:
        break;
    }
    return crop(width, height);
  };
  const absl::Status decoded = DecodeJpeg(bytes, crops_.size, crop_of, pixels);
  if (decoded.ok()) return decoded;
  return absl::Status(decoded.code(), absl::StrCat(NameOf(image), ": ", decoded.message()));
}

}  // namespace syncgrads
