// A named array of a model: what training changes, or what it needs besides.

#ifndef SYNCGRADS_WORKER_NN_PARAMETER_H_
#define SYNCGRADS_WORKER_NN_PARAMETER_H_

#include <cstdint>
#include <string>
#include <utility>
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

  // A vector of `count` numbers, or an array of `shape` as a matrix with a row for
  // each index of its first dimension; of zeros. Without `trained`, no gradient.
  static Parameter Vector(std::string name, int64_t count, bool trained = true) {
    return Make(std::move(name), {count}, 1, count, trained);
  }
  static Parameter Array(std::string name, std::vector<int64_t> shape) {
    int64_t columns = 1;
    for (size_t i = 1; i < shape.size(); ++i) columns *= shape[i];
    const int64_t rows = shape[0];
    Parameter parameter = Make(std::move(name), std::move(shape), rows, columns, true);
    parameter.penalised = true;
    return parameter;
  }

  TensorSpec spec() const { return {name, DTypeOf<T>::value, shape}; }
  size_t bytes() const { return values.size() * sizeof(T); }

 private:
  static Parameter Make(std::string name, std::vector<int64_t> shape, int64_t rows, int64_t columns,
                        bool trained) {
    Parameter parameter;
    parameter.name = std::move(name);
    parameter.shape = std::move(shape);
    parameter.values = Matrix<T>::Zero(rows, columns);
    if (trained) parameter.gradient = Matrix<T>::Zero(rows, columns);
    return parameter;
  }
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_PARAMETER_H_
