// The layer contract: tests that every layer must pass on every device.

#ifndef SYNCGRADS_TESTS_WORKER_NN_LAYER_CONTRACT_H_
#define SYNCGRADS_TESTS_WORKER_NN_LAYER_CONTRACT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "worker/nn/layers/layer.h"

namespace syncgrads {

// A layer under test.
struct LayerCase {
  std::string name;
  Shape input;
  // Whether the layer runs in training mode.
  bool training = false;
  // Whether the gradient of a batch is the mean of the gradients of its samples. False if samples
  // depend on each other, or on their places in the batch.
  bool samples_are_independent = true;
  std::function<std::unique_ptr<Layer<float>>(Device<float>&, const Shape&)> make_float;
  std::function<std::unique_ptr<Layer<double>>(Device<double>&, const Shape&)> make_double;
};

// The derivatives with respect to inputs and parameters agree with finite differences, in double.
void ExpectGradientsOfFiniteDifferences(const LayerCase& layer, Device<double>& device);

// The forward and backward results in float and double are equal up to rounding, which depends on
// how the device stores activations. The results in
// double are checked by ExpectGradientsOfFiniteDifferences.
void ExpectFloatAgreesWithDouble(const LayerCase& layer, Device<float>& device,
                                 Device<double>& reference);

// The gradient of a batch is the mean of the gradients of its samples, up to rounding, in float.
// Does nothing unless the samples are independent.
void ExpectGradientIsTheMeanOverSamples(const LayerCase& layer, Device<float>& device);

// A second run gives the same bits, also if the memory has other addresses.
void ExpectTheSameBits(const LayerCase& layer, Device<float>& device);

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_NN_LAYER_CONTRACT_H_
