#include "worker/nn/window_input.h"

namespace syncgrads {

template <typename T>
WindowInput<T>::WindowInput(Device<T>& device, const Shape& input)
    : Layer<T>("window_input", device, input, input),
      minimum_(Parameter<T>::Vector("window_input/minimum", input.size(), /*trained=*/false)),
      maximum_(Parameter<T>::Vector("window_input/maximum", input.size(), /*trained=*/false)) {}

template <typename T>
T WindowInput<T>::ScaleOf(int64_t feature) const {
  const T width = maximum_.values(0, feature) - minimum_.values(0, feature);
  return width > 0 ? 2 / width : T{0};
}

template <typename T>
const Matrix<T>& WindowInput<T>::Forward(const Pass&, const Matrix<T>& input) {
  output_.resize(input.rows(), input.cols());
  for (Eigen::Index column = 0; column < input.cols(); ++column) {
    const T scale = ScaleOf(column);
    const T offset = scale > 0 ? T{-1} : T{0};
    for (Eigen::Index row = 0; row < input.rows(); ++row) {
      output_(row, column) = (input(row, column) - minimum_.values(0, column)) * scale + offset;
    }
  }
  return output_;
}

template <typename T>
void WindowInput<T>::Backward(const Matrix<T>&, Matrix<T>& output_gradient,
                              Matrix<T>* input_gradient) {
  if (input_gradient == nullptr) return;
  *input_gradient = output_gradient;
  for (Eigen::Index column = 0; column < input_gradient->cols(); ++column) {
    input_gradient->col(column) *= ScaleOf(column);
  }
}

template <typename T>
void WindowInput<T>::SetRanges(absl::Span<const double> minimum, absl::Span<const double> maximum) {
  for (int64_t i = 0; i < minimum_.values.cols(); ++i) {
    minimum_.values(0, i) = static_cast<T>(minimum[i]);
    maximum_.values(0, i) = static_cast<T>(maximum[i]);
  }
}

template class WindowInput<float>;
template class WindowInput<double>;

}  // namespace syncgrads
