// Reference implementations of the optimizers for tests: plain loops over single elements. They
// make the same operations in the same order as the vectorised optimizers, so they give the same
// bits.

#ifndef SYNCGRADS_COMMON_OPTIM_REFERENCE_H_
#define SYNCGRADS_COMMON_OPTIM_REFERENCE_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <variant>
#include <vector>

#include "common/optim/power.h"
#include "common/update_rule.h"

namespace syncgrads::reference {

// Each UpdateOne updates one element: x and its slots, in place. T is float or double.

template <typename T>
void UpdateOne(const Sgd& rule, uint64_t, T g, T& x, T*) {
  if (rule.weight_decay != 0) g = g + T(rule.weight_decay) * x;
  x = x - T(rule.learning_rate) * g;
}

template <typename T>
void UpdateOne(const Momentum& rule, uint64_t, T g, T& x, T* slots) {
  if (rule.weight_decay != 0) g = g + T(rule.weight_decay) * x;
  slots[0] = T(rule.momentum) * slots[0] + T(rule.learning_rate) * g;
  x = x - slots[0];
}

template <typename T>
void UpdateOne(const Nesterov& rule, uint64_t, T g, T& x, T* slots) {
  if (rule.weight_decay != 0) g = g + T(rule.weight_decay) * x;
  const T s = T(rule.learning_rate) * g;
  slots[0] = T(rule.momentum) * slots[0] + s;
  x = x - (T(rule.momentum) * slots[0] + s);
}

template <typename T>
void UpdateOne(const RmsProp& rule, uint64_t, T g, T& x, T* slots) {
  slots[0] = T(rule.decay) * slots[0] + T(1 - rule.decay) * (g * g);
  x = x - (T(rule.learning_rate) * g) / (std::sqrt(slots[0]) + T(rule.epsilon));
}

template <typename T>
void UpdateOne(const Adagrad& rule, uint64_t, T g, T& x, T* slots) {
  slots[0] = slots[0] + g * g;
  x = x - (T(rule.learning_rate) * g) / (std::sqrt(slots[0]) + T(rule.epsilon));
}

template <typename T>
void UpdateOne(const Adam& rule, uint64_t step, T g, T& x, T* slots) {
  slots[0] = T(rule.beta1) * slots[0] + T(1 - rule.beta1) * g;
  slots[1] = T(rule.beta2) * slots[1] + T(1 - rule.beta2) * (g * g);
  const T m = slots[0] / T(1 - Power(rule.beta1, step));
  const T v = slots[1] / T(1 - Power(rule.beta2, step));
  x = x - (T(rule.learning_rate) * m) / (std::sqrt(v) + T(rule.epsilon));
}

template <typename T>
void UpdateOne(const AdamW& rule, uint64_t step, T g, T& x, T* slots) {
  if (rule.weight_decay != 0) x = x - T(rule.learning_rate * rule.weight_decay) * x;
  const Adam adam = {rule.learning_rate, rule.beta1, rule.beta2, rule.epsilon};
  UpdateOne(adam, step, g, x, slots);
}

template <typename T>
void UpdateOne(const Lion& rule, uint64_t, T g, T& x, T* slots) {
  const T c = T(rule.beta1) * slots[0] + T(1 - rule.beta1) * g;
  const T sign = c > 0 ? T(1) : c < 0 ? T(-1) : c;
  if (rule.weight_decay != 0) x = x - T(rule.learning_rate * rule.weight_decay) * x;
  slots[0] = T(rule.beta2) * slots[0] + T(1 - rule.beta2) * g;
  x = x - T(rule.learning_rate) * sign;
}

// For Lamb and Lars, the learning rate in `rule` has already been multiplied by the tensor's ratio.

template <typename T>
void UpdateOne(const Lamb& rule, uint64_t step, T g, T& x, T* slots) {
  slots[0] = T(rule.beta1) * slots[0] + T(1 - rule.beta1) * g;
  slots[1] = T(rule.beta2) * slots[1] + T(1 - rule.beta2) * (g * g);
  const T m = slots[0] / T(1 - Power(rule.beta1, step));
  const T v = slots[1] / T(1 - Power(rule.beta2, step));
  T r = m / (std::sqrt(v) + T(rule.epsilon));
  if (rule.weight_decay != 0) r = r + T(rule.weight_decay) * x;
  x = x - T(rule.learning_rate) * r;
}

template <typename T>
void UpdateOne(const Lars& rule, uint64_t, T g, T& x, T* slots) {
  if (rule.weight_decay != 0) g = g + T(rule.weight_decay) * x;
  slots[0] = T(rule.momentum) * slots[0] + T(rule.learning_rate) * g;
  x = x - slots[0];
}

// Updates `params` and `slots`, which have the length of `grad`, in place. `ratio` has the same
// meaning as for ApplyUpdate.
template <typename T>
void Update(Optimizer rule, uint64_t step, const std::vector<T>& grad, std::vector<T>& params,
            std::vector<std::vector<T>>& slots, double ratio = 1) {
  if (std::holds_alternative<Lamb>(rule) || std::holds_alternative<Lars>(rule)) {
    std::visit([ratio](auto& r) { r.learning_rate *= ratio; }, rule);
  }
  const auto one_nan = [](T& value) {
    if (std::isnan(value)) value = std::numeric_limits<T>::quiet_NaN();
  };
  for (size_t i = 0; i < grad.size(); ++i) {
    T here[2] = {};
    for (size_t s = 0; s < slots.size(); ++s) here[s] = slots[s][i];
    std::visit([&](const auto& r) { UpdateOne(r, step, grad[i], params[i], here); }, rule);
    one_nan(params[i]);
    for (size_t s = 0; s < slots.size(); ++s) {
      one_nan(here[s]);
      slots[s][i] = here[s];
    }
  }
}

}  // namespace syncgrads::reference

#endif  // SYNCGRADS_COMMON_OPTIM_REFERENCE_H_
