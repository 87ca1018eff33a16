// What every layer of a model can do. T is float or double.

#ifndef SYNCGRADS_WORKER_NN_LAYER_H_
#define SYNCGRADS_WORKER_NN_LAYER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/nn/batch_exchange.h"
#include "worker/nn/device.h"
#include "worker/nn/device_matrix.h"
#include "worker/nn/parameter.h"
#include "worker/nn/shape.h"

namespace syncgrads {

// What a batch goes through a model for.
struct Pass {
  // Whether the layers that do something else in training do that.
  bool training = false;
  // What random choices depend on, besides the layer's name: the same four give
  // the same choices.
  uint64_t seed = 0;
  uint64_t step = 0;
  uint64_t member = 0;
};

// Called when what sets a parameter's gradient is queued, and nothing that is queued
// later in this pass looks at it or at the values.
template <typename T>
using Ready = absl::FunctionRef<absl::Status(Parameter<T>& parameter)>;

// Called before anything is queued that looks at a parameter's values in this pass.
template <typename T>
using Needed = absl::FunctionRef<absl::Status(Parameter<T>& parameter)>;

// A differentiable function of a batch, with parameters. A batch is a matrix with
// a row for each sample, which is as the shapes say. Layers compute with their
// device's operations only, which are queued; what fails on the device is in its
// memory's status.
//
// The same inputs and parameters give the same bits on the same machine.
// Not thread-safe.
template <typename T>
class Layer {
 public:
  // `device` outlives the layer.
  Layer(std::string name, Device<T>& device, const Shape& input, const Shape& output)
      : device_(device), name_(std::move(name)), input_shape_(input), output_shape_(output) {}
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  Device<T>& device() { return device_; }
  const std::string& name() const { return name_; }
  const Shape& input_shape() const { return input_shape_; }
  const Shape& output_shape() const { return output_shape_; }

  // What training changes; the pointers live as long as the layer.
  virtual std::vector<Parameter<T>*> parameters() { return {}; }
  // What belongs to the model but is not trained by gradients. It is each
  // worker's own.
  virtual std::vector<Parameter<T>*> states() { return {}; }

  // Those layers that look at whole batches across workers do so through `exchange` from
  // now on, which outlives the layer's use; null: each worker by itself.
  virtual void SetExchange(BatchExchange* /*exchange*/) {}

  // Sets the parameters to their initial values, a function of `seed` and each
  // one's name, on the host.
  virtual void Initialise(uint64_t /*seed*/) {}

  // The result stays valid until the next call.
  virtual const DeviceMatrix<T>& Forward(const Pass& pass, const DeviceMatrix<T>& input) = 0;

  // As Forward, and calls `needed` for each parameter; the result is not null. Layers made
  // of layers do so as late as they can. Returns the first error of `needed`, at once.
  virtual absl::StatusOr<const DeviceMatrix<T>*> ForwardEach(const Pass& pass,
                                                             const DeviceMatrix<T>& input,
                                                             Needed<T> needed) {
    for (Parameter<T>* parameter : parameters()) {
      const absl::Status status = needed(*parameter);
      if (!status.ok()) return status;
    }
    return &Forward(pass, input);
  }

  // The derivatives of a loss for the batch of the last Forward, whose `input` is
  // given again and may be what the layer returned there. `output_gradient` is the
  // loss's derivative by the outputs; it may be overwritten. Sets each parameter's
  // gradient and, unless it is null, `input_gradient`.
  virtual void Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                        DeviceMatrix<T>* input_gradient) = 0;

  // As Backward, and calls `ready` for each parameter. Layers made of layers do so
  // as soon as each is done. Returns the first error of `ready`, at once.
  virtual absl::Status BackwardEach(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                                    DeviceMatrix<T>* input_gradient, Ready<T> ready) {
    Backward(input, output_gradient, input_gradient);
    for (Parameter<T>* parameter : parameters()) {
      const absl::Status status = ready(*parameter);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 protected:
  Device<T>& device_;

 private:
  const std::string name_;
  const Shape input_shape_;
  const Shape output_shape_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_LAYER_H_
