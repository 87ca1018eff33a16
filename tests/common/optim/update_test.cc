#include "common/optim/update.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/optim/optimizer.h"
#include "common/optim/reference.h"
#include "common/update_rule.h"
#include "gtest/gtest.h"
#include "tests/common/kernels/awkward.h"
#include "tests/common/kernels/every_target.h"
#include "tests/common/optim/every_rule.h"

namespace syncgrads {
namespace {

// A parameter and its slots, in memory with any alignment.
class State {
 public:
  State(const Optimizer& rule, DType dtype, size_t count, size_t offset)
      : rule_(rule), dtype_(dtype), count_(count), params_(count * SizeOf(dtype), offset) {
    for (int s = 0; s < SlotCount(rule); ++s) {
      slots_.emplace_back(count * SizeOf(dtype), offset + 1 + s);
    }
  }

  // Updates the elements from `begin` to `end` in place. The gradient has as many elements as the
  // whole parameter.
  void Update(uint64_t step, const std::byte* grad, size_t begin, size_t end) {
    const size_t at = begin * SizeOf(dtype_);
    std::vector<std::byte*> slots;
    for (Bytes& slot : slots_) slots.push_back(slot.data() + at);
    const std::vector<const std::byte*> old_slots(slots.begin(), slots.end());
    ApplyUpdate(rule_, dtype_, step, grad + at, end - begin, params_.data() + at,
                params_.data() + at, old_slots, slots);
  }
  void Update(uint64_t step, const std::byte* grad) { Update(step, grad, 0, count_); }

  Bytes& params() { return params_; }
  std::vector<Bytes>& slots() { return slots_; }

