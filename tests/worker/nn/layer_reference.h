// What layers compute, written down plainly in double precision.

#ifndef SYNCGRADS_TESTS_WORKER_NN_LAYER_REFERENCE_H_
#define SYNCGRADS_TESTS_WORKER_NN_LAYER_REFERENCE_H_

#include <vector>

#include "worker/nn/window.h"

namespace syncgrads::reference {

using Numbers = std::vector<double>;

// `weights` are [outputs, channels, height, width]; images as Shape says.
Numbers Convolve(const Window& window, int64_t samples, int64_t outputs, const Numbers& input,
                 const Numbers& weights);

enum class Pooling { kMax, kAverage };
Numbers Pool(const Window& window, int64_t samples, Pooling pooling, const Numbers& input);

// Normalises each of `channels` columns with the batch's own moments.
Numbers NormaliseBatch(int64_t rows, int64_t channels, double epsilon, const Numbers& weight,
                       const Numbers& bias, const Numbers& input);

}  // namespace syncgrads::reference

#endif  // SYNCGRADS_TESTS_WORKER_NN_LAYER_REFERENCE_H_
