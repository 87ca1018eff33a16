// im2col: copies the windows of an image to rows of a matrix, so that a convolution is a matrix
// product.

#ifndef SYNCGRADS_WORKER_NN_CPU_COLUMNS_H_
#define SYNCGRADS_WORKER_NN_CPU_COLUMNS_H_

#include <cstdint>

#include "worker/nn/window.h"

namespace syncgrads {

// im2col of lines `begin` to below `end` of the output. Sets `rows` to a row of window.size()
// numbers for each window: line by line, with zeros for the padding.
template <typename T>
void Im2Col(const Window& window, const T* image, int64_t begin, int64_t end, T* rows);

// col2im, the reverse of Im2Col: adds each number of `rows` to the number of `image` at which
// Im2Col reads it.
template <typename T>
void Col2Im(const Window& window, const T* rows, int64_t begin, int64_t end, T* image);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_CPU_COLUMNS_H_
