// What holds for every layer on every device.

#ifndef SYNCGRADS_TESTS_WORKER_NN_LAYER_CONTRACT_H_
#define SYNCGRADS_TESTS_WORKER_NN_LAYER_CONTRACT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "worker/nn/layer.h"

namespace syncgrads {

// A layer to be tried.
struct LayerCase {
  std::string name;
  Shape input;
  // Whether the gradient of a batch is the mean of its samples' in this pass: not
  // where samples depend on each other, or on their place in the batch.
  bool training = false;
  bool samples_are_independent = true;
  std::function<std::unique_ptr<Layer<float>>(Device<float>&, const Shape&)> make_float;
  std::function<std::unique_ptr<Layer<double>>(Device<double>&, const Shape&)> make_double;
};

// The derivatives by inputs and parameters agree with finite differences, in
// double.
void ExpectGradientsOfFiniteDifferences(const LayerCase& layer, Device<double>& device);

// In float and double, forward and backward, the results are equal within
// rounding; those in double have been checked.
void ExpectFloatAgreesWithDouble(const LayerCase& layer, Device<float>& device,
                                 Device<double>& reference);

// T16 of the systems that are compared with: within 1e-4, in float.
void ExpectGradientIsTheMeanOverSamples(const LayerCase& layer, Device<float>& device);

// Twice the same bits, also when the memory lies elsewhere.
void ExpectTheSameBits(const LayerCase& layer, Device<float>& device);

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_NN_LAYER_CONTRACT_H_
