// One class per optimizer. Each has the scalars, rounded to the parameter's type, and an Update
// function for one or more elements, which updates the slots in place and returns the new
// parameter. The formulas are in update.h; the operations here have the order written there.
//
// The including file defines V, a number or a vector of numbers, and its operations `ops`: Set,
// Add, Sub, Mul, Div and Sqrt, each rounded by itself, and Sign, which is 1 for numbers above 0, -1
// for numbers below 0, and otherwise its argument. Thus all kinds of processors and devices compute
// from the same code and get the same bits.
//
// This file is included inside a namespace, once for each set of operations, after <type_traits>,
// common/optim/power.h and common/update_rule.h. SYNCGRADS_STEP_INLINE must be defined as the
// specifiers of functions that use V.

template <typename T>
class SgdStep {
 public:
  static constexpr size_t kSlots = 0;
  SgdStep(const Sgd& rule, uint64_t, double)
      : learning_rate_(static_cast<T>(rule.learning_rate)),
        weight_decay_(static_cast<T>(rule.weight_decay)) {}

  template <class Ops, class V>
  SYNCGRADS_STEP_INLINE V Update(Ops ops, V g, V x, V*) const {
    if (weight_decay_ != 0) g = ops.Add(g, ops.Mul(ops.Set(weight_decay_), x));
    return ops.Sub(x, ops.Mul(ops.Set(learning_rate_), g));
  }

 private:
  T learning_rate_, weight_decay_;
};

// The step of Momentum and of Lars. Lars multiplies the learning rate by a ratio; for Momentum, the
// ratio is 1.
template <typename T>
class MomentumStep {
 public:
  static constexpr size_t kSlots = 1;
  template <class Rule>
  MomentumStep(const Rule& rule, uint64_t, double ratio)
      : rate_(static_cast<T>(rule.learning_rate * ratio)),
        momentum_(static_cast<T>(rule.momentum)),
        weight_decay_(static_cast<T>(rule.weight_decay)) {}

  template <class Ops, class V>
  SYNCGRADS_STEP_INLINE V Update(Ops ops, V g, V x, V* slots) const {
    if (weight_decay_ != 0) g = ops.Add(g, ops.Mul(ops.Set(weight_decay_), x));
    const V step = ops.Mul(ops.Set(rate_), g);
    slots[0] = ops.Add(ops.Mul(ops.Set(momentum_), slots[0]), step);
    return ops.Sub(x, slots[0]);
  }

 private:
  T rate_, momentum_, weight_decay_;
};

template <typename T>
class NesterovStep {
 public:
  static constexpr size_t kSlots = 1;
  NesterovStep(const Nesterov& rule, uint64_t, double)
      : learning_rate_(static_cast<T>(rule.learning_rate)),
        momentum_(static_cast<T>(rule.momentum)),
        weight_decay_(static_cast<T>(rule.weight_decay)) {}

