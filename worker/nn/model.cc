#include "worker/nn/model.h"

#include <utility>

namespace syncgrads {

template <typename T>
Model<T>::Model(std::unique_ptr<Chain<T>> chain)
    : chain_(std::move(chain)), parameters_(chain_->parameters()), states_(chain_->states()) {
  for (size_t i = 0; i < parameters_.size(); ++i) positions_[parameters_[i]] = i;
}

template <typename T>
void Model<T>::Initialise(uint64_t seed) {
  chain_->Initialise(seed);
}

template <typename T>
const Matrix<T>& Model<T>::Forward(const Pass& pass, const Matrix<T>& input) {
  return chain_->Forward(pass, input);
}

template <typename T>
absl::Status Model<T>::Backward(const Matrix<T>& input, Matrix<T>& output_gradient,
                                absl::FunctionRef<absl::Status(size_t parameter)> ready) {
  return chain_->BackwardEach(input, output_gradient, nullptr, [&](Parameter<T>& parameter) {
    return ready(positions_.at(&parameter));
  });
}

template class Model<float>;
template class Model<double>;

}  // namespace syncgrads
