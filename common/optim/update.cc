#include "common/optim/update.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <variant>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/optim/update.cc"
// clang-format off
#include "hwy/foreach_target.h"  // Includes this file once per instruction set;
// clang-format on
// first of all, so that what follows is seen anew by each.
#include "common/kernels/elements-inl.h"
#include "common/optim/power.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace syncgrads {
namespace HWY_NAMESPACE {

// Below, one class per optimizer: its scalars, rounded to the parameter's type,
// and the update of one vector, slots in place. The formulas are in the header;
// the order of operations here is the one written there.

template <typename T>
class SgdStep {
 public:
  static constexpr size_t kSlots = 0;
  SgdStep(const Sgd& rule, uint64_t, double)
      : learning_rate_(static_cast<T>(rule.learning_rate)),
        weight_decay_(static_cast<T>(rule.weight_decay)) {}

  template <class D, class V>
  HWY_INLINE V Update(D d, V g, V x, V*) const {
    if (weight_decay_ != 0) g = hn::Add(g, hn::Mul(hn::Set(d, weight_decay_), x));
    return hn::Sub(x, hn::Mul(hn::Set(d, learning_rate_), g));
  }

 private:
  T learning_rate_, weight_decay_;
};

template <typename T>
class MomentumStep {
 public:
  static constexpr size_t kSlots = 1;
  MomentumStep(const Momentum& rule, uint64_t, double)
      : learning_rate_(static_cast<T>(rule.learning_rate)),
        momentum_(static_cast<T>(rule.momentum)),
        weight_decay_(static_cast<T>(rule.weight_decay)) {}

  template <class D, class V>
  HWY_INLINE V Update(D d, V g, V x, V* slots) const {
    if (weight_decay_ != 0) g = hn::Add(g, hn::Mul(hn::Set(d, weight_decay_), x));
    const V step = hn::Mul(hn::Set(d, learning_rate_), g);
    slots[0] = hn::Add(hn::Mul(hn::Set(d, momentum_), slots[0]), step);
    return hn::Sub(x, slots[0]);
  }

 private:
  T learning_rate_, momentum_, weight_decay_;
};

template <typename T>
class NesterovStep {
 public:
  static constexpr size_t kSlots = 1;
  NesterovStep(const Nesterov& rule, uint64_t, double)
      : learning_rate_(static_cast<T>(rule.learning_rate)),
        momentum_(static_cast<T>(rule.momentum)),
        weight_decay_(static_cast<T>(rule.weight_decay)) {}

  template <class D, class V>
  HWY_INLINE V Update(D d, V g, V x, V* slots) const {
    if (weight_decay_ != 0) g = hn::Add(g, hn::Mul(hn::Set(d, weight_decay_), x));
    const V momentum = hn::Set(d, momentum_);
    const V step = hn::Mul(hn::Set(d, learning_rate_), g);
    slots[0] = hn::Add(hn::Mul(momentum, slots[0]), step);
    return hn::Sub(x, hn::Add(hn::Mul(momentum, slots[0]), step));
  }

 private:
  T learning_rate_, momentum_, weight_decay_;
};

template <typename T>
class RmsPropStep {
 public:
  static constexpr size_t kSlots = 1;
  RmsPropStep(const RmsProp& rule, uint64_t, double)
      : learning_rate_(static_cast<T>(rule.learning_rate)),
        decay_(static_cast<T>(rule.decay)),
        rest_(static_cast<T>(1 - rule.decay)),
        epsilon_(static_cast<T>(rule.epsilon)) {}

  template <class D, class V>
  HWY_INLINE V Update(D d, V g, V x, V* slots) const {
    slots[0] =
        hn::Add(hn::Mul(hn::Set(d, decay_), slots[0]), hn::Mul(hn::Set(d, rest_), hn::Mul(g, g)));
    const V divisor = hn::Add(hn::Sqrt(slots[0]), hn::Set(d, epsilon_));
    return hn::Sub(x, hn::Div(hn::Mul(hn::Set(d, learning_rate_), g), divisor));
  }

