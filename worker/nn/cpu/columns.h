// The windows of an image as the rows of a matrix, so that a convolution is a
// matrix product ("im2col").

#ifndef SYNCGRADS_WORKER_NN_CPU_COLUMNS_H_
#define SYNCGRADS_WORKER_NN_CPU_COLUMNS_H_

#include <cstdint>

#include "worker/nn/window.h"

namespace syncgrads {

// Sets `rows` to a row of window.size() numbers for each place of the window in
// lines `begin` to below `end` of the output: what is below the window, line by
// line, with zeros for the padding.
template <typename T>
void WindowsToRows(const Window& window, const T* image, int64_t begin, int64_t end, T* rows);

// The way back: adds each number of `rows` to where WindowsToRows took it from.
template <typename T>
void AddRowsToWindows(const Window& window, const T* rows, int64_t begin, int64_t end, T* image);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_CPU_COLUMNS_H_
