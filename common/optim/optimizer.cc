#include "common/optim/optimizer.h"

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace syncgrads {
namespace {

enum class Range {
  kNotNegative,  // 0, or a normal float32 above 0
  kPositive,     // a normal float32 above 0
  kFraction,     // from 0 to below 1
};

struct Hyperparameter {
  absl::string_view name;
  double value;
  Range range;
};

struct Description {
  absl::string_view name;
  std::vector<Hyperparameter> hyperparameters;
  absl::Span<const absl::string_view> slots;
};

constexpr absl::string_view kVelocity[] = {"velocity"};
constexpr absl::string_view kMeanSquare[] = {"mean_square"};
constexpr absl::string_view kSumOfSquares[] = {"sum_of_squares"};
constexpr absl::string_view kMoment[] = {"m"};
constexpr absl::string_view kMoments[] = {"m", "v"};

Description Describe(const Sgd& r) {
  return {"sgd",
          {{"learning_rate", r.learning_rate, Range::kNotNegative},
           {"weight_decay", r.weight_decay, Range::kNotNegative}},
          {}};
}
Description Describe(const Momentum& r) {
  return {"momentum",
          {{"learning_rate", r.learning_rate, Range::kNotNegative},
           {"momentum", r.momentum, Range::kFraction},
           {"weight_decay", r.weight_decay, Range::kNotNegative}},
          kVelocity};
}
Description Describe(const Nesterov& r) {
  return {"nesterov",
          {{"learning_rate", r.learning_rate, Range::kNotNegative},
           {"momentum", r.momentum, Range::kFraction},
           {"weight_decay", r.weight_decay, Range::kNotNegative}},
          kVelocity};
}
Description Describe(const RmsProp& r) {
  return {"rmsprop",
          {{"learning_rate", r.learning_rate, Range::kNotNegative},
           {"decay", r.decay, Range::kFraction},
           {"epsilon", r.epsilon, Range::kPositive}},
          kMeanSquare};
}
Description Describe(const Adagrad& r) {
  return {"adagrad",
          {{"learning_rate", r.learning_rate, Range::kNotNegative},
           {"epsilon", r.epsilon, Range::kPositive}},
          kSumOfSquares};
}
Description Describe(const Adam& r) {
  return {"adam",
          {{"learning_rate", r.learning_rate, Range::kNotNegative},
           {"beta1", r.beta1, Range::kFraction},
           {"beta2", r.beta2, Range::kFraction},
           {"epsilon", r.epsilon, Range::kPositive}},
          kMoments};
}
Description Describe(const AdamW& r) {
  return {"adamw",
          {{"learning_rate", r.learning_rate, Range::kNotNegative},
           {"beta1", r.beta1, Range::kFraction},
           {"beta2", r.beta2, Range::kFraction},
           {"epsilon", r.epsilon, Range::kPositive},
           {"weight_decay", r.weight_decay, Range::kNotNegative}},
          kMoments};
}

Description Describe(const Lion& r) {
  return {"lion",
          {{"learning_rate", r.learning_rate, Range::kNotNegative},
           {"beta1", r.beta1, Range::kFraction},
           {"beta2", r.beta2, Range::kFraction},
           {"weight_decay", r.weight_decay, Range::kNotNegative}},
          kMoment};
}
Description Describe(const Lamb& r) {
  return {"lamb",
          {{"learning_rate", r.learning_rate, Range::kNotNegative},
           {"beta1", r.beta1, Range::kFraction},
           {"beta2", r.beta2, Range::kFraction},
           {"epsilon", r.epsilon, Range::kPositive},
           {"weight_decay", r.weight_decay, Range::kNotNegative}},
          kMoments};
}
Description Describe(const Lars& r) {
  return {"lars",
          {{"learning_rate", r.learning_rate, Range::kNotNegative},
           {"momentum", r.momentum, Range::kFraction},
           {"weight_decay", r.weight_decay, Range::kNotNegative},
           {"trust", r.trust, Range::kNotNegative}},
          kVelocity};
}

Description Describe(const Optimizer& rule) {
  return std::visit([](const auto& r) { return Describe(r); }, rule);
}

bool Contains(Range range, double value) {
  constexpr double kLeast = std::numeric_limits<float>::min();
  constexpr double kMost = std::numeric_limits<float>::max();
  // Each comparison below is false for a NaN.
  switch (range) {
    case Range::kNotNegative:
      return value == 0 || (value >= kLeast && value <= kMost);
    case Range::kPositive:
      return value >= kLeast && value <= kMost;
    case Range::kFraction:
      return value >= 0 && value < 1;
  }
  return false;
}

absl::string_view ToString(Range range) {
  switch (range) {
    case Range::kNotNegative:
      return "must be 0 or a positive float32 (1.2e-38 to 3.4e+38)";
    case Range::kPositive:
      return "must be a positive float32 (1.2e-38 to 3.4e+38)";
    case Range::kFraction:
      return "must be at least 0 and less than 1";
  }
  return "";
}

// Returns a number's digits that read back as the same number: the shortest for most numbers that
// people write, and all digits for the others.
std::string Digits(double value) {
  char text[32];
  for (const int digits : {6, 9, 17}) {
    std::snprintf(text, sizeof(text), "%.*g", digits, value);
    if (std::strtod(text, nullptr) == value) break;
  }
  return text;
}

template <typename Rule>
constexpr bool kHasWeightDecay = requires(Rule rule) {
  rule.weight_decay;
};

// Validate accepts only normal numbers and 0.
void Multiply(double factor, double& value) {
  value *= factor;
  if (value < std::numeric_limits<float>::min()) value = 0;
}

}  // namespace

absl::string_view NameOf(const Optimizer& rule) { return Describe(rule).name; }

std::string ToString(const Optimizer& rule) {
  const Description description = Describe(rule);
  return absl::StrCat(description.name, "(",
                      absl::StrJoin(description.hyperparameters, ", ",
                                    [](std::string* out, const Hyperparameter& h) {
                                      absl::StrAppend(out, h.name, "=", Digits(h.value));
                                    }),
                      ")");
}

Optimizer WithRateFactor(const Optimizer& rule, double factor) {
  return WithFactors(rule, {.learning_rate = factor});
}

Optimizer WithFactors(const Optimizer& rule, const TensorFactors& factors) {
  Optimizer scaled = rule;
  std::visit(
      [&factors](auto& one) {
        Multiply(factors.learning_rate, one.learning_rate);
        if constexpr (kHasWeightDecay<decltype(one)>) {
          Multiply(factors.weight_decay, one.weight_decay);
        }
      },
      scaled);
  return scaled;
}

bool HasWeightDecay(const Optimizer& rule) {
  return std::visit([](const auto& one) { return kHasWeightDecay<decltype(one)>; }, rule);
}

std::string ToString(const TensorFactors& factors) {
  return absl::StrCat("learning_rate=", Digits(factors.learning_rate),
                      ", weight_decay=", Digits(factors.weight_decay));
}

absl::Status Validate(const TensorFactors& factors) {
  for (const auto& [name, factor] : {std::pair("learning_rate", factors.learning_rate),
                                     std::pair("weight_decay", factors.weight_decay)}) {
    if (factor == 0 || (factor >= kMinTensorFactor && factor <= kMaxTensorFactor)) continue;
    return absl::InvalidArgumentError(absl::StrCat("the factor of ", name, " is ", Digits(factor),
                                                   ", must be 0 or from ", kMinTensorFactor, " to ",
                                                   kMaxTensorFactor));
  }
  return absl::OkStatus();
}

absl::Status Validate(const Optimizer& rule) {
  const Description description = Describe(rule);
  for (const Hyperparameter& h : description.hyperparameters) {
    if (Contains(h.range, h.value)) continue;
    return absl::InvalidArgumentError(absl::StrCat(description.name, ": ", h.name, " is ",
                                                   Digits(h.value), ", ", ToString(h.range)));
  }
  return absl::OkStatus();
}

absl::Span<const absl::string_view> SlotNames(const Optimizer& rule) {
  return Describe(rule).slots;
}

bool NeedsNorms(const Optimizer& rule) {
  return std::holds_alternative<Lamb>(rule) || std::holds_alternative<Lars>(rule);
}

int SlotCount(const Optimizer& rule) { return static_cast<int>(SlotNames(rule).size()); }

}  // namespace syncgrads