 private:
  T learning_rate_, decay_, rest_, epsilon_;
};

template <typename T>
class AdagradStep {
 public:
  static constexpr size_t kSlots = 1;
  AdagradStep(const Adagrad& rule, uint64_t, double)
      : learning_rate_(static_cast<T>(rule.learning_rate)),
        epsilon_(static_cast<T>(rule.epsilon)) {}

  template <class D, class V>
  HWY_INLINE V Update(D d, V g, V x, V* slots) const {
    slots[0] = hn::Add(slots[0], hn::Mul(g, g));
    const V divisor = hn::Add(hn::Sqrt(slots[0]), hn::Set(d, epsilon_));
    return hn::Sub(x, hn::Div(hn::Mul(hn::Set(d, learning_rate_), g), divisor));
  }

 private:
  T learning_rate_, epsilon_;
};

// Adam; AdamW differs in that the parameter decays first.
template <typename T>
class AdamStep {
 public:
  static constexpr size_t kSlots = 2;
  template <class Rule>
  AdamStep(const Rule& rule, uint64_t step, double)
      : learning_rate_(static_cast<T>(rule.learning_rate)),
        beta1_(static_cast<T>(rule.beta1)),
        rest1_(static_cast<T>(1 - rule.beta1)),
        correction1_(static_cast<T>(1 - Power(rule.beta1, step))),
        beta2_(static_cast<T>(rule.beta2)),
        rest2_(static_cast<T>(1 - rule.beta2)),
        correction2_(static_cast<T>(1 - Power(rule.beta2, step))),
        epsilon_(static_cast<T>(rule.epsilon)) {
    if constexpr (std::is_same_v<Rule, AdamW>) {
      decay_ = static_cast<T>(rule.learning_rate * rule.weight_decay);
    }
  }

  template <class D, class V>
  HWY_INLINE V Update(D d, V g, V x, V* slots) const {
    if (decay_ != 0) x = hn::Sub(x, hn::Mul(hn::Set(d, decay_), x));
    slots[0] = hn::Add(hn::Mul(hn::Set(d, beta1_), slots[0]), hn::Mul(hn::Set(d, rest1_), g));
    slots[1] =
        hn::Add(hn::Mul(hn::Set(d, beta2_), slots[1]), hn::Mul(hn::Set(d, rest2_), hn::Mul(g, g)));
    const V m = hn::Div(slots[0], hn::Set(d, correction1_));
    const V v = hn::Div(slots[1], hn::Set(d, correction2_));
    const V divisor = hn::Add(hn::Sqrt(v), hn::Set(d, epsilon_));
    return hn::Sub(x, hn::Div(hn::Mul(hn::Set(d, learning_rate_), m), divisor));
  }

 private:
  T learning_rate_, beta1_, rest1_, correction1_, beta2_, rest2_, correction2_, epsilon_;
  T decay_ = 0;
};

template <typename T>
class LionStep {
 public:
  static constexpr size_t kSlots = 1;
  LionStep(const Lion& rule, uint64_t, double)
      : learning_rate_(static_cast<T>(rule.learning_rate)),
        beta1_(static_cast<T>(rule.beta1)),
        rest1_(static_cast<T>(1 - rule.beta1)),
        beta2_(static_cast<T>(rule.beta2)),
        rest2_(static_cast<T>(1 - rule.beta2)),
        decay_(static_cast<T>(rule.learning_rate * rule.weight_decay)) {}

