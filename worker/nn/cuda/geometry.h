// How convolutions are split for a CUDA device.

#ifndef SYNCGRADS_WORKER_NN_CUDA_GEOMETRY_H_
#define SYNCGRADS_WORKER_NN_CUDA_GEOMETRY_H_

#include <algorithm>
#include <cstdint>

#include "worker/nn/cuda/kernels.h"
#include "worker/nn/window.h"

namespace syncgrads::cuda {

inline Geometry GeometryOf(const Window& window) {
  const auto number = [](int64_t value) { return static_cast<int>(value); };
  return {number(window.input.channels), number(window.input.height),  number(window.input.width),
          number(window.height),         number(window.width),         number(window.stride),
          number(window.padding),        number(window.output_height), number(window.output_width)};
}

// Whether the im2col rows of an image are the image itself.
inline bool IsPointwise(const Window& window) {
  return window.height == 1 && window.width == 1 && window.stride == 1 && window.padding == 0;
}

// Calls slice(first sample, number of samples) in order. The im2col rows of a slice have at most
// `room` numbers, but a slice has at least one sample.
template <typename Slice>
void ForEachSlice(const Window& window, int64_t samples, int64_t room, Slice slice) {
  const int64_t each = std::max<int64_t>(1, window.positions() * window.size());
  const int64_t at_a_time = std::max<int64_t>(1, room / each);
  for (int64_t first = 0; first < samples; first += at_a_time) {
    slice(first, std::min(at_a_time, samples - first));
  }
}

}  // namespace syncgrads::cuda

#endif  // SYNCGRADS_WORKER_NN_CUDA_GEOMETRY_H_