 private:
  const Optimizer rule_;
  const DType dtype_;
  const size_t count_;
  Bytes params_;
  std::vector<Bytes> slots_;
};

// Returns the values of a parameter with one element, initially 1, after each of `grads`.
std::vector<double> Trajectory(const Optimizer& rule, const std::vector<double>& grads) {
  State state(rule, DType::kF64, 1, 0);
  double x = 1;
  std::memcpy(state.params().data(), &x, sizeof(x));
  std::vector<double> values;
  for (size_t i = 0; i < grads.size(); ++i) {
    state.Update(i + 1, reinterpret_cast<const std::byte*>(&grads[i]));
    std::memcpy(&x, state.params().data(), sizeof(x));
    values.push_back(x);
  }
  return values;
}

void ExpectNear(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-12) << "step " << i + 1;
}

// Examples computed by hand. They begin at x = 1, and most gradients are 2.

TEST(UpdateTest, OfSgdIsTheWorkedExample) {
  ExpectNear(Trajectory(Sgd{.learning_rate = 0.01}, {2, 2}), {0.98, 0.96});
  // g1 = 2 + 0.5 * 1 = 2.5; then 2 + 0.5 * 0.975 = 2.4875.
  ExpectNear(Trajectory(Sgd{.learning_rate = 0.01, .weight_decay = 0.5}, {2, 2}),
             {0.975, 0.950125});
}

TEST(UpdateTest, OfMomentumIsTheWorkedExample) {
  ExpectNear(Trajectory(Momentum{.learning_rate = 0.01, .momentum = 0.9}, {2, 2, 2}),
             {0.98, 0.942, 0.8878});
}

TEST(UpdateTest, OfNesterovIsTheWorkedExample) {
  // v = 0.02, 0.038, 0.0542; each step is 0.9 v + 0.02.
  ExpectNear(Trajectory(Nesterov{.learning_rate = 0.01, .momentum = 0.9}, {2, 2, 2}),
             {0.962, 0.9078, 0.83902});
}

TEST(UpdateTest, OfRmsPropIsTheWorkedExample) {
  // a = 0.4, then 0.76.
  ExpectNear(Trajectory(RmsProp{.learning_rate = 0.01, .decay = 0.9, .epsilon = 1e-30}, {2, 2}),
             {1 - 0.02 / std::sqrt(0.4), 1 - 0.02 / std::sqrt(0.4) - 0.02 / std::sqrt(0.76)});
}

TEST(UpdateTest, OfAdagradIsTheWorkedExample) {
  ExpectNear(Trajectory(Adagrad{.learning_rate = 0.1, .epsilon = 1e-30}, {2, 2}),
             {0.9, 0.9 - 0.2 / std::sqrt(8)});
}

TEST(UpdateTest, OfAdamIsTheWorkedExample) {
  // With a constant gradient the corrected moments are g and g^2 at every step.
  ExpectNear(Trajectory(Adam{.learning_rate = 0.01, .epsilon = 1e-30}, {2, 2, 2}),
             {0.99, 0.98, 0.97});
  // The epsilon is outside of the root: 0.01 * 2 / (2 + 2).
  ExpectNear(Trajectory(Adam{.learning_rate = 0.01, .epsilon = 2}, {2}), {0.995});
}

TEST(UpdateTest, OfAdamWDecaysTheParameterAlone) {
  // x (1 - 0.01 * 0.5) - 0.01.
  ExpectNear(
      Trajectory(AdamW{.learning_rate = 0.01, .epsilon = 1e-30, .weight_decay = 0.5}, {2, 2}),
      {0.985, 0.970075});
}

TEST(UpdateTest, OfLionIsTheWorkedExample) {
  // c = 0.2, m = 0.02; c = 0.9 * 0.02 - 0.1 = -0.082, m = 0.0098; c = 0.00882 + 0.02.
  ExpectNear(Trajectory(Lion{.learning_rate = 0.1}, {2, -1, 0.2}), {0.9, 1.0, 0.9});
  // x (1 - 0.1 * 0.5) - 0.1.
  ExpectNear(Trajectory(Lion{.learning_rate = 0.1, .weight_decay = 0.5}, {2, 2}), {0.85, 0.7075});
}

TEST(UpdateTest, OfLionWithoutAGradientMovesNothing) {
  ExpectNear(Trajectory(Lion{.learning_rate = 0.1}, {0, 0}), {1, 1});
}

// Returns the values of a whole f64 tensor after each update in place. The slots begin with zeros.
std::vector<std::vector<double>> TensorTrajectory(const Optimizer& rule, std::vector<double> x,
                                                  const std::vector<std::vector<double>>& grads) {
  std::vector<std::vector<double>> slots(SlotCount(rule), std::vector<double>(x.size()));
  std::vector<std::byte*> bytes;
  for (std::vector<double>& slot : slots)
    bytes.push_back(reinterpret_cast<std::byte*>(slot.data()));
  std::vector<std::vector<double>> values;
  for (size_t i = 0; i < grads.size(); ++i) {
    UpdateTensor(rule, DType::kF64, i + 1, reinterpret_cast<const std::byte*>(grads[i].data()),
                 x.size(), reinterpret_cast<std::byte*>(x.data()), bytes);
    values.push_back(x);
  }
  return values;
}

TEST(UpdateTest, OfLambIsTheWorkedExample) {
  // Here |x| = 5. After the first gradient, the corrected moments are g and g^2. So r is the sign
  // of g, |r| = sqrt(2), and the change is 0.1 * 5 / sqrt(2) * sign.
  const double step = 0.5 / std::sqrt(2);
  const auto values = TensorTrajectory(
      Lamb{.learning_rate = 0.1, .epsilon = 1e-30, .weight_decay = 0}, {3, 4}, {{2, -7}});
  ExpectNear(values[0], {3 - step, 4 + step});
  // With a decay of 1, r1 = (1 + 3, -1 + 4), and its norm is 5 too.
  const auto decayed = TensorTrajectory(
      Lamb{.learning_rate = 0.1, .epsilon = 1e-30, .weight_decay = 1}, {3, 4}, {{2, -7}});
  ExpectNear(decayed[0], {3 - 0.1 * 4, 4 - 0.1 * 3});
}

TEST(UpdateTest, OfLarsIsTheWorkedExample) {
  // Here |x| = 5 and |g| = 10, so the ratio is 0.2 * 5 / 10 = 0.1 and the change is 0.5 * 0.1 * g.
  // Then v is 0.9 v + 0.05 * |x| / 5 * g, where |x| is 4.5, the norm of (2.7, 3.6).
  const auto values =
      TensorTrajectory(Lars{.learning_rate = 0.5, .trust = 0.2}, {3, 4}, {{6, 8}, {6, 8}});
  ExpectNear(values[0], {2.7, 3.6});
  ExpectNear(values[1], {2.7 - (0.27 + 0.27), 3.6 - (0.36 + 0.36)});
  // The ratio is 0.2 * 5 / (10 + 2 * 5) = 0.05. It is applied to g + 2 x = (12, 16).
  const auto decayed = TensorTrajectory(Lars{.learning_rate = 0.5, .weight_decay = 2, .trust = 0.2},
                                        {3, 4}, {{6, 8}});
  ExpectNear(decayed[0], {3 - 0.025 * 12, 4 - 0.025 * 16});
}

TEST(UpdateTest, ATensorOfZerosMovesByTheLearningRateAlone) {
  ExpectNear(TensorTrajectory(Lars{.learning_rate = 0.5, .trust = 0.2}, {0, 0}, {{6, 8}})[0],
             {-3, -4});
  ExpectNear(TensorTrajectory(Lamb{.learning_rate = 0.1, .epsilon = 1e-30}, {0, 0}, {{6, -8}})[0],
             {-0.1, 0.1});
  ExpectNear(TensorTrajectory(Lars{.weight_decay = 0}, {3, 4}, {{0, 0}})[0], {3, 4});
}

TEST(UpdateTest, NormsHaveTheSameBitsOnEveryTarget) {
  constexpr size_t kCount = 4099;
  std::mt19937_64 random(8);
  std::normal_distribution<double> normal(0, 1);
  std::vector<float> x(kCount), g(kCount), m(kCount), v(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    x[i] = static_cast<float>(normal(random));
    g[i] = static_cast<float>(normal(random));
    m[i] = static_cast<float>(normal(random));
    v[i] = static_cast<float>(std::fabs(normal(random)));
  }
  const auto bytes = [](const std::vector<float>& values) {
    return reinterpret_cast<const std::byte*>(values.data());
  };
  for (const Optimizer& rule : {Optimizer(Lamb{}), Optimizer(Lars{})}) {
    std::vector<const std::byte*> slots = {bytes(m), bytes(v)};
    slots.resize(SlotCount(rule));
    std::vector<SquareSums> sums;
    OnEveryTarget([&] {
      sums.push_back(SumSquares(rule, DType::kF32, 3, bytes(g), kCount, bytes(x), slots));
      EXPECT_EQ(sums.back().values, sums[0].values);
      EXPECT_EQ(sums.back().change, sums[0].change);
    });
    // For Lamb, the change is what an update with learning rate 1 subtracts.
    double want = 0;
    for (size_t i = 0; i < kCount; ++i) {
      float from = x[i], slot[2] = {m[i], v[i]};
      reference::UpdateOne(Lamb{.learning_rate = 1}, 3, g[i], from, slot);
      const double change =
          std::holds_alternative<Lars>(rule) ? g[i] : static_cast<double>(x[i]) - from;
      want += change * change;
    }
    EXPECT_NEAR(sums[0].change / want, 1, 1e-5) << ToString(rule);
  }
}

template <typename T>
std::vector<T> Elements(const Bytes& bytes) {
  std::vector<T> elements(bytes.size() / sizeof(T));
  if (!elements.empty()) std::memcpy(elements.data(), bytes.data(), bytes.size());
  return elements;
}

template <typename T>
testing::AssertionResult Same(const Bytes& got, const std::vector<T>& want) {
  return SameBits(DTypeOf<T>::value, got.data(), reinterpret_cast<const std::byte*>(want.data()),
                  want.size());
}

template <typename T>
void ExpectTheBitsOfThePlainLoop(const Optimizer& rule, size_t count) {
  constexpr DType kDType = DTypeOf<T>::value;
  constexpr uint64_t kSeed = 7;
  constexpr uint64_t kSteps = 5;
  SCOPED_TRACE(absl::StrCat(ToString(rule), " ", NameOf(kDType), " x ", count));
  OnEveryTarget([&] {
    std::mt19937_64 random(kSeed);
    State state(rule, kDType, count, 1);
    state.params() = AwkwardElements(kDType, count, 1, random);
    std::vector<T> params = Elements<T>(state.params());
    std::vector<std::vector<T>> slots(SlotCount(rule), std::vector<T>(count));
    for (uint64_t step = 1; step <= kSteps; ++step) {
      const Bytes grad = AwkwardElements(kDType, count, 2, random);
      state.Update(step, grad.data());
      reference::Update(rule, step, Elements<T>(grad), params, slots);
      EXPECT_TRUE(Same(state.params(), params)) << "step " << step;
      for (size_t s = 0; s < slots.size(); ++s) {
        EXPECT_TRUE(Same(state.slots()[s], slots[s])) << SlotNames(rule)[s] << " step " << step;
      }
    }
  });
}

TEST(UpdateTest, HasTheBitsOfThePlainLoopOnEveryTarget) {
  for (const Optimizer& rule : kOptimizers) {
    for (const size_t count : {0, 1, 3, 15, 16, 17, 1000, 4099}) {
      ExpectTheBitsOfThePlainLoop<float>(rule, count);
      ExpectTheBitsOfThePlainLoop<double>(rule, count);
      if (HasFailure()) return;
    }
  }
}

TEST(UpdateTest, IsTheSameHoweverTheParameterIsCut) {
  constexpr size_t kCount = 77;
  std::mt19937_64 random(3);
  for (const Optimizer& rule : kOptimizers) {
    for (size_t cut = 0; cut <= kCount; ++cut) {
      State whole(rule, DType::kF32, kCount, 0), halves(rule, DType::kF32, kCount, 0);
      for (uint64_t step = 1; step <= 2; ++step) {
        const Bytes grad = AwkwardElements(DType::kF32, kCount, 0, random);
        whole.Update(step, grad.data());
        halves.Update(step, grad.data(), 0, cut);
        halves.Update(step, grad.data(), cut, kCount);
      }
      EXPECT_TRUE(SameBits(DType::kF32, halves.params().data(), whole.params().data(), kCount))
          << ToString(rule) << " cut at " << cut;
    }
  }
}

TEST(UpdateTest, ReadsTheOldStateAndWritesTheNew) {
  constexpr size_t kCount = 19;
  std::mt19937_64 random(4);
  for (const Optimizer& rule : kOptimizers) {
    State in_place(rule, DType::kF32, kCount, 0);
    in_place.params() = AwkwardElements(DType::kF32, kCount, 0, random);
    const std::vector<float> before = Elements<float>(in_place.params());
    const std::vector<float> zeros(kCount);
    const Bytes grad = AwkwardElements(DType::kF32, kCount, 0, random);

    State next(rule, DType::kF32, kCount, 0);
    std::vector<const std::byte*> old_slots;
    std::vector<std::byte*> new_slots;
    for (size_t s = 0; s < in_place.slots().size(); ++s) {
      old_slots.push_back(in_place.slots()[s].data());
      new_slots.push_back(next.slots()[s].data());
    }
    ApplyUpdate(rule, DType::kF32, 1, grad.data(), kCount, in_place.params().data(),
                next.params().data(), old_slots, new_slots);
    EXPECT_TRUE(Same(in_place.params(), before));
    for (const Bytes& slot : in_place.slots()) EXPECT_TRUE(Same(slot, zeros));

    in_place.Update(1, grad.data());
    EXPECT_TRUE(Same(next.params(), Elements<float>(in_place.params()))) << ToString(rule);
    for (size_t s = 0; s < in_place.slots().size(); ++s) {
      EXPECT_TRUE(Same(next.slots()[s], Elements<float>(in_place.slots()[s]))) << ToString(rule);
    }
  }
}

TEST(UpdateTest, MayWriteOverItsGradient) {
  const Adam rule;
  constexpr size_t kCount = 35;
  std::mt19937_64 random(5);
  Bytes grad = AwkwardElements(DType::kF32, kCount, 0, random);
  State state(rule, DType::kF32, kCount, 0);
  State want(rule, DType::kF32, kCount, 0);
  want.Update(1, grad.data());
  ApplyUpdate(rule, DType::kF32, 1, grad.data(), kCount, state.params().data(), grad.data(),
              {state.slots()[0].data(), state.slots()[1].data()},
              {state.slots()[0].data(), state.slots()[1].data()});
  EXPECT_TRUE(SameBits(DType::kF32, grad.data(), want.params().data(), kCount));
}

// The optimizers implemented a second time, directly from the papers, independently of the code
// under test: with whole histories instead of slots, and in long double.
class Formula {
 public:
  explicit Formula(const Optimizer& rule) : rule_(rule) {}

