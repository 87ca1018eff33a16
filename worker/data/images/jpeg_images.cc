#include "worker/data/images/jpeg_images.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/base/random.h"
#include "worker/data/images/crop.h"
#include "worker/data/images/jpeg.h"

namespace syncgrads {
namespace {

// Separates the crops from other uses of the job's seed.
constexpr uint64_t kCropStream = 5;
constexpr size_t kMaxFileBytes = size_t{1} << 30;

}  // namespace

std::string JpegImages::NameOf(size_t image) const {
  if (places_.empty()) return storage_->NameOf(files_[image]);
  const ImagePlace& place = places_[image];
  return absl::StrCat(storage_->NameOf(files_[place.file]), ": ", place.name);
}

absl::StatusOr<std::string> JpegImages::ReadFile(size_t image) const {
  if (places_.empty()) return storage_->Read(files_[image], kMaxFileBytes);
  const ImagePlace& place = places_[image];
  if (place.size > kMaxFileBytes) {
    return absl::DataLossError(absl::StrCat(NameOf(image), " has ", place.size,
                                            " bytes, but at most ", kMaxFileBytes, " are read"));
  }
  SYNCGRADS_ASSIGN_OR_RETURN(
      std::string bytes,
      storage_->ReadRange(files_[place.file], place.offset, static_cast<size_t>(place.size)));
  if (bytes.size() < place.size) {
    return absl::DataLossError(absl::StrCat(
        NameOf(image), ": the archive is cut short: ", bytes.size(), " of ", place.size, " bytes"));
  }
  return bytes;
}

absl::Status JpegImages::ReadBytes(size_t image, const ImageUse& use,
                                   absl::Span<unsigned char> pixels) const {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(image));
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
