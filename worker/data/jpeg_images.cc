#include "worker/data/jpeg_images.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/base/random.h"
#include "worker/data/jpeg.h"

namespace syncgrads {
namespace {

// Separates the crops from other uses of the job's seed.
constexpr uint64_t kCropStream = 5;
constexpr size_t kMaxFileBytes = size_t{1} << 30;

}  // namespace

absl::Status JpegImages::Read(size_t image, const ImageUse& use, absl::Span<float> pixels) const {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string bytes, storage_->Read(files_[image], kMaxFileBytes));
  JpegCrop crop;
  crop.smallest_side = smallest_side_;
  crop.size = shape_.width;
  if (use.training) {
    RandomStream random(use.seed, {kCropStream, use.step, image});
    crop.left = random.NextUniform();
    crop.top = random.NextUniform();
    crop.mirrored = random.NextUniform() < 0.5;
  }
  const absl::Status decoded = DecodeJpeg(bytes, crop, pixels);
  if (decoded.ok()) return decoded;
  return absl::Status(decoded.code(), absl::StrCat(NameOf(image), ": ", decoded.message()));
}

}  // namespace syncgrads
