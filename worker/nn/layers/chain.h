// Layers in sequence.

#ifndef SYNCGRADS_WORKER_NN_LAYERS_CHAIN_H_
#define SYNCGRADS_WORKER_NN_LAYERS_CHAIN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "worker/base/trace.h"
#include "worker/nn/device_spans.h"
#include "worker/nn/gradient_buffers.h"
#include "worker/nn/layers/layer.h"

namespace syncgrads {

// Runs layers one after the other and owns them.
template <typename T>
class Chain : public Layer<T> {
 public:
  // Each layer must take the output shape of the layer before it. A chain without layers returns
  // its input. The chains of a model share `buffers`; null: the chain has its own.
  Chain(const std::string& name, Device<T>& device, const Shape& input,
        std::vector<std::unique_ptr<Layer<T>>> layers,
        std::shared_ptr<GradientBuffers<T>> buffers = nullptr);

  absl::Span<const std::unique_ptr<Layer<T>>> layers() const { return layers_; }
  GradientBuffers<T>& buffers() { return *buffers_; }

  std::vector<Parameter<T>*> parameters() override;
  std::vector<Parameter<T>*> states() override;
  void SetExchange(BatchExchange* exchange) override;
  // Records the forward and backward passes of the layers in `trace` from now on; null turns
  // this off. `trace` must outlive its use.
  void SetTrace(Trace* trace) { trace_ = trace; }
  // Has the device's times for the layers noted in `spans`, which outlives its use.
  void SetDeviceSpans(DeviceSpans* spans) { device_spans_ = spans; }
  void Initialise(uint64_t seed) override;
  const DeviceMatrix<T>& Forward(const Pass& pass, const DeviceMatrix<T>& input) override;
  absl::StatusOr<const DeviceMatrix<T>*> ForwardEach(const Pass& pass, const DeviceMatrix<T>& input,
                                                     Needed<T> needed) override;
  void Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                DeviceMatrix<T>* input_gradient) override;
  // Goes from the last layer to the first. If the number of layers is even, `input_gradient` may be
  // `output_gradient`. Otherwise the layers do not use `output_gradient` after the last layer has.
  absl::Status BackwardEach(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                            DeviceMatrix<T>* input_gradient, Ready<T> ready) override;

 private:
  // Returns the index of the first layer with a parameter that is trained; if there is none, the
  // number of layers.
  size_t FirstTrained() const;

  void NoteDeviceTime(const char* name) {
    if (device_spans_ != nullptr) device_spans_->End(name);
  }

  std::vector<std::unique_ptr<Layer<T>>> layers_;
  Trace* trace_ = nullptr;
  DeviceSpans* device_spans_ = nullptr;
  // For each layer: the names of its passes in traces, and those of the device's times for them.
  std::vector<const char*> forward_names_, backward_names_;
  std::vector<const char*> device_forward_names_, device_backward_names_;
  // The input of each layer in the last Forward.
  std::vector<const DeviceMatrix<T>*> layer_inputs_;
  const std::shared_ptr<GradientBuffers<T>> buffers_;
};

extern template class Chain<float>;
extern template class Chain<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_LAYERS_CHAIN_H_
