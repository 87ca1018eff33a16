#include "worker/nn/cpu/columns.h"

#include <algorithm>
#include <cstring>

namespace syncgrads {
namespace {

// The part of one line of a window that lies within the image: `count` numbers from index
// `image` of the image on. `skipped` numbers of the window's line come before them.
struct Run {
  int64_t image = 0;
  int64_t skipped = 0;
  int64_t count = 0;
};

Run RunOf(const Window& window, int64_t y, int64_t output_x) {
  if (y < 0 || y >= window.input.height) return {};
  const int64_t left = output_x * window.stride - window.padding;
  const int64_t begin = std::max<int64_t>(left, 0);
  const int64_t end = std::min(left + window.width, window.input.width);
  if (begin >= end) return {};
  const int64_t channels = window.input.channels;
  return {(y * window.input.width + begin) * channels, (begin - left) * channels,
          (end - begin) * channels};
}

// Calls visit(index in the rows, run) for each line of each window, in order.
template <typename Visit>
void ForEachLine(const Window& window, int64_t begin, int64_t end, Visit visit) {
  const int64_t line = window.width * window.input.channels;
  int64_t row = 0;
  for (int64_t output_y = begin; output_y < end; ++output_y) {
    const int64_t top = output_y * window.stride - window.padding;
    for (int64_t output_x = 0; output_x < window.output_width; ++output_x) {
      for (int64_t y = 0; y < window.height; ++y) {
        visit(row, RunOf(window, top + y, output_x));
        row += line;
      }
    }
  }
}

}  // namespace

template <typename T>
void Im2Col(const Window& window, const T* image, int64_t begin, int64_t end, T* rows) {
  const int64_t line = window.width * window.input.channels;
  // For a few numbers, a call of memcpy takes longer than the copy itself.
  constexpr int64_t kShort = 32;
  ForEachLine(window, begin, end, [&](int64_t at, const Run& run) {
    T* to = rows + at;
    if (run.count < line) std::memset(to, 0, line * sizeof(T));
    const T* from = image + run.image;
    to += run.skipped;
    if (run.count > kShort) {
      std::memcpy(to, from, run.count * sizeof(T));
    } else {
      for (int64_t i = 0; i < run.count; ++i) to[i] = from[i];
    }
  });
}

template <typename T>
void Col2Im(const Window& window, const T* rows, int64_t begin, int64_t end, T* image) {
  ForEachLine(window, begin, end, [&](int64_t at, const Run& run) {
    const T* __restrict from = rows + at + run.skipped;
    T* __restrict to = image + run.image;
    for (int64_t i = 0; i < run.count; ++i) to[i] += from[i];
  });
}

template void Im2Col(const Window&, const float*, int64_t, int64_t, float*);
template void Im2Col(const Window&, const double*, int64_t, int64_t, double*);
template void Col2Im(const Window&, const float*, int64_t, int64_t, float*);
template void Col2Im(const Window&, const double*, int64_t, int64_t, double*);

}  // namespace syncgrads
