// CpuDevice: pooling.

#include <algorithm>
#include <cstring>

#include "worker/nn/cpu/cpu_device.h"

namespace syncgrads {

template <typename T>
void CpuDevice<T>::MaxPool(const Window& window, int64_t samples, const T* input, T* output,
                           int32_t* chosen) {
  const int64_t channels = window.input.channels;
  const int64_t row_step = window.input.width * channels;
  const int64_t per_sample = window.positions() * channels;
  For(samples, per_sample * window.height * window.width, [&](int, int64_t first, int64_t last) {
    for (int64_t sample = first; sample < last; ++sample) {
      const T* image = input + sample * window.input.size();
      T* to = output + sample * per_sample;
      int32_t* where = chosen + sample * per_sample;
      for (int64_t oy = 0; oy < window.output_height; ++oy) {
        const int64_t top = oy * window.stride - window.padding;
        const int64_t y_begin = std::max<int64_t>(top, 0);
        const int64_t y_end = std::min(top + window.height, window.input.height);
        for (int64_t ox = 0; ox < window.output_width; ++ox, to += channels, where += channels) {
          const int64_t left = ox * window.stride - window.padding;
          const int64_t x_begin = std::max<int64_t>(left, 0);
          const int64_t x_end = std::min(left + window.width, window.input.width);
          const int64_t at = y_begin * row_step + x_begin * channels;
          kernels_.max_pixel(y_end - y_begin, x_end - x_begin, channels, row_step,
                             static_cast<int32_t>(at), image + at, to, where);
        }
      }
    }
  });
}

template <typename T>
void CpuDevice<T>::MaxPoolBackward(const Window& window, int64_t samples, const int32_t* chosen,
                                   const T* output_gradient, T* input_gradient) {
  const int64_t per_sample = window.positions() * window.input.channels;
  For(samples, per_sample + window.input.size(), [&](int, int64_t first, int64_t last) {
    for (int64_t sample = first; sample < last; ++sample) {
      T* image = input_gradient + sample * window.input.size();
      std::memset(image, 0, window.input.size() * sizeof(T));
      for (int64_t i = sample * per_sample; i < (sample + 1) * per_sample; ++i) {
        image[chosen[i]] += output_gradient[i];
      }
    }
  });
}

template <typename T>
void CpuDevice<T>::AveragePool(const Window& window, int64_t samples, const T* input, T* output) {
  const int64_t channels = window.input.channels;
  const int64_t per_sample = window.positions() * channels;
  const T share = T{1} / static_cast<T>(window.height * window.width);
  For(samples, per_sample * window.height * window.width, [&](int, int64_t first, int64_t last) {
    for (int64_t sample = first; sample < last; ++sample) {
      const T* image = input + sample * window.input.size();
      T* to = output + sample * per_sample;
      for (int64_t oy = 0; oy < window.output_height; ++oy) {
        const int64_t top = oy * window.stride - window.padding;
        for (int64_t ox = 0; ox < window.output_width; ++ox, to += channels) {
          const int64_t left = ox * window.stride - window.padding;
          std::fill(to, to + channels, T{0});
          for (int64_t y = std::max<int64_t>(top, 0);
               y < std::min(top + window.height, window.input.height); ++y) {
            for (int64_t x = std::max<int64_t>(left, 0);
                 x < std::min(left + window.width, window.input.width); ++x) {
              const T* pixel = image + (y * window.input.width + x) * channels;
              for (int64_t c = 0; c < channels; ++c) to[c] += pixel[c];
            }
          }
          for (int64_t c = 0; c < channels; ++c) to[c] *= share;
        }
      }
    }
  });
}

template <typename T>
void CpuDevice<T>::AveragePoolBackward(const Window& window, int64_t samples,
                                       const T* output_gradient, T* input_gradient) {
  const int64_t channels = window.input.channels;
  const int64_t per_sample = window.positions() * channels;
  const T share = T{1} / static_cast<T>(window.height * window.width);
  For(samples, per_sample * window.height * window.width, [&](int, int64_t first, int64_t last) {
    for (int64_t sample = first; sample < last; ++sample) {
      T* image = input_gradient + sample * window.input.size();
      std::memset(image, 0, window.input.size() * sizeof(T));
      const T* from = output_gradient + sample * per_sample;
      for (int64_t oy = 0; oy < window.output_height; ++oy) {
        const int64_t top = oy * window.stride - window.padding;
        for (int64_t ox = 0; ox < window.output_width; ++ox, from += channels) {
          const int64_t left = ox * window.stride - window.padding;
          for (int64_t y = std::max<int64_t>(top, 0);
               y < std::min(top + window.height, window.input.height); ++y) {
            for (int64_t x = std::max<int64_t>(left, 0);
                 x < std::min(left + window.width, window.input.width); ++x) {
              T* pixel = image + (y * window.input.width + x) * channels;
              for (int64_t c = 0; c < channels; ++c) pixel[c] += from[c] * share;
            }
          }
        }
      }
    }
  });
}

template <typename T>
void CpuDevice<T>::Pool(Pooling pooling, const Window& window, int64_t samples,
                        const Stored<T>* input, Stored<T>* output, int32_t* chosen) {
  if (pooling == Pooling::kMax) {
    return MaxPool(window, samples, Plain(input), Plain(output), chosen);
  }
  AveragePool(window, samples, Plain(input), Plain(output));
}

template <typename T>
void CpuDevice<T>::PoolBackward(Pooling pooling, const Window& window, int64_t samples,
                                const int32_t* chosen, const Stored<T>* output_gradient,
                                Stored<T>* input_gradient) {
  if (pooling == Pooling::kMax) {
    return MaxPoolBackward(window, samples, chosen, Plain(output_gradient), Plain(input_gradient));
  }
  AveragePoolBackward(window, samples, Plain(output_gradient), Plain(input_gradient));
}

// Instantiates the members that this file defines.
#define SYNCGRADS_INSTANTIATE(T)                                                                  \
  template void CpuDevice<T>::MaxPool(const Window&, int64_t, const T*, T*, int32_t*);            \
  template void CpuDevice<T>::MaxPoolBackward(const Window&, int64_t, const int32_t*, const T*,   \
                                              T*);                                                \
  template void CpuDevice<T>::AveragePool(const Window&, int64_t, const T*, T*);                  \
  template void CpuDevice<T>::AveragePoolBackward(const Window&, int64_t, const T*, T*);          \
  template void CpuDevice<T>::Pool(Pooling, const Window&, int64_t, const Stored<T>*, Stored<T>*, \
                                   int32_t*);                                                     \
  template void CpuDevice<T>::PoolBackward(Pooling, const Window&, int64_t, const int32_t*,       \
                                           const Stored<T>*, Stored<T>*);
SYNCGRADS_INSTANTIATE(float)
SYNCGRADS_INSTANTIATE(double)
#undef SYNCGRADS_INSTANTIATE

}  // namespace syncgrads