  template <class D, class V>
  HWY_INLINE V Update(D d, V g, V x, V* slots) const {
    const V c = hn::Add(hn::Mul(hn::Set(d, beta1_), slots[0]), hn::Mul(hn::Set(d, rest1_), g));
    const V zero = hn::Zero(d);
    const V one = hn::Set(d, T{1});
    // What is neither above nor below 0 is 0 or NaN, and is its own sign.
    V sign = hn::IfThenElse(hn::Gt(c, zero), one, c);
    sign = hn::IfThenElse(hn::Lt(c, zero), hn::Neg(one), sign);
    if (decay_ != 0) x = hn::Sub(x, hn::Mul(hn::Set(d, decay_), x));
    slots[0] = hn::Add(hn::Mul(hn::Set(d, beta2_), slots[0]), hn::Mul(hn::Set(d, rest2_), g));
    return hn::Sub(x, hn::Mul(hn::Set(d, learning_rate_), sign));
  }

 private:
  T learning_rate_, beta1_, rest1_, beta2_, rest2_, decay_;
};

// What Lamb moves the parameter along, in its place; the slots as after the update.
template <typename T>
class LambChange {
 public:
  static constexpr size_t kSlots = 2;
  LambChange(const Lamb& rule, uint64_t step, double)
      : beta1_(static_cast<T>(rule.beta1)),
        rest1_(static_cast<T>(1 - rule.beta1)),
        correction1_(static_cast<T>(1 - Power(rule.beta1, step))),
        beta2_(static_cast<T>(rule.beta2)),
        rest2_(static_cast<T>(1 - rule.beta2)),
        correction2_(static_cast<T>(1 - Power(rule.beta2, step))),
        epsilon_(static_cast<T>(rule.epsilon)),
        weight_decay_(static_cast<T>(rule.weight_decay)) {}

  template <class D, class V>
  HWY_INLINE V Update(D d, V g, V x, V* slots) const {
    slots[0] = hn::Add(hn::Mul(hn::Set(d, beta1_), slots[0]), hn::Mul(hn::Set(d, rest1_), g));
    slots[1] =
        hn::Add(hn::Mul(hn::Set(d, beta2_), slots[1]), hn::Mul(hn::Set(d, rest2_), hn::Mul(g, g)));
    const V m = hn::Div(slots[0], hn::Set(d, correction1_));
    const V v = hn::Div(slots[1], hn::Set(d, correction2_));
    V change = hn::Div(m, hn::Add(hn::Sqrt(v), hn::Set(d, epsilon_)));
    if (weight_decay_ != 0) change = hn::Add(change, hn::Mul(hn::Set(d, weight_decay_), x));
    return change;
  }

 private:
  T beta1_, rest1_, correction1_, beta2_, rest2_, correction2_, epsilon_, weight_decay_;
};

template <typename T>
class LambStep {
 public:
  static constexpr size_t kSlots = 2;
  LambStep(const Lamb& rule, uint64_t step, double ratio)
      : change_(rule, step, ratio), rate_(static_cast<T>(rule.learning_rate * ratio)) {}

  template <class D, class V>
  HWY_INLINE V Update(D d, V g, V x, V* slots) const {
    return hn::Sub(x, hn::Mul(hn::Set(d, rate_), change_.Update(d, g, x, slots)));
  }

 private:
  LambChange<T> change_;
  T rate_;
};

template <typename T>
class LarsStep {
 public:
  static constexpr size_t kSlots = 1;
  LarsStep(const Lars& rule, uint64_t, double ratio)
      : rate_(static_cast<T>(rule.learning_rate * ratio)),
        momentum_(static_cast<T>(rule.momentum)),
        weight_decay_(static_cast<T>(rule.weight_decay)) {}

  template <class D, class V>
  HWY_INLINE V Update(D d, V g, V x, V* slots) const {
    if (weight_decay_ != 0) g = hn::Add(g, hn::Mul(hn::Set(d, weight_decay_), x));
    slots[0] = hn::Add(hn::Mul(hn::Set(d, momentum_), slots[0]), hn::Mul(hn::Set(d, rate_), g));
    return hn::Sub(x, slots[0]);
  }

