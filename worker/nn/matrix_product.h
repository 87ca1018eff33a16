// Matrix products, which devices make dense layers and convolutions of. Private to devices.

#ifndef SYNCGRADS_WORKER_NN_MATRIX_PRODUCT_H_
#define SYNCGRADS_WORKER_NN_MATRIX_PRODUCT_H_

#include <cstdint>

#include "worker/nn/device.h"

namespace syncgrads {

// A matrix product: c = a b or, if `accumulate`, c += a b. a is rows x inner, b is inner x
// columns. All matrices are row-major; a stride is the distance between two rows in memory, in
// elements. a and b are of type T.
template <typename T, typename Result = T>
struct MatrixProduct {
  int64_t rows = 0;     // of c
  int64_t columns = 0;  // of c
  int64_t inner = 0;
  const T* a = nullptr;
  int64_t a_stride = 0;
  bool transpose_a = false;  // in memory, a is inner x rows
  const T* b = nullptr;
  int64_t b_stride = 0;
  bool transpose_b = false;  // in memory, b is columns x inner
  Result* c = nullptr;
  int64_t c_stride = 0;
  bool accumulate = false;
};

// The products of a dense layer, forward and backward. `kernel` is the kernel of the layer, of type
// S as the activations.
template <typename T, typename S>
MatrixProduct<S> OutputOf(const Affine<T>& layer, const S* kernel, int64_t samples, const S* input,
                          S* output) {
  MatrixProduct<S> product;
  product.rows = samples;
  product.columns = layer.outputs;
  product.inner = layer.inputs;
  product.a = input;
  product.a_stride = layer.inputs;
  product.b = kernel;
  product.b_stride = layer.transposed ? layer.inputs : layer.outputs;
  product.transpose_b = layer.transposed;
  product.c = output;
  product.c_stride = layer.outputs;
  return product;
}

template <typename T, typename S>
MatrixProduct<S, T> KernelGradientOf(const Affine<T>& layer, int64_t samples, const S* input,
                                     const S* output_gradient, T* gradient) {
  // The kernel's gradient is input^T output_gradient. If the kernel is transposed, so is its
  // gradient: output_gradient^T input.
  MatrixProduct<S, T> product;
  product.rows = layer.transposed ? layer.outputs : layer.inputs;
  product.columns = layer.transposed ? layer.inputs : layer.outputs;
  product.inner = samples;
  product.a = layer.transposed ? output_gradient : input;
  product.a_stride = product.rows;
  product.transpose_a = true;
  product.b = layer.transposed ? input : output_gradient;
  product.b_stride = product.columns;
  product.c = gradient;
  product.c_stride = product.columns;
  return product;
}

template <typename T, typename S>
MatrixProduct<S> InputGradientOf(const Affine<T>& layer, const S* kernel, int64_t samples,
                                 const S* output_gradient, S* gradient) {
  MatrixProduct<S> product;
  product.rows = samples;
  product.columns = layer.inputs;
  product.inner = layer.outputs;
  product.a = output_gradient;
  product.a_stride = layer.outputs;
  product.b = kernel;
  product.b_stride = layer.transposed ? layer.inputs : layer.outputs;
  product.transpose_b = !layer.transposed;
  product.c = gradient;
  product.c_stride = layer.inputs;
  return product;
}

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_MATRIX_PRODUCT_H_
