// The geometry of a window that moves over an image. Convolutions and pooling share it.

#ifndef SYNCGRADS_WORKER_NN_WINDOW_H_
#define SYNCGRADS_WORKER_NN_WINDOW_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/nn/shape.h"

namespace syncgrads {

// A window that moves over a padded image. Padding goes around the image on all sides. The
// window starts at the upper left corner and moves by `stride` pixels, as long as it fits.
struct Window {
  Shape input;
  int64_t height = 1;
  int64_t width = 1;
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t output_height = 1;
  int64_t output_width = 1;

  // The count of numbers that the window covers, in all channels.
  int64_t size() const { return input.channels * height * width; }
  int64_t positions() const { return output_height * output_width; }

  // `height`, `width` and `stride` must be at least 1.
  //
  // Errors:
  //   InvalidArgument  the input of `layer` is not an image, the window is larger than the
  //                    padded image, or the padding is not less than the window; names the layer
  //                    and the sizes
  static absl::StatusOr<Window> Create(const std::string& layer, const Shape& input, int64_t height,
                                       int64_t width, int64_t stride, int64_t padding);
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_WINDOW_H_
