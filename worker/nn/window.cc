#include "worker/nn/window.h"

#include "absl/strings/str_cat.h"

namespace syncgrads {

absl::StatusOr<Window> Window::Create(const std::string& layer, const Shape& input, int64_t height,
                                      int64_t width, int64_t stride, int64_t padding) {
  if (!input.is_image) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer \"", layer,
                     "\" needs an image of channels x height x width, but its "
                     "input has shape ",
                     ToString(input)));
  }
  if (padding >= height || padding >= width) {
    return absl::InvalidArgumentError(absl::StrCat("layer \"", layer, "\": its padding is ",
                                                   padding, ", which is not less than its window, ",
                                                   height, "x", width));
  }
  const int64_t padded_height = input.height + 2 * padding;
  const int64_t padded_width = input.width + 2 * padding;
  if (height > padded_height || width > padded_width) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer \"", layer, "\": its window of ", height, "x", width,
        " does not fit into its input of shape ", ToString(input), " with padding ", padding));
  }
  Window window{input, height, width, stride, padding};
  window.output_height = (padded_height - height) / stride + 1;
  window.output_width = (padded_width - width) / stride + 1;
  return window;
}

}  // namespace syncgrads
