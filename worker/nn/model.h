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
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/nn/chain.h"
#include "worker/nn/loss.h"

namespace syncgrads {

// Batches and parameters' `values` are on the host here; layers compute on the
// device.
//
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

  Device<T>& device() { return chain_->device(); }
  // Of the device: the first error.
  absl::Status status() { return device().memory().status(); }

  // As Layer::SetExchange.
  void SetExchange(BatchExchange* exchange) { chain_->SetExchange(exchange); }

  // As Chain::SetTrace.
  void SetTrace(Trace* trace) { chain_->SetTrace(trace); }

  // Sets parameters and states, on host and device.
  void Initialise(uint64_t seed);

  // Gives the device the host's parameters and states, once those have changed.
  // Waits. Errors: as DeviceMemory::Wait.
  absl::Status Upload();
  // Gives the host the device's states, which layers change. Errors: likewise.
  absl::Status FetchStates();

  // Waits for the outputs, which stay valid until the next call. `input` must stay
  // until Backward has been called, if it is. If the device fails, status() says so
  // and the outputs are unspecified.
  const Matrix<T>& Forward(const Pass& pass, const Matrix<T>& input);

  // The gradients of a loss for the batch of the last Forward, from the last layer
  // to the first; `output_gradient` is the loss's derivative by the outputs. When a
  // layer is done, `ready(i)` is called for each of its parameters()[i], see Ready.
  // Returns the first error of `ready`, at once, or else of the device.
  absl::Status Backward(const Matrix<T>& output_gradient,
                        absl::FunctionRef<absl::Status(size_t parameter)> ready);

  // Sends the input of the next ComputeGradients on its way to the device, beside what is
  // queued; at most once between two calls of TakeLoss. Nothing if the device computes in
  // the host's memory, or has no room for a second input.
  void BringAhead(const Matrix<T>& input);
  // The next ComputeGradients has another input after all. Gives the second one's memory
  // back.
  void ForgetAhead();

  // Forward, the loss divided by `divisor`, and Backward, queued one after the
  // other: nothing is waited for, but for the outputs by a custom loss. `targets` as
  // SumOfLosses, `input` as Forward, or what was brought ahead, `ready` and errors as Backward or
  // ComputeCustomLoss. Before a layer looks at parameters()[i], `needed(i)` is called, once for
  // each; its first error is returned, at once.
  absl::Status ComputeGradients(const Pass& pass, const Matrix<T>& input, const Loss& loss,
                                absl::Span<const double> targets, double divisor,
                                absl::FunctionRef<absl::Status(size_t parameter)> needed,
                                absl::FunctionRef<absl::Status(size_t parameter)> ready);

  // The sum of the losses of all ComputeGradients since the last call, divided as
  // they were. Waits for it. Errors: as DeviceMemory::DownloadNow.
  absl::StatusOr<double> TakeLoss();

 private:
  absl::Status QueueBackward(absl::FunctionRef<absl::Status(size_t parameter)> ready);

  const std::unique_ptr<Chain<T>> chain_;
  const std::vector<Parameter<T>*> parameters_;
  const std::vector<Parameter<T>*> states_;
  std::unordered_map<const Parameter<T>*, size_t> positions_;  // in parameters_
  DeviceMatrix<T> input_;
  DeviceMatrix<T> ahead_;
  bool is_ahead_ = false;
  Matrix<T> outputs_;
  DeviceMatrix<T> output_gradient_;
  DeviceMatrix<double> targets_;
  DeviceMatrix<double> losses_;      // of the rows
  DeviceMatrix<double> total_loss_;  // one number
  double custom_loss_ = 0;           // ... and what is computed on the host
};

extern template class Model<float>;
extern template class Model<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_MODEL_H_
