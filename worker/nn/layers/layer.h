// The interface of all layers. T is float or double.

#ifndef SYNCGRADS_WORKER_NN_LAYERS_LAYER_H_
#define SYNCGRADS_WORKER_NN_LAYERS_LAYER_H_

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

// One pass of a batch through a model: its purpose and the seed of its random choices.
struct Pass {
  // Whether this is a pass of training. Some layers, such as dropout, differ in evaluation.
  bool training = false;
  // Random choices are a function of these three and the layer's name.
  uint64_t seed = 0;
  uint64_t step = 0;
  uint64_t member = 0;
};

// Called when the operations that set a parameter's gradient have been queued. Operations that
// are queued later in this pass use neither this gradient nor the parameter's values.
template <typename T>
using Ready = absl::FunctionRef<absl::Status(Parameter<T>& parameter)>;

// Called before an operation that reads a parameter's values in this pass is queued.
template <typename T>
using Needed = absl::FunctionRef<absl::Status(Parameter<T>& parameter)>;

// A differentiable function of a batch, with parameters. A batch is a matrix with one row for
// each sample; the shapes give the layout of a row. Layers compute with the operations of their
// device only. These are queued; an error of the device is in the status of its memory.
//
// The same inputs and parameters give the same bits on the same machine. Not thread-safe.
template <typename T>
class Layer {
 public:
  // `device` must outlive the layer.
  Layer(std::string name, Device<T>& device, const Shape& input, const Shape& output)
      : device_(device), name_(std::move(name)), input_shape_(input), output_shape_(output) {}
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  Device<T>& device() { return device_; }
  const std::string& name() const { return name_; }
  const Shape& input_shape() const { return input_shape_; }
  const Shape& output_shape() const { return output_shape_; }

  // The parameters that training changes. The pointers are valid as long as the layer.
  virtual std::vector<Parameter<T>*> parameters() { return {}; }
  // State of the model that is not trained by gradients, such as running statistics. Each worker
  // has its own.
  virtual std::vector<Parameter<T>*> states() { return {}; }

  // Layers that need statistics over all workers use `exchange` from now on; it must outlive its
  // use. Null: each worker uses its own batch only.
  virtual void SetExchange(BatchExchange* /*exchange*/) {}

  // Sets the host's values of the parameters to their initial values, which are a function of
  // `seed` and each parameter's name.
  virtual void Initialise(uint64_t /*seed*/) {}

  // The result is valid until the next call. It may be `input` itself.
  virtual const DeviceMatrix<T>& Forward(const Pass& pass, const DeviceMatrix<T>& input) = 0;

  // A forward pass that calls `needed` for each parameter. Layers that contain layers call it as
  // late as possible. Stops at the first error of `needed` and returns it; the result is never
  // null.
  virtual absl::StatusOr<const DeviceMatrix<T>*> ForwardEach(const Pass& pass,
                                                             const DeviceMatrix<T>& input,
                                                             Needed<T> needed) {
    for (Parameter<T>* parameter : parameters()) {
      const absl::Status status = needed(*parameter);
      if (!status.ok()) return status;
    }
    return &Forward(pass, input);
  }

  // Computes the derivatives of a loss for the batch of the last Forward. `input` must be the
  // input of that call, and may be the very matrix that the call returned. `output_gradient` is
  // the derivative of the loss by the outputs and may be overwritten. Sets the gradient of each
  // parameter and, if it is not null, `input_gradient`.
  virtual void Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                        DeviceMatrix<T>* input_gradient) = 0;

  // A backward pass that calls `ready` for each parameter. Layers that contain layers call it as
  // soon as each of these is done. Stops at the first error of `ready` and returns it.
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

#endif  // SYNCGRADS_WORKER_NN_LAYERS_LAYER_H_
