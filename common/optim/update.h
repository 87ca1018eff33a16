// The arithmetic of the optimizers, on the server or on a worker.
//
// Every update is element by element, so a tensor may be cut into chunks anywhere. Lamb and Lars
// first need norms of the whole tensor. The scalars of an update are computed once per call, in
// float64, and rounded to the parameter's type (float32 or float64). Each operation below is then
// made and rounded in this type, in the order that is written. Nothing is fused or approximated,
// and a NaN that results is always the quiet NaN with sign and payload 0: replicas on different
// processors get the same bits.
//
// g is the gradient, x the parameter, t the number of the step, counting from 1. A prime marks a
// new value: x' is the new parameter. Slots start as zeros.
//
// Sgd       g1 = g + weight_decay * x
//           x' = x - learning_rate * g1
//
// Momentum  (Polyak 1964, in Flux's form)
//   velocity  v' = momentum * v + learning_rate * g1
//             x' = x - v'
//   The velocity is in units of the parameter: a change of the learning rate
//   applies to later gradients only, and the velocity so far is not rescaled.
//
// Nesterov  (Sutskever et al. 2013, rewritten as in Bengio et al. 2012; Flux's
//           Nesterov with the sign of v turned)
//             s = learning_rate * g1
//   velocity  v' = momentum * v + s
//             x' = x - (momentum * v' + s)
//   The velocity is as in Momentum.
//
// RmsProp   (Tieleman and Hinton 2012; epsilon outside the root, as in Flux and
//           PyTorch)
//   mean_square  a' = decay * a + (1 - decay) * (g * g)
//                x' = x - (learning_rate * g) / (sqrt(a') + epsilon)
//
// Adagrad   (Duchi et al. 2011, in PyTorch's form)
//   sum_of_squares  a' = a + g * g
//                   x' = x - (learning_rate * g) / (sqrt(a') + epsilon)
//
// Adam      (Kingma and Ba 2015, algorithm 1)
//   m  m' = beta1 * m + (1 - beta1) * g
//   v  v' = beta2 * v + (1 - beta2) * (g * g)
//      mh = m' / (1 - beta1^t)
//      vh = v' / (1 - beta2^t)
//      x' = x - (learning_rate * mh) / (sqrt(vh) + epsilon)
//
// AdamW     (Loshchilov and Hutter 2019, in PyTorch's form: the decay is scaled
//           by the learning rate and does not enter m and v)
//   m, v as in Adam
//      x1 = x - (learning_rate * weight_decay) * x
//      x' = x1 - (learning_rate * mh) / (sqrt(vh) + epsilon)
//
// Lion      (Chen et al. 2023, algorithm 2)
//      c  = beta1 * m + (1 - beta1) * g
//      x1 = x - (learning_rate * weight_decay) * x
//      x' = x1 - learning_rate * sign(c)      the sign of 0 is 0
//   m  m' = beta2 * m + (1 - beta2) * g
//
// Lamb      (You et al. 2020, algorithm 2, with phi(z) = z)
//   m, v as in Adam
//      r  = mh / (sqrt(vh) + epsilon)
//      r1 = r + weight_decay * x
//      x' = x - (learning_rate * ratio) * r1
//      ratio = |x| / |r1|, over the whole tensor
//
// Lars      (You et al. 2017, algorithm 1)
//   velocity  v' = momentum * v + (learning_rate * ratio) * g1
//             x' = x - v'
//             ratio = trust * |x| / (|g| + weight_decay * |x|), over the whole tensor
//
// The slots of RmsProp, Adagrad, Adam, AdamW, Lion and Lamb hold gradients and squares of
// gradients, without the learning rate: a change of the learning rate scales whole steps at once.
// If the factor of a decay is 0, its line is left out: g1 is g, x1 is x, r1 is r.

#ifndef SYNCGRADS_COMMON_OPTIM_UPDATE_H_
#define SYNCGRADS_COMMON_OPTIM_UPDATE_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/optim/optimizer.h"
#include "common/update_rule.h"

namespace syncgrads {

// Applies one update to `count` elements.
//
// `dtype` is f32 or f64, and is the dtype of parameters, gradient and slots. `step` is at least 1.
// There are SlotCount(rule) old and new slots. `rule` has passed Validate. `ratio` is used by Lamb
// and Lars only. Every pointer may have any alignment. `new_params` may be `params` or `grad`, and
// each new slot may be its old one; nothing may overlap in any other way. A call that breaks these
// requirements is a bug in the caller; it aborts if dtype, step or the number of slots is wrong.
//
// Thread-safe. Assumes the default floating-point environment: rounding to nearest, subnormals
// kept.
void ApplyUpdate(const Optimizer& rule, DType dtype, uint64_t step, const std::byte* grad,
                 size_t count, const std::byte* params, std::byte* new_params,
                 absl::Span<const std::byte* const> old_slots,
                 absl::Span<std::byte* const> new_slots, double ratio = 1);

// Sums of squares over a tensor or a part of it, in float64. The sums of a whole tensor are the
// sums of its parts, added in their order.
struct SquareSums {
  double values = 0;  // of x
  double change = 0;  // of r1 (Lamb) or g (Lars)

  SquareSums& operator+=(const SquareSums& more) {
    values += more.values;
    change += more.change;
    return *this;
  }
};

// Returns the sums of `count` elements, given the same arguments as for ApplyUpdate. Nothing is
// changed. Returns zeros for a rule that needs no norms. The order of the additions is the same on
// every processor. Thread-safe.
SquareSums SumSquares(const Optimizer& rule, DType dtype, uint64_t step, const std::byte* grad,
                      size_t count, const std::byte* params,
                      absl::Span<const std::byte* const> slots);

// Returns the `ratio` of an update from the sums of the whole tensor. Returns 1 if a norm is 0 or
// NaN, if the ratio is not finite, and for a rule that needs no norms.
double RatioOf(const Optimizer& rule, const SquareSums& sums);

// Updates a whole tensor in place, given the same arguments as for ApplyUpdate: computes the norms
// and the ratio, and applies the update.
void UpdateTensor(const Optimizer& rule, DType dtype, uint64_t step, const std::byte* grad,
                  size_t count, std::byte* params, absl::Span<std::byte* const> slots);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_OPTIM_UPDATE_H_
