// The arithmetic of the optimizers, on the server or on a worker.
//
// Every update is element by element, so a tensor may be cut into chunks anywhere;
// Lamb and Lars first need norms of the whole tensor. All scalars that an update needs are worked
// out once per call, in float64, and rounded to the parameter's type (float32 or float64), in which
// each operation below is then done and rounded in the order that is written.
// Nothing is fused or approximated, and a NaN that comes out is always the
// quiet NaN with sign and payload 0: replicas on different processors get the
// same bits.
//
// g is the gradient, x the parameter, t the number of the step, counting from 1;
// x' and the like are the new values. Slots start as zeros.
//
// Sgd       g1 = g + weight_decay * x
//           x' = x - learning_rate * g1
//
// Momentum  (Polyak 1964, in Flux's form)
//   velocity  v' = momentum * v + learning_rate * g1
//             x' = x - v'
//   The velocity is in units of the parameter: a change of the learning rate
//   counts for gradients from then on, and what was gathered goes on as it was.
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
//           by the learning rate and not seen by m and v)
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
//                                     ratio = |x| / |r1|, over the whole tensor
//
// Lars      (You et al. 2017, algorithm 1)
//   velocity  v' = momentum * v + (learning_rate * ratio) * g1
//             x' = x - v'
//                    ratio = trust * |x| / (|g| + weight_decay * |x|), likewise
//
// The slots of RmsProp, Adagrad, Adam, AdamW, Lion and Lamb hold gradients and
// squares of gradients, free of the learning rate: a change of it scales whole steps
// at once. Where the factor of a decay is 0, its line is left out: g1 is g, x1 is x,
// r1 is r.

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
// `dtype` is f32 or f64, and that of parameters, gradient and slots alike. `step`
// is at least 1. There are SlotCount(rule) old and new slots. `rule` has passed
// Validate; `ratio` is that of Lamb and Lars. Every pointer may be aligned in any way. `new_params`
// may be `params` or `grad`, and each new slot its old one; nothing may overlap in any other way.
// What breaks this is a broken caller, and aborts where it is seen.
//
// Thread-safe. Assumes the default floating-point environment: rounding to
// nearest, subnormals kept.
void ApplyUpdate(const Optimizer& rule, DType dtype, uint64_t step, const std::byte* grad,
                 size_t count, const std::byte* params, std::byte* new_params,
                 absl::Span<const std::byte* const> old_slots,
                 absl::Span<std::byte* const> new_slots, double ratio = 1);

// Sums of squares over a tensor, or a part of it, in float64: those of a whole tensor
// are those of its parts, added in their order.
struct SquareSums {
  double values = 0;  // of x
  double change = 0;  // of r1 (Lamb) or g (Lars)

  SquareSums& operator+=(const SquareSums& more) {
    values += more.values;
    change += more.change;
    return *this;
  }
};

// Of `count` elements, which are as for ApplyUpdate; nothing is changed. Zeros for a
// rule that needs no norms. Always in the same order, whatever the processor.
SquareSums SumSquares(const Optimizer& rule, DType dtype, uint64_t step, const std::byte* grad,
                      size_t count, const std::byte* params,
                      absl::Span<const std::byte* const> slots);

// The `ratio` of an update, given the sums of the whole tensor: 1 where a norm is 0
// or not finite, and for a rule that needs none.
double RatioOf(const Optimizer& rule, const SquareSums& sums);

// Updates a whole tensor in place, norms included.
void UpdateTensor(const Optimizer& rule, DType dtype, uint64_t step, const std::byte* grad,
                  size_t count, std::byte* params, absl::Span<std::byte* const> slots);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_OPTIM_UPDATE_H_
