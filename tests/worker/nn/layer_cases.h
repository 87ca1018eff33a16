// The built-in layers, as test cases for every device.

#ifndef SYNCGRADS_TESTS_WORKER_NN_LAYER_CASES_H_
#define SYNCGRADS_TESTS_WORKER_NN_LAYER_CASES_H_

#include <string>
#include <vector>

#include "tests/worker/nn/layer_contract.h"

namespace syncgrads {

// Makes a test case. `make` creates the layer for any T.
template <typename Make>
LayerCase Case(const std::string& name, const Shape& input, Make make) {
  LayerCase layer;
  layer.name = name;
  layer.input = input;
  layer.make_float = [make](Device<float>& device, const Shape& shape) {
    return make(device, shape);
  };
  layer.make_double = [make](Device<double>& device, const Shape& shape) {
    return make(device, shape);
  };
  return layer;
}

// Returns each kind of layer, with options and shapes that lead to different computations.
std::vector<LayerCase> AllLayerCases();

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_NN_LAYER_CASES_H_
