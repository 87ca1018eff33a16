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
#include "hwy/foreach_target.h"  // Includes this file once per instruction set.
// clang-format on
// foreach_target.h comes first, because the headers below are compiled for each instruction set.
#include "common/kernels/elements-inl.h"
#include "common/optim/power.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace syncgrads {
namespace HWY_NAMESPACE {

#define SYNCGRADS_STEP_INLINE HWY_INLINE
#include "common/optim/update_steps-inl.h"
#undef SYNCGRADS_STEP_INLINE

// The `ops` of update_steps-inl.h for Highway's vectors.
template <class D>
struct VectorOps {
  using Lane = hn::TFromD<D>;
  using V = hn::Vec<D>;

  HWY_INLINE V Set(Lane lane) const { return hn::Set(d, lane); }
  HWY_INLINE V Add(V a, V b) const { return hn::Add(a, b); }
  HWY_INLINE V Sub(V a, V b) const { return hn::Sub(a, b); }
  HWY_INLINE V Mul(V a, V b) const { return hn::Mul(a, b); }
  HWY_INLINE V Div(V a, V b) const { return hn::Div(a, b); }
  HWY_INLINE V Sqrt(V v) const { return hn::Sqrt(v); }
  HWY_INLINE V Sign(V v) const {
    const V zero = hn::Zero(d);
    const V sign = hn::IfThenElse(hn::Gt(v, zero), Set(Lane{1}), v);
    return hn::IfThenElse(hn::Lt(v, zero), Set(Lane{-1}), sign);
  }

  D d;
};

template <typename T, class Step>
void UpdateElements(Step step, const std::byte* grad, size_t count, const std::byte* params,
                    std::byte* new_params, const std::byte* const* old_slots,
                    std::byte* const* new_slots) {
  constexpr size_t kSlots = Step::kSlots;
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  const VectorOps<hn::ScalableTag<T>> ops{d};
  const auto update = [&](const std::byte* g, const std::byte* x, std::byte* new_x,
                          const std::byte* const* old_slot, std::byte* const* new_slot,
                          size_t at) HWY_ATTR {
    V slots[kSlots + 1];  // One more, because an array cannot be empty.
    for (size_t s = 0; s < kSlots; ++s) slots[s] = LoadBytes(d, old_slot[s] + at);
    const V result = step.Update(ops, LoadBytes(d, g + at), LoadBytes(d, x + at), slots);
    StoreBytes(d, OneNaN(d, result), new_x + at);
    for (size_t s = 0; s < kSlots; ++s) StoreBytes(d, OneNaN(d, slots[s]), new_slot[s] + at);
  };

  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    update(grad, params, new_params, old_slots, new_slots, i * sizeof(T));
  }
  if (i == count) return;

  // The remaining elements are updated in a vector of their own, padded with zeros.
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
  const StepOf<T> step_of{step, ratio};
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

// Number of elements of Lamb's change that are computed before they are summed.
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
