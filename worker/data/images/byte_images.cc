#include "worker/data/images/byte_images.h"

#include "absl/strings/str_cat.h"

namespace syncgrads {

std::string ByteImages::NameOf(size_t image) const {
  return absl::StrCat(path_, ": image ", image);
}

absl::Status ByteImages::ReadBytes(size_t image, const ImageUse&,
                                   absl::Span<unsigned char> pixels) const {
  const char* from = records_.data() + image * stride_ + offset_;
  const size_t positions = static_cast<size_t>(shape_.positions());
  const size_t channels = static_cast<size_t>(shape_.channels);
  for (size_t channel = 0; channel < channels; ++channel) {
    for (size_t i = 0; i < positions; ++i) {
      pixels[i * channels + channel] = static_cast<unsigned char>(*from++);
    }
  }
  return absl::OkStatus();
}

}  // namespace syncgrads
