#include "common/optim/clip.h"

#include <cmath>

#include "common/kernels/sum_of_squares.h"

namespace syncgrads {

double GlobalNorm(absl::Span<const MutableTensor> tensors) {
  double sum = 0;
  for (const MutableTensor& tensor : tensors) {
    sum += SumOfSquares(tensor.dtype, tensor.data, tensor.elements);
  }
  return std::sqrt(sum);
}

double ClipToNorm(absl::Span<const MutableTensor> tensors, double most) {
  const double norm = GlobalNorm(tensors);
  if (!std::isfinite(norm) || norm <= most) return norm;
  for (const MutableTensor& tensor : tensors) {
    Scale(tensor.dtype, most / norm, tensor.data, tensor.elements);
  }
  return norm;
}

}  // namespace syncgrads
