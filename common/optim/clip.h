// Clipping a gradient by its norm.

#ifndef SYNCGRADS_COMMON_OPTIM_CLIP_H_
#define SYNCGRADS_COMMON_OPTIM_CLIP_H_

#include <cstddef>

#include "absl/types/span.h"
#include "common/dtype.h"

namespace syncgrads {

// A tensor of f32 or f64 that may be changed, aligned in any way.
struct MutableTensor {
  DType dtype;
  std::byte* data;
  size_t elements;
};

// The Euclidean norm of all tensors together, in float64. The sums of their squares
// are added in the order given, so that replicas get the same bits. Thread-safe.
double GlobalNorm(absl::Span<const MutableTensor> tensors);

// What a gradient of this norm is multiplied by: most / norm where it is more than
// `most`, and 1 otherwise, or if it is not finite.
double ClipFactor(double norm, double most);

// Multiplies all of them by most / norm where their norm is more than `most`, which
// is positive: its direction stays (Pascanu et al. 2013, algorithm 1). A norm that is
// not finite leaves them as they are. Returns the norm as it was. Thread-safe.
double ClipToNorm(absl::Span<const MutableTensor> tensors, double most);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_OPTIM_CLIP_H_
