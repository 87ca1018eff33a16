// im2col and pooling. In a backward pass one thread gathers all that is added to one number, in
// the order of the windows.

#include <algorithm>
#include <cmath>

#include "worker/nn/cuda/kernels.h"
#include "worker/nn/cuda/launch.h"

namespace syncgrads::cuda {
namespace {

// The position of a window, or of a pixel: sample, line and column.
struct Place {
  uint32_t sample;
  int y;
  int x;
};

__device__ inline Place PlaceOf(int64_t number, int height, const Divisor& by_height, int width,
                                const Divisor& by_width) {
  const auto place = static_cast<uint32_t>(number);
  const uint32_t line = by_width.Quotient(place);
  const uint32_t sample = by_height.Quotient(line);
  return {sample, static_cast<int>(line - sample * static_cast<uint32_t>(height)),
          static_cast<int>(place - line * static_cast<uint32_t>(width))};
}

__device__ inline Place WindowPlace(const Geometry& g, int64_t window) {
  return PlaceOf(window, g.output_height, g.by_output_height, g.output_width, g.by_output_width);
}

__device__ inline Place PixelPlace(const Geometry& g, int64_t pixel) {
  return PlaceOf(pixel, g.height, g.by_height, g.width, g.by_width);
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

__device__ inline Range WindowsOver(const Geometry& g, int pixel, int size, int outputs) {
  const int at = pixel + g.padding;  // in the padded image
  const int first =
      at < size ? 0 : static_cast<int>(g.by_stride.Quotient(static_cast<uint32_t>(at - size))) + 1;
  const int last = static_cast<int>(g.by_stride.Quotient(static_cast<uint32_t>(at)));
  return {first, last < outputs ? last + 1 : outputs};
}

__device__ inline int PixelAt(const Geometry& g, uint32_t sample, int y, int x) {
  return ((static_cast<int>(sample) * g.height + y) * g.width + x) * g.channels;
}

__device__ inline int WindowAt(const Geometry& g, uint32_t sample, int y, int x) {
  return (static_cast<int>(sample) * g.output_height + y) * g.output_width + x;
}

int64_t PixelsOf(const Geometry& g, int64_t samples) { return samples * g.height * g.width; }
int64_t WindowsOf(const Geometry& g, int64_t samples) {
  return samples * g.output_height * g.output_width;
}

// Calls term(window, y and x in the window) for each window that covers `pixel`, in the order of
// the windows.
template <typename Term>
__device__ inline void ForEachWindowOver(const Geometry& g, const Place& pixel, Term term) {
  const Range down = WindowsOver(g, pixel.y, g.window_height, g.output_height);
  const Range across = WindowsOver(g, pixel.x, g.window_width, g.output_width);
  for (int y = down.first; y < down.end; ++y) {
    for (int x = across.first; x < across.end; ++x) {
      term(WindowAt(g, pixel.sample, y, x), pixel.y + g.padding - y * g.stride,
           pixel.x + g.padding - x * g.stride);
    }
  }
}

// Returns the sum of term(window) over the windows that cover `pixel`.
template <typename T, typename Term>
__device__ inline T GatherOverWindows(const Geometry& g, const Place& pixel, Term term) {
  T sum = 0;
  ForEachWindowOver(g, pixel, [&](int window, int, int) { sum += term(window); });
  return sum;
}

// Copies one pack of one tap, that is, one position in the window, for each window. `copied` of the
// n channels exist in the images.
template <typename S, int n, int copied>
struct Im2ColColumn {
  Geometry g;
  const S* images;
  S* rows;
  struct Visit {
    Geometry g;
    int y, x;  // of the tap
    const S* images;
    S* rows;
    int row_length;
    __device__ void operator()(int64_t window) const {
      const Place place = WindowPlace(g, window);
      const int line = place.y * g.stride + y;
      const int column = place.x * g.stride + x;
      Pack<S, n> pack = {};
      if (line >= 0 && line < g.height && column >= 0 && column < g.width) {
        const S* from = images + PixelAt(g, place.sample, line, column);
        if constexpr (n == copied) {
          pack = LoadPack<n>(from);
        } else {
          for (int i = 0; i < copied; ++i) pack.at[i] = from[i];
        }
      }
      StorePack<n>(pack, rows + static_cast<int>(window) * row_length);
    }
  };
  __device__ Visit operator()(int pack) const {
    const int packs = g.row_channels / n;
    const int tap = pack / packs;
    const int channel = (pack - tap * packs) * n;
    const int y = tap / g.window_width;
    return {g,
            y - g.padding,
            tap - y * g.window_width - g.padding,
            images + channel,
            rows + pack * n,
            g.window_height * g.window_width * g.row_channels};
  }
};

// Gathers one pack of each pixel. `size` is the width and height of the window, and the stride is
// 1; with size 0, both are those of the geometry.
template <typename S, int n, int size>
struct Col2ImColumn {
  using T = Computed<S>;
  Geometry g;
  const S* rows;
  S* images;
  struct Visit {
    Geometry g;
    const S* rows;
    S* images;
    __device__ void AddRow(int window, int y, int x, T (&sum)[n]) const {
      const int line = (window * g.window_height + y) * g.window_width + x;
      const Pack<S, n> pack = LoadPack<n>(rows + line * g.row_channels);
      for (int i = 0; i < n; ++i) sum[i] += pack.at[i];
    }
    __device__ void operator()(int64_t pixel) const {
      const Place place = PixelPlace(g, pixel);
      T sum[n] = {};
      if constexpr (size > 0) {
#pragma unroll
        for (int y = 0; y < size; ++y) {
#pragma unroll
          for (int x = 0; x < size; ++x) {
            const int top = place.y + g.padding - (size - 1) + y;
            const int left = place.x + g.padding - (size - 1) + x;
            if (top < 0 || top >= g.output_height || left < 0 || left >= g.output_width) continue;
            AddRow(WindowAt(g, place.sample, top, left), size - 1 - y, size - 1 - x, sum);
          }
        }
      } else {
        ForEachWindowOver(g, place, [&](int window, int y, int x) { AddRow(window, y, x, sum); });
      }
      Pack<S, n> result;
      for (int i = 0; i < n; ++i) result.at[i] = static_cast<S>(sum[i]);
      StorePack<n>(result, images + static_cast<int>(pixel) * g.channels);
    }
  };
  __device__ Visit operator()(int pack) const { return {g, rows + pack * n, images + pack * n}; }
};

// Pools one pack of each window.
template <typename S, int n>
struct MaxPoolColumn {
  using T = Computed<S>;
  Geometry g;
  const S* input;
  S* output;
  int32_t* chosen;
  struct Visit {
    Geometry g;
    int channel;
    const S* input;
    S* output;
    int32_t* chosen;
    __device__ void operator()(int64_t window) const {
      const Place place = WindowPlace(g, window);
      const Area area = AreaOf(g, place);
      const S* image = input + PixelAt(g, place.sample, 0, 0);
      Pack<S, n> largest = {};
      Pack<int32_t, n> where;
      for (int i = 0; i < n; ++i) where.at[i] = -1;
      for (int y = area.top; y < area.bottom; ++y) {
#pragma unroll 3
        for (int x = area.left; x < area.right; ++x) {
          const int32_t at = (y * g.width + x) * g.channels + channel;
          const Pack<S, n> values = LoadPack<n>(image + at);
          for (int i = 0; i < n; ++i) {
            const T value = values.at[i];
            // A NaN counts as larger than any number.
            if (where.at[i] >= 0 && !(value > T{largest.at[i]}) && value == value) continue;
            largest.at[i] = values.at[i];
            where.at[i] = at + i;
          }
        }
      }
      const int to = static_cast<int>(window) * g.channels + channel;
      StorePack<n>(largest, output + to);
      StorePack<n>(where, chosen + to);
    }
  };
  __device__ Visit operator()(int pack) const { return {g, pack * n, input, output, chosen}; }
};

// Gathers one pack of each pixel, which is in at most `most` windows along each axis. All loads are
// in flight together. With `most` 0 there is no limit.
template <typename S, int n, int most>
struct MaxPoolBackwardColumn {
  using T = Computed<S>;
  Geometry g;
  const int32_t* chosen;
  const S* output_gradient;
  S* input_gradient;
  struct Visit {
    Geometry g;
    int channel;
    const int32_t* chosen;
    const S* output_gradient;
    S* input_gradient;
    __device__ void operator()(int64_t pixel) const {
      const Place place = PixelPlace(g, pixel);
      const int32_t at = (place.y * g.width + place.x) * g.channels + channel;
      T sum[n] = {};
      const auto add = [&](const Pack<int32_t, n>& where, const Pack<S, n>& slopes) {
        for (int i = 0; i < n; ++i) sum[i] += where.at[i] == at + i ? T{slopes.at[i]} : T{0};
      };
      if constexpr (most > 0) {
        const Range down = WindowsOver(g, place.y, g.window_height, g.output_height);
        const Range across = WindowsOver(g, place.x, g.window_width, g.output_width);
        const int first = WindowAt(g, place.sample, down.first, across.first);
        bool exists[most * most];
        Pack<int32_t, n> where[most * most];
        Pack<S, n> slopes[most * most];
#pragma unroll
        for (int j = 0; j < most * most; ++j) {
          const int y = j / most, x = j % most;
          exists[j] = down.first + y < down.end && across.first + x < across.end;
          if (!exists[j]) continue;
          const int from = (first + y * g.output_width + x) * g.channels + channel;
          where[j] = LoadPack<n>(chosen + from);
          slopes[j] = LoadPack<n>(output_gradient + from);
        }
#pragma unroll
        for (int j = 0; j < most * most; ++j) {
          if (exists[j]) add(where[j], slopes[j]);
        }
      } else {
        ForEachWindowOver(g, place, [&](int window, int, int) {
          const int from = window * g.channels + channel;
          add(LoadPack<n>(chosen + from), LoadPack<n>(output_gradient + from));
        });
      }
      Pack<S, n> result;
      for (int i = 0; i < n; ++i) result.at[i] = static_cast<S>(sum[i]);
      StorePack<n>(result, input_gradient + static_cast<int>(pixel) * g.channels + channel);
    }
  };
  __device__ Visit operator()(int pack) const {
    return {g, pack * n, chosen, output_gradient, input_gradient};
  }
};

}  // namespace

template <typename S>
cudaError_t Im2Col(cudaStream_t stream, const Geometry& geometry, int64_t samples, const S* images,
                   S* rows) {
  const Geometry& g = geometry;
  const int64_t windows = WindowsOf(g, samples);
  const int64_t columns = int64_t{g.window_height} * g.window_width * g.row_channels;
  if (g.channels == 3 && g.row_channels == 4) {
    return ForEachColumn(stream, windows, columns / 4, Im2ColColumn<S, 4, 3>{g, images, rows});
  }
  return WithPacks<S>(
      g.channels,
      [&]<int n>(PackSize<n>) {
        return ForEachColumn(stream, windows, columns / n, Im2ColColumn<S, n, n>{g, images, rows});
      },
      images, rows);
}

template <typename S>
cudaError_t Col2Im(cudaStream_t stream, const Geometry& geometry, int64_t samples, const S* rows,
                   S* images) {
  const Geometry& g = geometry;
  const bool is_3x3 = g.window_height == 3 && g.window_width == 3 && g.stride == 1;
  return WithPacks<S>(
      g.channels,
      [&]<int n>(PackSize<n>) {
        if (is_3x3) {
          return ForEachColumn(stream, PixelsOf(g, samples), g.channels / n,
                               Col2ImColumn<S, n, 3>{g, rows, images});
        }
        return ForEachColumn(stream, PixelsOf(g, samples), g.channels / n,
                             Col2ImColumn<S, n, 0>{g, rows, images});
      },
      rows, images);
}

template <typename S>
cudaError_t PackWeights(cudaStream_t stream, const Geometry& geometry, int64_t outputs,
                        const Computed<S>* weights, S* packed) {
  using T = Computed<S>;
  const Geometry g = geometry;
  const int area = g.window_height * g.window_width;
  const int columns = area * g.row_channels;
  return ForEachPlace(stream, outputs, columns, [=] __device__(int64_t output, int column) {
    const int tap = column / g.row_channels;
    const int channel = column - tap * g.row_channels;
    packed[output * columns + column] = static_cast<S>(
        channel < g.channels ? weights[(output * g.channels + channel) * area + tap] : T{0});
  });
}

template <typename S>
cudaError_t UnpackWeights(cudaStream_t stream, const Geometry& geometry, int64_t outputs,
                          const S* packed, Computed<S>* weights) {
  const Geometry g = geometry;
  const int area = g.window_height * g.window_width;
  const int columns = g.channels * area;
  return ForEachPlace(stream, outputs, columns, [=] __device__(int64_t output, int column) {
    const int channel = column / area;
    const int tap = column - channel * area;
    weights[output * columns + column] = packed[(output * area + tap) * g.row_channels + channel];
  });
}

template <typename S>
cudaError_t MaxPool(cudaStream_t stream, const Geometry& geometry, int64_t samples, const S* input,
                    S* output, int32_t* chosen) {
  const Geometry& g = geometry;
  return WithPacks<S>(
      g.channels,
      [&]<int n>(PackSize<n>) {
        return ForEachColumn(stream, WindowsOf(g, samples), g.channels / n,
                             MaxPoolColumn<S, n>{g, input, output, chosen});
      },
      input, output, chosen);
}

template <typename S>
cudaError_t MaxPoolBackward(cudaStream_t stream, const Geometry& geometry, int64_t samples,
                            const int32_t* chosen, const S* output_gradient, S* input_gradient) {
  const Geometry& g = geometry;
  return WithPacks<S>(
      g.channels,
      [&]<int n>(PackSize<n>) {
        const int64_t pixels = PixelsOf(g, samples), packs = g.channels / n;
        if (std::max(g.window_height, g.window_width) <= 2 * g.stride) {
          return ForEachColumn<true>(
              stream, pixels, packs,
              MaxPoolBackwardColumn<S, n, 2>{g, chosen, output_gradient, input_gradient});
        }
        return ForEachColumn(
            stream, pixels, packs,
            MaxPoolBackwardColumn<S, n, 0>{g, chosen, output_gradient, input_gradient});
      },
      chosen, output_gradient, input_gradient);
}

template <typename S>
cudaError_t AveragePool(cudaStream_t stream, const Geometry& geometry, int64_t samples,
                        const S* input, S* output) {
  using T = Computed<S>;
  const Geometry g = geometry;
  const T share = T{1} / static_cast<T>(g.window_height * g.window_width);
  return ForEachPlace(stream, WindowsOf(g, samples), g.channels,
                      [=] __device__(int64_t window, int channel) {
                        const Place place = WindowPlace(g, window);
                        const Area area = AreaOf(g, place);
                        T sum = 0;
                        for (int y = area.top; y < area.bottom; ++y) {
                          for (int x = area.left; x < area.right; ++x) {
                            sum += input[PixelAt(g, place.sample, y, x) + channel];
                          }
                        }
                        output[window * g.channels + channel] = static_cast<S>(sum * share);
                      });
}

template <typename S>
cudaError_t AveragePoolBackward(cudaStream_t stream, const Geometry& geometry, int64_t samples,
                                const S* output_gradient, S* input_gradient) {
  using T = Computed<S>;
  const Geometry g = geometry;
  const T share = T{1} / static_cast<T>(g.window_height * g.window_width);
  return ForEachPlace(stream, PixelsOf(g, samples), g.channels,
                      [=] __device__(int64_t pixel, int channel) {
                        const Place place = PixelPlace(g, pixel);
                        const T sum = GatherOverWindows<T>(g, place, [&](int window) {
                          return output_gradient[window * g.channels + channel] * share;
                        });
                        input_gradient[pixel * g.channels + channel] = static_cast<S>(sum);
                      });
}

#define SYNCGRADS_FOR_STORAGE(S)                                                                \
  template cudaError_t Im2Col(cudaStream_t, const Geometry&, int64_t, const S*, S*);            \
  template cudaError_t Col2Im(cudaStream_t, const Geometry&, int64_t, const S*, S*);            \
  template cudaError_t PackWeights(cudaStream_t, const Geometry&, int64_t, const Computed<S>*,  \
                                   S*);                                                         \
  template cudaError_t UnpackWeights(cudaStream_t, const Geometry&, int64_t, const S*,          \
                                     Computed<S>*);                                             \
  template cudaError_t MaxPool(cudaStream_t, const Geometry&, int64_t, const S*, S*, int32_t*); \
  template cudaError_t MaxPoolBackward(cudaStream_t, const Geometry&, int64_t, const int32_t*,  \
                                       const S*, S*);                                           \
  template cudaError_t AveragePool(cudaStream_t, const Geometry&, int64_t, const S*, S*);       \
  template cudaError_t AveragePoolBackward(cudaStream_t, const Geometry&, int64_t, const S*, S*);
SYNCGRADS_FOR_STORAGE(float)
SYNCGRADS_FOR_STORAGE(double)
SYNCGRADS_FOR_STORAGE(Bf16)
#undef SYNCGRADS_FOR_STORAGE

}  // namespace syncgrads::cuda
