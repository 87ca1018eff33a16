// A named array of a model: what training changes, or what it needs besides.

#ifndef SYNCGRADS_WORKER_NN_PARAMETER_H_
#define SYNCGRADS_WORKER_NN_PARAMETER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "common/layout.h"
#include "worker/nn/matrix.h"

namespace syncgrads {

template <typename T>
struct Parameter {
  // "dense1/kernel"
  std::string name;
  // As it is registered and written to files; `values` has as many elements, in
  // row-major order.
  std::vector<int64_t> shape;
  Matrix<T> values;
  // Of the loss of the last batch. Empty for what is not trained.
  Matrix<T> gradient;
  // Whether the l2 penalty counts it.
  bool penalised = false;

  TensorSpec spec() const { return {name, DTypeOf<T>::value, shape}; }
  size_t bytes() const { return values.size() * sizeof(T); }
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_PARAMETER_H_
