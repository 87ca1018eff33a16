#include "worker/data/images/image_source.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace syncgrads {

absl::Status ImageSource::ReadBytes(size_t image, const ImageUse&,
                                    absl::Span<unsigned char>) const {
  return absl::UnimplementedError(absl::StrCat(NameOf(image), " is not an image of 8 bits"));
}

absl::Status ImageSource::ReadFromBytes(size_t image, const ImageUse& use,
                                        absl::Span<float> pixels) const {
  std::vector<unsigned char> bytes(pixels.size());
  SYNCGRADS_RETURN_IF_ERROR(ReadBytes(image, use, absl::MakeSpan(bytes)));
  std::transform(bytes.begin(), bytes.end(), pixels.begin(), FromByte);
  return absl::OkStatus();
}

}  // namespace syncgrads
