#include "worker/nn/shape.h"

#include "absl/strings/str_cat.h"

namespace syncgrads {

std::string ToString(const Shape& shape) {
  if (!shape.is_image) return absl::StrCat(shape.channels);
  return absl::StrCat(shape.channels, "x", shape.height, "x", shape.width);
}

}  // namespace syncgrads