  long double Step(long double g, long double x) {
    return std::visit([&](const auto& r) { return Next(r, g, x); }, rule_);
  }
  // The largest change of x so far.
  long double largest_change = 0;

 private:
  using Real = long double;

  Real Moved(Real x, Real change) {
    largest_change = std::max(largest_change, std::fabs(change));
    return x + change;
  }
  // Returns the sum of weight^age times each element of `history`.
  static Real Decayed(const std::vector<Real>& history, Real weight) {
    Real sum = 0;
    for (const Real value : history) sum = sum * weight + value;
    return sum;
  }
  Real Next(const Sgd& r, Real g, Real x) {
    return Moved(x, -Real(r.learning_rate) * (g + r.weight_decay * x));
  }
  Real Next(const Momentum& r, Real g, Real x) {
    history_.push_back(g + r.weight_decay * x);
    return Moved(x, -r.learning_rate * Decayed(history_, r.momentum));
  }
  // Sutskever's form computes the gradient at a point ahead of the parameter. y is the parameter
  // without momentum. Our parameter is x = y + momentum * v.
  Real Next(const Nesterov& r, Real g, Real x) {
    const Real y = x - r.momentum * velocity_;
    velocity_ = r.momentum * velocity_ - r.learning_rate * (g + r.weight_decay * x);
    return Moved(x, (y + velocity_ + r.momentum * velocity_) - x);
  }
  Real Next(const RmsProp& r, Real g, Real x) {
    squares_.push_back(g * g);
    const Real mean = (1 - Real(r.decay)) * Decayed(squares_, r.decay);
    return Moved(x, -r.learning_rate * g / (std::sqrt(mean) + r.epsilon));
  }
  Real Next(const Adagrad& r, Real g, Real x) {
    squares_.push_back(g * g);
    return Moved(x, -r.learning_rate * g / (std::sqrt(Decayed(squares_, 1)) + r.epsilon));
  }
  Real Next(const Adam& r, Real g, Real x) {
    history_.push_back(g);
    squares_.push_back(g * g);
    const Real t = static_cast<Real>(history_.size());
    const Real b1 = r.beta1, b2 = r.beta2;
    const Real m = (1 - b1) * Decayed(history_, b1) / (1 - std::pow(b1, t));
    const Real v = (1 - b2) * Decayed(squares_, b2) / (1 - std::pow(b2, t));
    return Moved(x, -r.learning_rate * m / (std::sqrt(v) + r.epsilon));
  }
  Real Next(const Lion& r, Real g, Real x) {
    // m does not yet contain the current gradient, and it decays with beta2.
    const Real m = (1 - Real(r.beta2)) * Decayed(history_, r.beta2);
    history_.push_back(g);
    const Real c = Real(r.beta1) * m + (1 - Real(r.beta1)) * g;
    const Real sign = c > 0 ? 1 : c < 0 ? -1 : 0;
    return Moved(x, -Real(r.learning_rate) * (sign + r.weight_decay * x));
  }
  // Assumes a ratio of 1.
  Real Next(const Lamb& r, Real g, Real x) {
    const Real largest = largest_change;
    const Real adam = -Next(Adam{1, r.beta1, r.beta2, r.epsilon}, g, 0);
    largest_change = largest;
    return Moved(x, -Real(r.learning_rate) * (adam + r.weight_decay * x));
  }
  Real Next(const Lars& r, Real g, Real x) {
    return Next(Momentum{r.learning_rate, r.momentum, r.weight_decay}, g, x);
  }
  Real Next(const AdamW& r, Real g, Real x) {
    const Real decayed = x * (1 - Real(r.learning_rate) * r.weight_decay);
    return Next(Adam{r.learning_rate, r.beta1, r.beta2, r.epsilon}, g, decayed);
  }

