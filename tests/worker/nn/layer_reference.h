// Reference implementations of the layers: plain loops in double precision.

#ifndef SYNCGRADS_TESTS_WORKER_NN_LAYER_REFERENCE_H_
#define SYNCGRADS_TESTS_WORKER_NN_LAYER_REFERENCE_H_

#include <vector>

#include "worker/nn/window.h"

namespace syncgrads::reference {

using Numbers = std::vector<double>;

// `weights` has the shape [outputs, channels, height, width]. Images are laid out as Shape
// describes.
Numbers Convolve(const Window& window, int64_t samples, int64_t outputs, const Numbers& input,
                 const Numbers& weights);

enum class Pooling { kMax, kAverage };
Numbers Pool(const Window& window, int64_t samples, Pooling pooling, const Numbers& input);

// Normalises each of `channels` columns with the batch's own mean and variance.
Numbers NormaliseBatch(int64_t rows, int64_t channels, double epsilon, const Numbers& weight,
                       const Numbers& bias, const Numbers& input);

}  // namespace syncgrads::reference

#endif  // SYNCGRADS_TESTS_WORKER_NN_LAYER_REFERENCE_H_