  template <class Ops, class V>
  SYNCGRADS_STEP_INLINE V Update(Ops ops, V g, V x, V* slots) const {
    if (weight_decay_ != 0) g = ops.Add(g, ops.Mul(ops.Set(weight_decay_), x));
    const V momentum = ops.Set(momentum_);
    const V step = ops.Mul(ops.Set(learning_rate_), g);
    slots[0] = ops.Add(ops.Mul(momentum, slots[0]), step);
    return ops.Sub(x, ops.Add(ops.Mul(momentum, slots[0]), step));
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

  template <class Ops, class V>
  SYNCGRADS_STEP_INLINE V Update(Ops ops, V g, V x, V* slots) const {
    slots[0] = ops.Add(ops.Mul(ops.Set(decay_), slots[0]), ops.Mul(ops.Set(rest_), ops.Mul(g, g)));
    const V divisor = ops.Add(ops.Sqrt(slots[0]), ops.Set(epsilon_));
    return ops.Sub(x, ops.Div(ops.Mul(ops.Set(learning_rate_), g), divisor));
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

  template <class Ops, class V>
  SYNCGRADS_STEP_INLINE V Update(Ops ops, V g, V x, V* slots) const {
    slots[0] = ops.Add(slots[0], ops.Mul(g, g));
    const V divisor = ops.Add(ops.Sqrt(slots[0]), ops.Set(epsilon_));
    return ops.Sub(x, ops.Div(ops.Mul(ops.Set(learning_rate_), g), divisor));
  }

 private:
  T learning_rate_, epsilon_;
};

// The moments of Adam, AdamW and Lamb: the moving averages of the gradient (slot 0) and of its
// square (slot 1).
template <typename T>
class AdamMoments {
 public:
  template <class Rule>
  AdamMoments(const Rule& rule, uint64_t step)
      : beta1_(static_cast<T>(rule.beta1)),
        rest1_(static_cast<T>(1 - rule.beta1)),
        correction1_(static_cast<T>(1 - Power(rule.beta1, step))),
        beta2_(static_cast<T>(rule.beta2)),
        rest2_(static_cast<T>(1 - rule.beta2)),
        correction2_(static_cast<T>(1 - Power(rule.beta2, step))),
        epsilon_(static_cast<T>(rule.epsilon)) {}

  template <class V>
  struct Corrected {
    V mean;
    V divisor;  // the square root of the corrected second moment, plus epsilon
  };
  template <class Ops, class V>
  SYNCGRADS_STEP_INLINE Corrected<V> Update(Ops ops, V g, V* slots) const {
    slots[0] = ops.Add(ops.Mul(ops.Set(beta1_), slots[0]), ops.Mul(ops.Set(rest1_), g));
    slots[1] = ops.Add(ops.Mul(ops.Set(beta2_), slots[1]), ops.Mul(ops.Set(rest2_), ops.Mul(g, g)));
    const V v = ops.Div(slots[1], ops.Set(correction2_));
    return {ops.Div(slots[0], ops.Set(correction1_)), ops.Add(ops.Sqrt(v), ops.Set(epsilon_))};
  }

 private:
  T beta1_, rest1_, correction1_, beta2_, rest2_, correction2_, epsilon_;
};

// The step of Adam and of AdamW. AdamW decays the parameter first.
template <typename T>
class AdamStep {
 public:
  static constexpr size_t kSlots = 2;
  template <class Rule>
  AdamStep(const Rule& rule, uint64_t step, double)
      : moments_(rule, step), learning_rate_(static_cast<T>(rule.learning_rate)) {
    if constexpr (std::is_same_v<Rule, AdamW>) {
      decay_ = static_cast<T>(rule.learning_rate * rule.weight_decay);
    }
  }

  template <class Ops, class V>
  SYNCGRADS_STEP_INLINE V Update(Ops ops, V g, V x, V* slots) const {
    if (decay_ != 0) x = ops.Sub(x, ops.Mul(ops.Set(decay_), x));
    const auto [mean, divisor] = moments_.Update(ops, g, slots);
    return ops.Sub(x, ops.Div(ops.Mul(ops.Set(learning_rate_), mean), divisor));
  }

 private:
  AdamMoments<T> moments_;
  T learning_rate_;
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

  template <class Ops, class V>
  SYNCGRADS_STEP_INLINE V Update(Ops ops, V g, V x, V* slots) const {
    const V c = ops.Add(ops.Mul(ops.Set(beta1_), slots[0]), ops.Mul(ops.Set(rest1_), g));
    const V sign = ops.Sign(c);
    if (decay_ != 0) x = ops.Sub(x, ops.Mul(ops.Set(decay_), x));
    slots[0] = ops.Add(ops.Mul(ops.Set(beta2_), slots[0]), ops.Mul(ops.Set(rest2_), g));
    return ops.Sub(x, ops.Mul(ops.Set(learning_rate_), sign));
  }

 private:
  T learning_rate_, beta1_, rest1_, beta2_, rest2_, decay_;
};

// Computes Lamb's change r1 (see update.h). Update returns it in place of the new parameter, and
// sets the slots to their new values.
template <typename T>
class LambChange {
 public:
  static constexpr size_t kSlots = 2;
  LambChange(const Lamb& rule, uint64_t step, double)
      : moments_(rule, step), weight_decay_(static_cast<T>(rule.weight_decay)) {}

  template <class Ops, class V>
  SYNCGRADS_STEP_INLINE V Update(Ops ops, V g, V x, V* slots) const {
    const auto [mean, divisor] = moments_.Update(ops, g, slots);
    const V change = ops.Div(mean, divisor);
    if (weight_decay_ == 0) return change;
    return ops.Add(change, ops.Mul(ops.Set(weight_decay_), x));
  }

 private:
  AdamMoments<T> moments_;
  T weight_decay_;
};

template <typename T>
class LambStep {
 public:
  static constexpr size_t kSlots = 2;
  LambStep(const Lamb& rule, uint64_t step, double ratio)
      : change_(rule, step, ratio), rate_(static_cast<T>(rule.learning_rate * ratio)) {}

  template <class Ops, class V>
  SYNCGRADS_STEP_INLINE V Update(Ops ops, V g, V x, V* slots) const {
    return ops.Sub(x, ops.Mul(ops.Set(rate_), change_.Update(ops, g, x, slots)));
  }

 private:
  LambChange<T> change_;
  T rate_;
};

// Makes the step of a rule. Only Lamb and Lars use `ratio`.
template <typename T>
struct StepOf {
  SgdStep<T> operator()(const Sgd& rule) const { return {rule, step, ratio}; }
  MomentumStep<T> operator()(const Momentum& rule) const { return {rule, step, ratio}; }
  NesterovStep<T> operator()(const Nesterov& rule) const { return {rule, step, ratio}; }
  RmsPropStep<T> operator()(const RmsProp& rule) const { return {rule, step, ratio}; }
  AdagradStep<T> operator()(const Adagrad& rule) const { return {rule, step, ratio}; }
  AdamStep<T> operator()(const Adam& rule) const { return {rule, step, ratio}; }
  AdamStep<T> operator()(const AdamW& rule) const { return {rule, step, ratio}; }
  LionStep<T> operator()(const Lion& rule) const { return {rule, step, ratio}; }
  LambStep<T> operator()(const Lamb& rule) const { return {rule, step, ratio}; }
  MomentumStep<T> operator()(const Lars& rule) const { return {rule, step, ratio}; }

  uint64_t step = 0;
  double ratio = 1;
};
