// A chain of layers.

#ifndef SYNCGRADS_WORKER_NN_MODEL_H_
#define SYNCGRADS_WORKER_NN_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/nn/layer.h"

namespace syncgrads {

// Not thread-safe.
template <typename T>
class Model {
 public:
  // Each layer takes as many inputs as the one before has outputs; there is at
  // least one.
  explicit Model(std::vector<std::unique_ptr<Layer<T>>> layers);

  int64_t inputs() const { return layers_.front()->inputs(); }
  int64_t outputs() const { return layers_.back()->outputs(); }
  absl::Span<const std::unique_ptr<Layer<T>>> layers() const { return layers_; }

  // From the first layer to the last.
  absl::Span<Parameter<T>* const> parameters() const { return parameters_; }
  absl::Span<Parameter<T>* const> states() const { return states_; }

  void Initialise(uint64_t seed);

  // The result stays valid until the next call. `input` must stay until Backward
  // has been called, if it is.
  const Matrix<T>& Forward(const Matrix<T>& input);

  // The gradients of a loss for the batch of the last Forward, from the last layer
  // to the first. When a layer is done, `ready(i)` is called for each of its
  // parameters()[i]: their gradients are set, and neither they nor the values are
  // looked at again. `output_gradient` is overwritten. Returns the first error of
  // `ready`, at once.
  absl::Status Backward(Matrix<T>& output_gradient,
                        absl::FunctionRef<absl::Status(size_t parameter)> ready);

 private:
  std::vector<std::unique_ptr<Layer<T>>> layers_;
  std::vector<Parameter<T>*> parameters_;
  std::vector<Parameter<T>*> states_;
  // The layer's parameters are those from first_parameter_[layer] to below
  // first_parameter_[layer + 1].
  std::vector<size_t> first_parameter_;
  // What went into each layer in the last Forward.
  std::vector<const Matrix<T>*> layer_inputs_;
  Matrix<T> gradients_[2];
};

extern template class Model<float>;
extern template class Model<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_MODEL_H_
