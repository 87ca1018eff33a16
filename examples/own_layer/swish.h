// A layer of one's own: x * sigmoid(slope * x) (Ramachandran, Zoph and Le 2017).

#ifndef SYNCGRADS_EXAMPLES_OWN_LAYER_SWISH_H_
#define SYNCGRADS_EXAMPLES_OWN_LAYER_SWISH_H_

#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "worker/nn/layers/custom_layers.h"

namespace syncgrads {

// Job files say `custom { kind: "swish" settings { key: "slope" value: 1 } }`.
template <typename T>
class Swish : public Layer<T> {
 public:
  static absl::StatusOr<std::unique_ptr<Layer<T>>> Create(const CustomLayerOptions& options,
                                                          Device<T>& device) {
    const auto slope = options.settings.find("slope");
    if (slope == options.settings.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer \"", options.name, "\" has no setting \"slope\""));
    }
    if (!device.memory().is_host()) {
      return absl::UnimplementedError(absl::StrCat(
          "layer \"", options.name, "\" computes on the processor only: --device=cpu"));
    }
    return std::make_unique<Swish>(options, static_cast<T>(slope->second), device);
  }

  Swish(const CustomLayerOptions& options, T slope, Device<T>& device)
      : Layer<T>(options.name, device, options.input, options.input),
        slope_(slope),
        output_(device) {}

  const DeviceMatrix<T>& Forward(const Pass&, const DeviceMatrix<T>& input) override {
    output_.Resize(input.rows(), input.cols());
    output_.host() = input.host().unaryExpr([this](T x) { return x * Sigmoid(x); });
    return output_;
  }

  void Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                DeviceMatrix<T>* input_gradient) override {
    if (input_gradient == nullptr) return;
    input_gradient->Resize(input.rows(), input.cols());
    input_gradient->host() =
        output_gradient.host().cwiseProduct(input.host().unaryExpr([this](T x) {
          const T sigmoid = Sigmoid(x);
          return sigmoid + slope_ * x * sigmoid * (1 - sigmoid);
        }));
  }

 private:
  T Sigmoid(T x) const { return 1 / (1 + std::exp(-slope_ * x)); }

  const T slope_;
  DeviceMatrix<T> output_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_EXAMPLES_OWN_LAYER_SWISH_H_
