// The geometry of convolutions and pooling on a CUDA device, and how convolutions are split.

#ifndef SYNCGRADS_WORKER_NN_CUDA_GEOMETRY_H_
#define SYNCGRADS_WORKER_NN_CUDA_GEOMETRY_H_

#include <algorithm>
#include <cstdint>

#include "worker/nn/cuda/kernels.h"
#include "worker/nn/window.h"

namespace syncgrads::cuda {

// Whether the im2col rows of an image are the image itself.
inline bool IsPointwise(const Window& window) {
  return window.height == 1 && window.width == 1 && window.stride == 1 && window.padding == 0;
}

// The channels of an im2col row. Images with three channels get a fourth one of zeros: the rows
// are then aligned to 16 bytes, which vector instructions and tensor cores need.
inline int64_t RowChannels(const Window& window) {
  return window.input.channels == 3 && !IsPointwise(window) ? 4 : window.input.channels;
}

// The length of an im2col row.
inline int64_t RowSize(const Window& window) {
  return window.height * window.width * RowChannels(window);
}

inline Geometry GeometryOf(const Window& window) {
  const auto number = [](int64_t value) { return static_cast<int>(value); };
  return {number(window.input.channels), number(window.input.height),  number(window.input.width),
          number(window.height),         number(window.width),         number(window.stride),
          number(window.padding),        number(window.output_height), number(window.output_width),
          number(RowChannels(window)),   Divisor(window.input.height), Divisor(window.input.width),
          Divisor(window.output_height), Divisor(window.output_width), Divisor(window.stride)};
}

// Whether kernels can index `samples` images and their windows, with `each` numbers in the rows
// of one image.
inline bool FitsIn32Bits(const Window& window, int64_t samples, int64_t each) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  return samples * std::max(each, window.input.size()) < kLimit;
}

// Calls slice(first sample, number of samples) in order. The im2col rows of a slice have at most
// `room` numbers, but a slice has at least one sample.
template <typename Slice>
void ForEachSlice(const Window& window, int64_t samples, int64_t room, Slice slice) {
  const int64_t each =
      std::max<int64_t>({1, window.positions() * RowSize(window), window.input.size()});
  const int64_t at_a_time = std::max<int64_t>(1, room / each);
  for (int64_t first = 0; first < samples; first += at_a_time) {
    slice(first, std::min(at_a_time, samples - first));
  }
}

}  // namespace syncgrads::cuda

#endif  // SYNCGRADS_WORKER_NN_CUDA_GEOMETRY_H_
