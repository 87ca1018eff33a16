// A residual block (He et al. 2016): activation(body(x) + shortcut(x)).

#ifndef SYNCGRADS_WORKER_NN_LAYERS_RESIDUAL_H_
#define SYNCGRADS_WORKER_NN_LAYERS_RESIDUAL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/nn/activation.h"
#include "worker/nn/layers/batch_norm.h"
#include "worker/nn/layers/chain.h"

namespace syncgrads {

// Runs two chains on the same input, adds their outputs, and owns both.
template <typename T>
class Residual : public Layer<T> {
 public:
  // A shortcut without layers returns its input. InvalidArgument if body and shortcut have
  // different output shapes; the message names the layer and both shapes.
  static absl::StatusOr<std::unique_ptr<Residual>> Create(const std::string& name,
                                                          Device<T>& device,
                                                          std::unique_ptr<Chain<T>> body,
                                                          std::unique_ptr<Chain<T>> shortcut,
                                                          Activation activation);

  std::vector<Parameter<T>*> parameters() override;
  std::vector<Parameter<T>*> states() override;
  void SetExchange(BatchExchange* exchange) override;
  void Initialise(uint64_t seed) override;
  const DeviceMatrix<T>& Forward(const Pass& pass, const DeviceMatrix<T>& input) override;
  absl::StatusOr<const DeviceMatrix<T>*> ForwardEach(const Pass& pass, const DeviceMatrix<T>& input,
                                                     Needed<T> needed) override;
  void Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                DeviceMatrix<T>* input_gradient) override;
  absl::Status BackwardEach(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                            DeviceMatrix<T>* input_gradient, Ready<T> ready) override;

 private:
  Residual(const std::string& name, Device<T>& device, std::unique_ptr<Chain<T>> body,
           std::unique_ptr<Chain<T>> shortcut, Activation activation);

  const std::unique_ptr<Chain<T>> body_;
  const std::unique_ptr<Chain<T>> shortcut_;
  // The normalisation at the end of the body, which adds the shortcut and applies the activation.
  // Null if the body ends in another way; then this layer does so.
  BatchNorm<T>* const norm_;
  const Activation activation_;
  DeviceMatrix<T> output_;  // without norm_ only
};

extern template class Residual<float>;
extern template class Residual<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_LAYERS_RESIDUAL_H_
