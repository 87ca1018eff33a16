#include "common/optim/optimizer.h"

#include <limits>

#include "absl/status/status.h"
#include "common/update_rule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(OptimizerTest, SaysItsNameAndEveryHyperparameter) {
  EXPECT_EQ(NameOf(AdamW{}), "adamw");
  EXPECT_EQ(ToString(Sgd{}), "sgd(learning_rate=0.01, weight_decay=0)");
  EXPECT_EQ(ToString(AdamW{}),
            "adamw(learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-08, weight_decay=0.01)");
  EXPECT_EQ(ToString(Sgd{.learning_rate = 1.0 / 3}),
            "sgd(learning_rate=0.33333333333333331, weight_decay=0)");
}

TEST(OptimizerTest, NamesItsSlots) {
  EXPECT_THAT(SlotNames(Sgd{}), IsEmpty());
  EXPECT_THAT(SlotNames(Momentum{}), ElementsAre("velocity"));
  EXPECT_THAT(SlotNames(Nesterov{}), ElementsAre("velocity"));
  EXPECT_THAT(SlotNames(RmsProp{}), ElementsAre("mean_square"));
  EXPECT_THAT(SlotNames(Adagrad{}), ElementsAre("sum_of_squares"));
  EXPECT_THAT(SlotNames(Adam{}), ElementsAre("m", "v"));
  EXPECT_THAT(SlotNames(AdamW{}), ElementsAre("m", "v"));
  EXPECT_THAT(SlotNames(Lion{}), ElementsAre("m"));
  EXPECT_THAT(SlotNames(Lamb{}), ElementsAre("m", "v"));
  EXPECT_THAT(SlotNames(Lars{}), ElementsAre("velocity"));
  EXPECT_EQ(SlotCount(Sgd{}), 0);
  EXPECT_EQ(SlotCount(AdamW{}), 2);
}

TEST(OptimizerTest, IsValidByDefaultAndAtItsLimits) {
  for (const Optimizer& rule :
       {Optimizer(Sgd{}), Optimizer(Momentum{}), Optimizer(Nesterov{}), Optimizer(RmsProp{}),
        Optimizer(Adagrad{}), Optimizer(Adam{}), Optimizer(AdamW{}), Optimizer(Lion{}),
        Optimizer(Lamb{}), Optimizer(Lars{}), Optimizer(Lars{.trust = 0}),
        Optimizer(Sgd{.learning_rate = 0}), Optimizer(Adam{.beta1 = 0, .beta2 = 0})}) {
    EXPECT_TRUE(Validate(rule).ok()) << ToString(rule);
  }
}

TEST(TensorFactorsTest, MultiplyTheLearningRateAndTheWeightDecayIfThereIsOne) {
  const TensorFactors factors = {.learning_rate = 0.5, .weight_decay = 0};
  EXPECT_TRUE(
      WithFactors(Momentum{.learning_rate = 0.5, .momentum = 0.8, .weight_decay = 0.1}, factors) ==
      Optimizer(Momentum{.learning_rate = 0.25, .momentum = 0.8, .weight_decay = 0}));
  EXPECT_TRUE(WithFactors(Adam{.learning_rate = 1}, factors) ==
              Optimizer(Adam{.learning_rate = 0.5}));
  // Below the smallest normal float32.
  EXPECT_TRUE(WithFactors(Sgd{.learning_rate = 1e-36, .weight_decay = 1e-36}, {1e-3, 1e-3}) ==
              Optimizer(Sgd{.learning_rate = 0, .weight_decay = 0}));
  EXPECT_TRUE(HasWeightDecay(Lars{}));
  EXPECT_FALSE(HasWeightDecay(RmsProp{}));
}

TEST(TensorFactorsTest, OutOfTheirRangeAreRefusedByNameAndValue) {
  EXPECT_TRUE(Validate(TensorFactors{0, 0}).ok());
  EXPECT_TRUE(Validate(TensorFactors{1e6, 1e-6}).ok());
  for (const double wrong : {-1.0, 1e-7, 2e6, kNaN, kInfinity}) {
    const absl::Status rate = Validate(TensorFactors{.learning_rate = wrong});
    EXPECT_EQ(rate.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(rate.message(), HasSubstr("the factor of learning_rate is"));
    EXPECT_THAT(Validate(TensorFactors{.weight_decay = wrong}).message(),
                HasSubstr("the factor of weight_decay is"));
  }
}

TEST(OptimizerTest, RefusesAHyperparameterOutOfRangeByNameAndValue) {
  const struct {
    Optimizer rule;
    const char* message;
  } kCases[] = {
      {Sgd{.learning_rate = -1}, "sgd: learning_rate is -1,"},
      {Sgd{.learning_rate = kNaN}, "sgd: learning_rate is nan,"},
      {Sgd{.learning_rate = kInfinity}, "sgd: learning_rate is inf,"},
      {Sgd{.learning_rate = 1e300}, "sgd: learning_rate is 1e+300,"},
      {Sgd{.weight_decay = -0.5}, "sgd: weight_decay is -0.5,"},
      {Momentum{.momentum = 1}, "momentum: momentum is 1,"},
      {Nesterov{.momentum = -0.1}, "nesterov: momentum is -0.1,"},
      {RmsProp{.decay = kNaN}, "rmsprop: decay is nan,"},
      {RmsProp{.epsilon = 0}, "rmsprop: epsilon is 0,"},
      {Adagrad{.epsilon = 1e-50}, "adagrad: epsilon is 1e-50,"},
      {Adam{.beta1 = 1.5}, "adam: beta1 is 1.5,"},
      {Adam{.beta2 = 1}, "adam: beta2 is 1,"},
      {AdamW{.weight_decay = kInfinity}, "adamw: weight_decay is inf,"},
      {Lion{.beta2 = 1}, "lion: beta2 is 1,"},
      {Lamb{.epsilon = 0}, "lamb: epsilon is 0,"},
      {Lars{.trust = -1}, "lars: trust is -1,"},
  };
  for (const auto& c : kCases) {
    const absl::Status status = Validate(c.rule);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(status.message(), HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace syncgrads
