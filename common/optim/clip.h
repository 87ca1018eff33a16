// Clips a gradient by its norm.

#ifndef SYNCGRADS_COMMON_OPTIM_CLIP_H_
#define SYNCGRADS_COMMON_OPTIM_CLIP_H_

#include <cstddef>

#include "absl/types/span.h"
#include "common/dtype.h"

namespace syncgrads {

// A tensor of f32 or f64 that may be changed. It has any alignment.
struct MutableTensor {
  DType dtype;
  std::byte* data;
  size_t elements;
};

// Returns the Euclidean norm of all tensors together, in float64. The tensors' sums of squares are
// added in the order given, so that replicas get the same bits. Thread-safe.
double GlobalNorm(absl::Span<const MutableTensor> tensors);

// Returns the factor by which a gradient of this norm is multiplied: most / norm if `norm` is
// finite and larger than `most`; otherwise 1.
double ClipFactor(double norm, double most);

// If the norm of all tensors together is larger than `most`, which is positive, multiplies all of
// them by most / norm; the direction stays the same (Pascanu et al. 2013, algorithm 1). If the norm
// is not finite, the tensors stay as they are. Returns the norm before clipping. Not to be called
// for the same tensors from several threads at a time.
double ClipToNorm(absl::Span<const MutableTensor> tensors, double most);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_OPTIM_CLIP_H_
