// Where a window stops as it moves over an image: the geometry that convolutions
// and pooling share.

#ifndef SYNCGRADS_WORKER_NN_WINDOW_H_
#define SYNCGRADS_WORKER_NN_WINDOW_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/nn/shape.h"

namespace syncgrads {

// Padding goes around the image on all sides. The window stops at every
// `stride`-th place from the upper left corner on, as long as it fits.
struct Window {
  Shape input;
  int64_t height = 1;
  int64_t width = 1;
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t output_height = 1;
  int64_t output_width = 1;

  // Numbers below the window.
  int64_t size() const { return input.channels * height * width; }
  int64_t positions() const { return output_height * output_width; }

  // `height`, `width` and `stride` are at least 1.
  //
  // Errors:
  //   InvalidArgument  `layer`'s input is no image, the window is larger than the
  //                    padded image, or the padding not less than the window;
  //                    names the layer and both shapes
  static absl::StatusOr<Window> Create(const std::string& layer, const Shape& input, int64_t height,
                                       int64_t width, int64_t stride, int64_t padding);
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_WINDOW_H_
