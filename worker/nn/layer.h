// What every layer of a model can do. T is float or double.

#ifndef SYNCGRADS_WORKER_NN_LAYER_H_
#define SYNCGRADS_WORKER_NN_LAYER_H_

#include <cstdint>
#include <vector>

#include "worker/nn/matrix.h"
#include "worker/nn/parameter.h"

namespace syncgrads {

// A differentiable function of a batch of rows, with parameters.
//
// The same inputs and parameters give the same bits on the same machine.
// Not thread-safe.
template <typename T>
class Layer {
 public:
  virtual ~Layer() = default;

  // Columns of what goes in and of what comes out.
  virtual int64_t inputs() const = 0;
  virtual int64_t outputs() const = 0;

  // What training changes; the pointers live as long as the layer.
  virtual std::vector<Parameter<T>*> parameters() = 0;
  // What belongs to the model but is not trained by gradients.
  virtual std::vector<Parameter<T>*> states() = 0;

  // Sets the parameters to their initial values, a function of `seed` and each
  // one's name.
  virtual void Initialise(uint64_t seed) = 0;

  // The result stays valid until the next call.
  virtual const Matrix<T>& Forward(const Matrix<T>& input) = 0;

  // The derivatives of a loss for the batch of the last Forward, whose `input` is
  // given again. `output_gradient` is the loss's derivative by the outputs; it is
  // overwritten. Sets each parameter's gradient and, unless it is null,
  // `input_gradient`.
  virtual void Backward(const Matrix<T>& input, Matrix<T>& output_gradient,
                        Matrix<T>* input_gradient) = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_LAYER_H_