 private:
  T rate_, momentum_, weight_decay_;
};

template <typename T, class Step>
void UpdateElements(Step step, const std::byte* grad, size_t count, const std::byte* params,
                    std::byte* new_params, const std::byte* const* old_slots,
                    std::byte* const* new_slots) {
  constexpr size_t kSlots = Step::kSlots;
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  const auto update = [&](const std::byte* g, const std::byte* x, std::byte* new_x,
                          const std::byte* const* old_slot, std::byte* const* new_slot,
                          size_t at) HWY_ATTR {
    V slots[kSlots + 1];  // One more, because an array cannot be empty.
    for (size_t s = 0; s < kSlots; ++s) slots[s] = LoadBytes(d, old_slot[s] + at);
    const V result = step.Update(d, LoadBytes(d, g + at), LoadBytes(d, x + at), slots);
    StoreBytes(d, OneNaN(d, result), new_x + at);
    for (size_t s = 0; s < kSlots; ++s) StoreBytes(d, OneNaN(d, slots[s]), new_slot[s] + at);
  };

  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    update(grad, params, new_params, old_slots, new_slots, i * sizeof(T));
  }
  if (i == count) return;

  // The rest is updated in vectors of its own, padded with zeros.
  const size_t at = i * sizeof(T);
  const size_t bytes = (count - i) * sizeof(T);
  HWY_ALIGN std::byte rest[2 + kSlots][hn::MaxLanes(d) * sizeof(T)] = {};
  std::byte* rest_slots[kSlots + 1];
  std::memcpy(rest[0], grad + at, bytes);
  std::memcpy(rest[1], params + at, bytes);
  for (size_t s = 0; s < kSlots; ++s) {
    rest_slots[s] = rest[2 + s];
    std::memcpy(rest_slots[s], old_slots[s] + at, bytes);
  }
  update(rest[0], rest[1], rest[1], rest_slots, rest_slots, 0);
  std::memcpy(new_params + at, rest[1], bytes);
  for (size_t s = 0; s < kSlots; ++s) std::memcpy(new_slots[s] + at, rest_slots[s], bytes);
}

template <typename T, class... Arrays>
void UpdateAs(const Optimizer& rule, uint64_t step, double ratio, Arrays... arrays) {
  struct {
    SgdStep<T> operator()(const Sgd& r) { return {r, step, ratio}; }
    MomentumStep<T> operator()(const Momentum& r) { return {r, step, ratio}; }
    NesterovStep<T> operator()(const Nesterov& r) { return {r, step, ratio}; }
    RmsPropStep<T> operator()(const RmsProp& r) { return {r, step, ratio}; }
    AdagradStep<T> operator()(const Adagrad& r) { return {r, step, ratio}; }
    AdamStep<T> operator()(const Adam& r) { return {r, step, ratio}; }
    AdamStep<T> operator()(const AdamW& r) { return {r, step, ratio}; }
    LionStep<T> operator()(const Lion& r) { return {r, step, ratio}; }
    LambStep<T> operator()(const Lamb& r) { return {r, step, ratio}; }
    LarsStep<T> operator()(const Lars& r) { return {r, step, ratio}; }
    uint64_t step;
    double ratio;
  } step_of{step, ratio};
  std::visit([&](const auto& r) { UpdateElements<T>(step_of(r), arrays...); }, rule);
}

void UpdateArrays(const Optimizer& rule, DType dtype, uint64_t step, double ratio,
                  const std::byte* grad, size_t count, const std::byte* params,
                  std::byte* new_params, const std::byte* const* old_slots,
                  std::byte* const* new_slots) {
  if (dtype == DType::kF64) {
    UpdateAs<double>(rule, step, ratio, grad, count, params, new_params, old_slots, new_slots);
  } else {
    UpdateAs<float>(rule, step, ratio, grad, count, params, new_params, old_slots, new_slots);
  }
}

