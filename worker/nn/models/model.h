// A model: layers, and the computation of their gradients from batches.

#ifndef SYNCGRADS_WORKER_NN_MODELS_MODEL_H_
#define SYNCGRADS_WORKER_NN_MODELS_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/nn/device_spans.h"
#include "worker/nn/layers/chain.h"
#include "worker/nn/loss.h"
#include "worker/nn/models/model_input.h"
#include "worker/nn/parameter_arrays.h"

namespace syncgrads {

// A chain of layers, which it owns. Batches and the parameters' `values` are on the host; the
// layers compute on the device.
//
// Not thread-safe.
template <typename T>
class Model {
 public:
  explicit Model(std::unique_ptr<Chain<T>> chain);

  const Shape& input_shape() const { return chain_->input_shape(); }
  int64_t outputs() const { return chain_->output_shape().size(); }
  absl::Span<const std::unique_ptr<Layer<T>>> layers() const { return chain_->layers(); }

  // Parameters that are trained, frozen parameters, and states; each from the first layer to the
  // last.
  absl::Span<Parameter<T>* const> parameters() const { return parameters_; }
  absl::Span<Parameter<T>* const> frozen() const { return frozen_; }
  absl::Span<Parameter<T>* const> states() const { return states_; }

  // Moves each parameters()[i] with frozen[i] to frozen(). No gradient is computed for layers
  // before the first parameter that is left.
  void Freeze(const std::vector<bool>& frozen);

  Device<T>& device() { return chain_->device(); }
  // The first error of the device.
  absl::Status status() { return device().memory().status(); }

  // Sets the exchange of layers that need statistics over all workers; see Layer::SetExchange.
  void SetExchange(BatchExchange* exchange) { chain_->SetExchange(exchange); }

  // Sets the trace that passes are recorded in, and the times of an accelerator when TakeLoss is
  // called; see Chain::SetTrace.
  void SetTrace(Trace* trace) {
    trace_ = trace;
    chain_->SetTrace(trace);
  }

  // Sets all parameters and states to their initial values, on host and device.
  void Initialise(uint64_t seed);

  // Copies all of the host's parameters and states to the device and waits for it. Must be called
  // after they have changed on the host. Errors: those of DeviceMemory::Wait.
  absl::Status Upload();
  // Copies the device's states, which layers change, to the host and waits for it. Errors: those
  // of DeviceMemory::Wait.
  absl::Status FetchStates();

  // Runs the layers and waits for the outputs, which are valid until the next call. If Backward
  // is called, `input` must stay valid until it has returned. If the device fails, the outputs
  // are unspecified and status() is the error.
  const Matrix<T>& Forward(const Pass& pass, const Matrix<T>& input);

  // Queues the computation of the gradients for the batch of the last Forward, from the last
  // layer to the first. `output_gradient` is the derivative of the loss by the outputs. When a
  // layer is done, `ready(i)` is called for each of its parameters()[i]; see Ready in layer.h.
  // Stops at the first error of `ready` and returns it; otherwise returns the error of the
  // device.
  absl::Status Backward(const Matrix<T>& output_gradient,
                        absl::FunctionRef<absl::Status(size_t parameter)> ready);

  // Prefetch: uploads the input of the next ComputeGradients in parallel with the caller and with
  // queued operations. `input` must not change until DeviceMemory::AwaitRead has returned. May be
  // called at most once between two calls of TakeLoss. Does nothing if the device computes in the
  // host's memory, or has no room for a second input.
  void BringAhead(const ModelInput<T>& input);
  // Drops the prefetched input, because the next ComputeGradients has another one. Frees the
  // memory that it was in.
  void ForgetAhead();

  // Queues the forward pass, the loss divided by `divisor`, and the backward pass. Does not wait
  // for the device; but with a custom loss it waits for the outputs. `input` is ignored if
  // BringAhead has uploaded it. For `targets` see SumOfLosses.
  // `needed(i)` is called once for each parameters()[i], before a layer reads it; `ready(i)`
  // when its gradient is queued.
  //
  // Stops at the first error of `needed` or `ready` and returns it. Other errors: those of the
  // device and of ComputeCustomLoss.
  absl::Status ComputeGradients(const Pass& pass, const ModelInput<T>& input, const Loss& loss,
                                absl::Span<const double> targets, double divisor,
                                absl::FunctionRef<absl::Status(size_t parameter)> needed,
                                absl::FunctionRef<absl::Status(size_t parameter)> ready);

  // Queues the addition of the derivative of the l2 penalty to the parameter's gradient on the
  // device, if the parameter is penalised. The next TakeLoss includes the penalty.
  void Penalise(const Loss& loss, size_t parameter);

  // Returns the sum of the losses of all ComputeGradients since the last call, each divided by
  // its divisor, and of the penalties of all Penalise. Waits for the device. Errors: those of
  // DeviceMemory::DownloadNow.
  absl::StatusOr<double> TakeLoss();

 private:
  absl::Status QueueBackward(absl::FunctionRef<absl::Status(size_t parameter)> ready);

  const std::unique_ptr<Chain<T>> chain_;
  std::vector<Parameter<T>*> parameters_;
  std::vector<Parameter<T>*> frozen_;
  const std::vector<Parameter<T>*> states_;
  ParameterArrays<T> parameter_arrays_;
  ParameterArrays<T> state_arrays_;
  std::unordered_map<const Parameter<T>*, size_t> positions_;  // indices in parameters_
  DeviceInput<T> input_;
  DeviceInput<T> ahead_;
  bool is_ahead_ = false;
  Trace* trace_ = nullptr;
  DeviceSpans device_spans_;
  Matrix<T> outputs_;
  DeviceMatrix<T> output_gradient_;
  DeviceArray<double> targets_;
  DeviceArray<double> total_loss_;  // one number
  bool has_penalties_ = false;      // whether TakeLoss must take penalties from the device
  double custom_loss_ = 0;          // the sum of custom losses, computed on the host
};

extern template class Model<float>;
extern template class Model<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_MODELS_MODEL_H_
