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

double ClipFactor(double norm, double most) {
  return std::isfinite(norm) && norm > most ? most / norm : 1;
}

double ClipToNorm(absl::Span<const MutableTensor> tensors, double most) {
  const double norm = GlobalNorm(tensors);
  const double factor = ClipFactor(norm, most);
  if (factor == 1) return norm;
  for (const MutableTensor& tensor : tensors) {
    Scale(tensor.dtype, factor, tensor.data, tensor.elements);
  }
  return norm;
}

}  // namespace syncgrads