void FindLambChange(const Lamb& rule, DType dtype, uint64_t step, const std::byte* grad,
                    size_t count, const std::byte* params, std::byte* change,
                    const std::byte* const* old_slots, std::byte* const* new_slots) {
  if (dtype == DType::kF64) {
    UpdateElements<double>(LambChange<double>(rule, step, 1), grad, count, params, change,
                           old_slots, new_slots);
  } else {
    UpdateElements<float>(LambChange<float>(rule, step, 1), grad, count, params, change, old_slots,
                          new_slots);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace syncgrads
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "common/kernels/require.h"
#include "common/kernels/sum_of_squares.h"

namespace syncgrads {
namespace {

// Elements of Lamb's change that are kept between being made and being summed.
constexpr size_t kBlock = 1024;

}  // namespace

HWY_EXPORT(UpdateArrays);
HWY_EXPORT(FindLambChange);

void ApplyUpdate(const Optimizer& rule, DType dtype, uint64_t step, const std::byte* grad,
                 size_t count, const std::byte* params, std::byte* new_params,
                 absl::Span<const std::byte* const> old_slots,
                 absl::Span<std::byte* const> new_slots, double ratio) {
  Require(dtype == DType::kF32 || dtype == DType::kF64, "an update of f32 or f64");
  Require(step >= 1, "an update's step is at least 1");
  const size_t slots = static_cast<size_t>(SlotCount(rule));
  Require(old_slots.size() == slots && new_slots.size() == slots, "an update has its rule's slots");
  HWY_DYNAMIC_DISPATCH(UpdateArrays)
  (rule, dtype, step, ratio, grad, count, params, new_params, old_slots.data(), new_slots.data());
}

SquareSums SumSquares(const Optimizer& rule, DType dtype, uint64_t step, const std::byte* grad,
                      size_t count, const std::byte* params,
                      absl::Span<const std::byte* const> slots) {
  if (!NeedsNorms(rule)) return {};
  SquareSums sums;
  sums.values = SumOfSquares(dtype, params, count);
  const auto* lamb = std::get_if<Lamb>(&rule);
  if (lamb == nullptr) {
    sums.change = SumOfSquares(dtype, grad, count);
    return sums;
  }
  alignas(64) std::byte change[kBlock * sizeof(double)];
  alignas(64) std::byte unused[2][kBlock * sizeof(double)];
  std::byte* const new_slots[] = {unused[0], unused[1]};
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t block = std::min(kBlock, count - begin);
    const size_t at = begin * SizeOf(dtype);
    const std::byte* const old_slots[] = {slots[0] + at, slots[1] + at};
    HWY_DYNAMIC_DISPATCH(FindLambChange)
    (*lamb, dtype, step, grad + at, block, params + at, change, old_slots, new_slots);
    sums.change += SumOfSquares(dtype, change, block);
  }
  return sums;
}

double RatioOf(const Optimizer& rule, const SquareSums& sums) {
  const double values = std::sqrt(sums.values);
  const double change = std::sqrt(sums.change);
  double ratio = 1;
  if (std::holds_alternative<Lamb>(rule)) {
    ratio = values / change;
  } else if (const auto* lars = std::get_if<Lars>(&rule)) {
    ratio = lars->trust * values / (change + lars->weight_decay * values);
  }
  return values > 0 && change > 0 && std::isfinite(ratio) ? ratio : 1;
}

void UpdateTensor(const Optimizer& rule, DType dtype, uint64_t step, const std::byte* grad,
                  size_t count, std::byte* params, absl::Span<std::byte* const> slots) {
  const std::vector<const std::byte*> old_slots(slots.begin(), slots.end());
  const double ratio = RatioOf(rule, SumSquares(rule, dtype, step, grad, count, params, old_slots));
  ApplyUpdate(rule, dtype, step, grad, count, params, params, old_slots, slots, ratio);
}

}  // namespace syncgrads

#endif  // HWY_ONCE
