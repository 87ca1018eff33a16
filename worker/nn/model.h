// A chain of layers, and what it is trained by.

#ifndef SYNCGRADS_WORKER_NN_MODEL_H_
#define SYNCGRADS_WORKER_NN_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/nn/chain.h"

namespace syncgrads {

// Not thread-safe.
template <typename T>
class Model {
 public:
  explicit Model(std::unique_ptr<Chain<T>> chain);

  const Shape& input_shape() const { return chain_->input_shape(); }
  int64_t outputs() const { return chain_->output_shape().size(); }
  absl::Span<const std::unique_ptr<Layer<T>>> layers() const { return chain_->layers(); }

  // From the first layer to the last.
  absl::Span<Parameter<T>* const> parameters() const { return parameters_; }
  absl::Span<Parameter<T>* const> states() const { return states_; }

  void Initialise(uint64_t seed);

  // The result stays valid until the next call. `input` must stay until Backward
  // has been called, if it is.
  const Matrix<T>& Forward(const Pass& pass, const Matrix<T>& input);

  // The gradients of a loss for the batch of the last Forward, whose `input` is
  // given again, from the last layer to the first. When a layer is done, `ready(i)` is called for
  // each of its parameters()[i]: their gradients are set, and neither they nor the values are
  // looked at again. `output_gradient` is overwritten. Returns the first error of
  // `ready`, at once.
  absl::Status Backward(const Matrix<T>& input, Matrix<T>& output_gradient,
                        absl::FunctionRef<absl::Status(size_t parameter)> ready);

 private:
  const std::unique_ptr<Chain<T>> chain_;
  const std::vector<Parameter<T>*> parameters_;
  const std::vector<Parameter<T>*> states_;
  std::unordered_map<const Parameter<T>*, size_t> positions_;  // in parameters_
};

extern template class Model<float>;
extern template class Model<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_MODEL_H_
