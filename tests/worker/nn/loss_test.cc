#include "worker/nn/loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "worker/nn/cpu/cpu_device.h"

namespace syncgrads {
namespace {

template <typename T>
class LossTest : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(LossTest, Types);

template <typename T>
Matrix<T> Rows(std::initializer_list<std::initializer_list<T>> rows) {
  return Matrix<T>(rows);
}

TYPED_TEST(LossTest, LogitCrossEntropyOfTheWorkedNumbers) {
  const auto logits = Rows<TypeParam>({{1, 2, 3}, {0, 0, 0}});
  const std::vector<double> targets = {2, 0};
  const Loss loss;
  const double sum = SumOfLosses(loss, logits, targets);
  EXPECT_NEAR(sum, 1.5062182531, 1e-10);
  EXPECT_NEAR(sum / loss.Divisor(2, 4, 0), 0.7531091266, 1e-10);
}

// Each output has a target of its own, and the sum is over outputs and rows.
TYPED_TEST(LossTest, SquaredErrorsOfSeveralOutputs) {
  const auto outputs = Rows<TypeParam>({{1, 2}, {3, 5}});
  const std::vector<double> targets = {0, 4, 3, 6};
  Loss loss;
  loss.kind = LossKind::kSquaredError;
  EXPECT_EQ(SumOfLosses(loss, outputs, targets), 1 + 4 + 0 + 1);
  Matrix<TypeParam> gradient;
  LossGradient(loss, outputs, targets, /*divisor=*/2, gradient);
  EXPECT_EQ(gradient, Rows<TypeParam>({{1, -2}, {0, -1}}));
}

TYPED_TEST(LossTest, SmoothedLabelsAreThoseOfTheFormula) {
  const auto logits = Rows<TypeParam>({{1, 2, 3}});
  Loss loss;
  loss.label_smoothing = 0.3;
  // The cross-entropies of the three classes are 2.4076059644, 1.4076059644 and 0.4076059644.
  const double expected = 0.7 * 0.4076059644 + 0.1 * (2.4076059644 + 1.4076059644 + 0.4076059644);
  EXPECT_NEAR(SumOfLosses(loss, logits, std::vector<double>{2}), expected, 1e-9);
  Matrix<TypeParam> gradient;
  LossGradient(loss, logits, std::vector<double>{2}, 2, gradient);
  const double probabilities[] = {0.0900305732, 0.2447284711, 0.6652409558};
  const double wanted[] = {0.1, 0.1, 0.8};
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(gradient(0, i), (probabilities[i] - wanted[i]) / 2, 1e-7);
  }
}

TEST(LossDivisorTest, FollowsTheNormalisation) {
  Loss loss;
  EXPECT_EQ(loss.Divisor(8, 4, 0.5), 8);
  loss.reduction = Loss::Reduction::kSum;
  EXPECT_EQ(loss.Divisor(8, 4, 0.5), 1);
  loss.reduction = Loss::Reduction::kPerElement;
  EXPECT_EQ(loss.Divisor(8, 4, 0.5), 32);
  loss.reduction = Loss::Reduction::kByColumn;
  EXPECT_EQ(loss.Divisor(8, 4, 0.5), 0.5);
}

// For the model y' = w x with w = 1: returns the gradient of the loss with respect to w, by the
// chain rule.
double SlopeOf(const std::vector<double>& x, const std::vector<double>& y) {
  Matrix<double> outputs(x.size(), 1);
  for (size_t i = 0; i < x.size(); ++i) outputs(i, 0) = x[i];
  Loss loss;
  loss.kind = Loss::Kind::kSquaredError;
  loss.reduction = Loss::Reduction::kPerElement;
  Matrix<double> gradient;
  LossGradient(loss, outputs, y, loss.Divisor(x.size(), 1, 0), gradient);
  double slope = 0;
  for (size_t i = 0; i < x.size(); ++i) slope += gradient(i, 0) * x[i];
  return slope;
}

TEST(SquaredErrorTest, GradientsOfTheWorkedNumbers) {
  EXPECT_DOUBLE_EQ(SlopeOf({1, 2}, {2, 4}), -5);
  EXPECT_DOUBLE_EQ(SlopeOf({3}, {3}), 0);
  EXPECT_DOUBLE_EQ(SlopeOf({1, 1, 1}, {0, 0, 0}), 2);
}

TYPED_TEST(LossTest, SigmoidCrossEntropyAgreesWithItsDefinition) {
  Loss loss;
  loss.kind = Loss::Kind::kSigmoidCrossEntropy;
  for (const double x : {-3.0, -0.5, 0.0, 0.5, 3.0}) {
    const double p = 1 / (1 + std::exp(-x));
    const auto outputs = Rows<TypeParam>({{static_cast<TypeParam>(x)}});
    EXPECT_NEAR(SumOfLosses(loss, outputs, std::vector<double>{1}), -std::log(p), 1e-12);
    EXPECT_NEAR(SumOfLosses(loss, outputs, std::vector<double>{0}), -std::log(1 - p), 1e-12);
  }
}

TYPED_TEST(LossTest, LargeOutputsDoNotOverflow) {
  const TypeParam huge = std::numeric_limits<TypeParam>::max() / 4;
  Loss loss;
  Matrix<TypeParam> gradient;
  const auto logits = Rows<TypeParam>({{huge, 0}});
  EXPECT_EQ(SumOfLosses(loss, logits, std::vector<double>{0}), 0);
  LossGradient(loss, logits, std::vector<double>{1}, 1, gradient);
  EXPECT_EQ(gradient(0, 0), 1);
  EXPECT_EQ(gradient(0, 1), -1);
  loss.kind = Loss::Kind::kSigmoidCrossEntropy;
  const auto output = Rows<TypeParam>({{-huge}});
  EXPECT_EQ(SumOfLosses(loss, output, std::vector<double>{0}), 0);
  LossGradient(loss, output, std::vector<double>{1}, 1, gradient);
  EXPECT_EQ(gradient(0, 0), -1);
}

// Compares the gradient of each kind of loss with finite differences.
TEST(LossGradientTest, IsTheDerivativeOfTheLoss) {
  const double h = 1e-6;
  for (const Loss::Kind kind : {Loss::Kind::kLogitCrossEntropy, Loss::Kind::kSquaredError,
                                Loss::Kind::kSigmoidCrossEntropy}) {
    Loss loss;
    loss.kind = kind;
    Matrix<double> outputs = kind == Loss::Kind::kLogitCrossEntropy
                                 ? Rows<double>({{0.3, -1.2, 2}, {1, 0.5, -0.1}})
                                 : Rows<double>({{0.3}, {-1.2}});
    const std::vector<double> targets = {1, 0};
    Matrix<double> gradient;
    LossGradient(loss, outputs, targets, 2, gradient);
    for (Eigen::Index i = 0; i < outputs.size(); ++i) {
      double& output = outputs.data()[i];
      const double kept = output;
      output = kept + h;
      const double above = SumOfLosses(loss, outputs, targets) / 2;
      output = kept - h;
      const double below = SumOfLosses(loss, outputs, targets) / 2;
      output = kept;
      EXPECT_NEAR(gradient.data()[i], (above - below) / (2 * h), 1e-8)
          << "kind " << static_cast<int>(kind) << ", output " << i;
    }
  }
}

}  // namespace
}  // namespace syncgrads
