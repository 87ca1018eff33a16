// im2col and pooling. In a backward pass one thread gathers all that is added to one number, in
// the order of the windows.

#include <cmath>

#include "worker/nn/cuda/kernels.h"
#include "worker/nn/cuda/launch.h"

namespace syncgrads::cuda {
namespace {

// The position of a window, or of a pixel: sample, line and column.
struct Place {
  int64_t sample;
  int y;
  int x;
};

__device__ inline Place PlaceOf(int64_t row, int height, int width) {
  const uint32_t number = static_cast<uint32_t>(row);
  const uint32_t line = number / static_cast<uint32_t>(width);
  const uint32_t sample = line / static_cast<uint32_t>(height);
  return {sample, static_cast<int>(line - sample * static_cast<uint32_t>(height)),
          static_cast<int>(number - line * static_cast<uint32_t>(width))};
}

// The part of a window that lies within the image.
struct Area {
  int top, bottom, left, right;  // [top, bottom) and [left, right)
};

__device__ inline Area AreaOf(const Geometry& g, const Place& window) {
  const int top = window.y * g.stride - g.padding;
  const int left = window.x * g.stride - g.padding;
  return {top > 0 ? top : 0, top + g.window_height < g.height ? top + g.window_height : g.height,
          left > 0 ? left : 0, left + g.window_width < g.width ? left + g.window_width : g.width};
}

// The windows that cover a pixel, along one axis: from `first` to below `end`.
struct Range {
  int first, end;
};

__device__ inline Range WindowsOver(int pixel, int padding, int size, int stride, int outputs) {
  const int at = pixel + padding;  // in the padded image
  const int first = at < size ? 0 : (at - size) / stride + 1;
  const int last = at / stride;
  return {first, last < outputs ? last + 1 : outputs};
}

__device__ inline int64_t PixelAt(const Geometry& g, int64_t sample, int y, int x) {
  return ((sample * g.height + y) * g.width + x) * g.channels;
}

__device__ inline int64_t WindowAt(const Geometry& g, int64_t sample, int y, int x) {
  return (sample * g.output_height + y) * g.output_width + x;
}

int64_t PixelsOf(const Geometry& g, int64_t samples) { return samples * g.height * g.width; }
int64_t WindowsOf(const Geometry& g, int64_t samples) {
  return samples * g.output_height * g.output_width;
}

// Returns the sum of term(window, y and x in the window) over the windows that cover `pixel`.
template <typename T, typename Term>
__device__ inline T GatherOverWindows(const Geometry& g, const Place& pixel, Term term) {
  const Range down = WindowsOver(pixel.y, g.padding, g.window_height, g.stride, g.output_height);
  const Range across = WindowsOver(pixel.x, g.padding, g.window_width, g.stride, g.output_width);
  T sum = 0;
  for (int y = down.first; y < down.end; ++y) {
    for (int x = across.first; x < across.end; ++x) {
      sum += term(WindowAt(g, pixel.sample, y, x), pixel.y + g.padding - y * g.stride,
                  pixel.x + g.padding - x * g.stride);
    }
  }
  return sum;
}

}  // namespace

template <typename T>
cudaError_t Im2Col(cudaStream_t stream, const Geometry& geometry, int64_t samples, const T* images,
                   T* rows) {
  const Geometry g = geometry;
  const int area = g.window_height * g.window_width;
  return ForEachPlace(
      stream, WindowsOf(g, samples) * area, g.channels, [=] __device__(int64_t row, int channel) {
        const uint32_t window = static_cast<uint32_t>(row) / static_cast<uint32_t>(area);
        const int within = static_cast<int>(static_cast<uint32_t>(row) - window * area);
        const Place place = PlaceOf(window, g.output_height, g.output_width);
        const int y = place.y * g.stride - g.padding + within / g.window_width;
        const int x = place.x * g.stride - g.padding + within % g.window_width;
        const bool inside = y >= 0 && y < g.height && x >= 0 && x < g.width;
        rows[row * g.channels + channel] =
            inside ? images[PixelAt(g, place.sample, y, x) + channel] : T{0};
      });
}

template <typename T>
cudaError_t Col2Im(cudaStream_t stream, const Geometry& geometry, int64_t samples, const T* rows,
                   T* images) {
  const Geometry g = geometry;
  return ForEachPlace(
      stream, PixelsOf(g, samples), g.channels, [=] __device__(int64_t pixel, int channel) {
        const Place place = PlaceOf(pixel, g.height, g.width);
        images[pixel * g.channels + channel] =
            GatherOverWindows<T>(g, place, [&](int64_t window, int y, int x) {
              const int64_t line = (window * g.window_height + y) * g.window_width + x;
              return rows[line * g.channels + channel];
            });
      });
}

template <typename T>
cudaError_t MaxPool(cudaStream_t stream, const Geometry& geometry, int64_t samples, const T* input,
                    T* output, int32_t* chosen) {
  const Geometry g = geometry;
  return ForEachPlace(stream, WindowsOf(g, samples), g.channels,
                      [=] __device__(int64_t window, int channel) {
                        const Place place = PlaceOf(window, g.output_height, g.output_width);
                        const Area area = AreaOf(g, place);
                        const T* image = input + PixelAt(g, place.sample, 0, 0);
                        T largest = 0;
                        int32_t where = -1;
                        for (int y = area.top; y < area.bottom; ++y) {
                          for (int x = area.left; x < area.right; ++x) {
                            const int32_t at = (y * g.width + x) * g.channels + channel;
                            const T value = image[at];
                            // A NaN counts as larger than any number.
                            if (where >= 0 && !(value > largest) && value == value) continue;
                            largest = value;
                            where = at;
                          }
                        }
                        output[window * g.channels + channel] = largest;
                        chosen[window * g.channels + channel] = where;
                      });
}

template <typename T>
cudaError_t MaxPoolBackward(cudaStream_t stream, const Geometry& geometry, int64_t samples,
                            const int32_t* chosen, const T* output_gradient, T* input_gradient) {
  const Geometry g = geometry;
  return ForEachPlace(stream, PixelsOf(g, samples), g.channels,
                      [=] __device__(int64_t pixel, int channel) {
                        const Place place = PlaceOf(pixel, g.height, g.width);
                        const int32_t at = (place.y * g.width + place.x) * g.channels + channel;
                        input_gradient[pixel * g.channels + channel] =
                            GatherOverWindows<T>(g, place, [&](int64_t window, int, int) {
                              const int64_t i = window * g.channels + channel;
                              return chosen[i] == at ? output_gradient[i] : T{0};
                            });
                      });
}

template <typename T>
cudaError_t AveragePool(cudaStream_t stream, const Geometry& geometry, int64_t samples,
                        const T* input, T* output) {
  const Geometry g = geometry;
  const T share = T{1} / static_cast<T>(g.window_height * g.window_width);
  return ForEachPlace(stream, WindowsOf(g, samples), g.channels,
                      [=] __device__(int64_t window, int channel) {
                        const Place place = PlaceOf(window, g.output_height, g.output_width);
                        const Area area = AreaOf(g, place);
                        T sum = 0;
                        for (int y = area.top; y < area.bottom; ++y) {
                          for (int x = area.left; x < area.right; ++x) {
                            sum += input[PixelAt(g, place.sample, y, x) + channel];
                          }
                        }
                        output[window * g.channels + channel] = sum * share;
                      });
}

template <typename T>
cudaError_t AveragePoolBackward(cudaStream_t stream, const Geometry& geometry, int64_t samples,
                                const T* output_gradient, T* input_gradient) {
  const Geometry g = geometry;
  const T share = T{1} / static_cast<T>(g.window_height * g.window_width);
  return ForEachPlace(stream, PixelsOf(g, samples), g.channels,
                      [=] __device__(int64_t pixel, int channel) {
                        const Place place = PlaceOf(pixel, g.height, g.width);
                        input_gradient[pixel * g.channels + channel] =
                            GatherOverWindows<T>(g, place, [&](int64_t window, int, int) {
                              return output_gradient[window * g.channels + channel] * share;
                            });
                      });
}

#define SYNCGRADS_FOR_TYPE(T)                                                                   \
  template cudaError_t Im2Col(cudaStream_t, const Geometry&, int64_t, const T*, T*);            \
  template cudaError_t Col2Im(cudaStream_t, const Geometry&, int64_t, const T*, T*);            \
  template cudaError_t MaxPool(cudaStream_t, const Geometry&, int64_t, const T*, T*, int32_t*); \
  template cudaError_t MaxPoolBackward(cudaStream_t, const Geometry&, int64_t, const int32_t*,  \
                                       const T*, T*);                                           \
  template cudaError_t AveragePool(cudaStream_t, const Geometry&, int64_t, const T*, T*);       \
  template cudaError_t AveragePoolBackward(cudaStream_t, const Geometry&, int64_t, const T*, T*);
SYNCGRADS_FOR_TYPE(float)
SYNCGRADS_FOR_TYPE(double)
#undef SYNCGRADS_FOR_TYPE

}  // namespace syncgrads::cuda