  const Optimizer rule_;
  std::vector<Real> history_, squares_;
  Real velocity_ = 0;
};

// Returns approximately how many of the latest gradients affect a slot.
double Memory(const Optimizer& rule, double steps) {
  struct {
    double operator()(const Sgd&) { return 1; }
    double operator()(const Momentum& r) { return 1 / (1 - r.momentum); }
    double operator()(const Nesterov& r) { return 1 / (1 - r.momentum); }
    double operator()(const RmsProp& r) { return 1 / (1 - r.decay); }
    double operator()(const Adagrad&) { return steps; }
    double operator()(const Adam& r) { return 1 / (1 - r.beta2); }
    double operator()(const AdamW& r) { return 1 / (1 - r.beta2); }
    double operator()(const Lion& r) { return 1 / (1 - r.beta2); }
    double operator()(const Lamb& r) { return 1 / (1 - r.beta2); }
    double operator()(const Lars& r) { return 1 / (1 - r.momentum); }
    double steps;
  } memory{steps};
  return std::visit(memory, rule);
}

template <typename T>
void ExpectTheFormula(const Optimizer& rule) {
  constexpr uint64_t kSteps = 1000;
  SCOPED_TRACE(absl::StrCat(ToString(rule), " ", NameOf(DTypeOf<T>::value)));
  std::mt19937 random(11);
  std::normal_distribution<double> normal(0.3, 1);
  State state(rule, DTypeOf<T>::value, 1, 0);
  Formula formula(rule);
  T x = 1;
  long double want = 1;
  double largest = 1;
  std::memcpy(state.params().data(), &x, sizeof(x));
  for (uint64_t step = 1; step <= kSteps; ++step) {
    const T grad = static_cast<T>(normal(random));
    state.Update(step, reinterpret_cast<const std::byte*>(&grad));
    want = formula.Step(grad, want);
    largest = std::max(largest, static_cast<double>(std::fabs(want)));
  }
  std::memcpy(&x, state.params().data(), sizeof(x));
  // Each step rounds x once, by half an epsilon of x. The change of x has an error of one epsilon
  // for each of at most 8 operations, and 8 more for each gradient that affects its slots (their
  // sums, their products, and the rounding of the decay itself).
  const double epsilon = std::numeric_limits<T>::epsilon();
  const double change = static_cast<double>(formula.largest_change);
  const double tolerance =
      kSteps * epsilon * (largest / 2 + 8 * (1 + Memory(rule, kSteps)) * change);
  EXPECT_NEAR(static_cast<double>(x), static_cast<double>(want), tolerance);
  // The test is meaningful only if the tolerance is much smaller than the total change.
  EXPECT_LT(tolerance, 0.05 * std::fabs(static_cast<double>(want) - 1));
}

TEST(UpdateTest, IsNearTheFormulaAfterManySteps) {
  for (const Optimizer& rule : kOptimizers) {
    ExpectTheFormula<float>(rule);
    ExpectTheFormula<double>(rule);
  }
}

TEST(UpdateTest, KeepsItsVelocityWhenTheLearningRateChanges) {
  // The velocity of Momentum is in units of the parameter.
  State state(Momentum{.learning_rate = 0.01, .momentum = 0.5}, DType::kF64, 1, 0);
  const double grad = 2, none = 0;
  state.Update(1, reinterpret_cast<const std::byte*>(&grad));
  std::byte* const slot = state.slots()[0].data();
  ApplyUpdate(Momentum{.learning_rate = 10, .momentum = 0.5}, DType::kF64, 2,
              reinterpret_cast<const std::byte*>(&none), 1, state.params().data(),
              state.params().data(), {slot}, {slot});
  EXPECT_NEAR(Elements<double>(state.params())[0], -0.02 - 0.01, 1e-15);
}

TEST(UpdateDeathTest, NeedsItsSlots) {
  float x = 0;
  std::byte* const bytes = reinterpret_cast<std::byte*>(&x);
  EXPECT_DEATH(ApplyUpdate(Momentum{}, DType::kF32, 1, bytes, 1, bytes, bytes, {}, {}),
               "has its rule's slots");
  EXPECT_DEATH(ApplyUpdate(Sgd{}, DType::kF16, 1, bytes, 1, bytes, bytes, {}, {}), "f32 or f64");
  EXPECT_DEATH(ApplyUpdate(Sgd{}, DType::kF32, 0, bytes, 1, bytes, bytes, {}, {}), "at least 1");
}

}  // namespace
}  // namespace syncgrads
