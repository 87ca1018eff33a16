// The layers that come with the program, to be tried on every device.

#ifndef SYNCGRADS_TESTS_WORKER_NN_LAYER_CASES_H_
#define SYNCGRADS_TESTS_WORKER_NN_LAYER_CASES_H_

#include <string>
#include <vector>

#include "tests/worker/nn/layer_contract.h"

namespace syncgrads {

// `make` makes the layer for any T.
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

// Each kind of layer, with options and shapes that differ in what is computed.
std::vector<LayerCase> AllLayerCases();

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_NN_LAYER_CASES_H_
