#include "worker/job/parameter_rules.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/worker/testing/status.h"

namespace syncgrads {
namespace {

const std::vector<TensorSpec>& Parameters() {
  static const auto& parameters = *new std::vector<TensorSpec>{
      {"conv1.weight", DType::kF32, {6, 1, 5, 5}},
      {"bn1.weight", DType::kF32, {6}},
      {"bn1.bias", DType::kF32, {6}},
      {"fc.weight", DType::kF32, {10, 84}},
      {"fc.bias", DType::kF32, {10}},
  };
  return parameters;
}

absl::StatusOr<std::vector<TensorFactors>> FactorsWith(const std::string& text) {
  v1::JobFile job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &job));
  return FactorsOf(job, Parameters());
}

TEST(ParameterRulesTest, WithoutThemAllFactorsAreOne) {
  EXPECT_EQ(*FactorsWith(""), std::vector<TensorFactors>(5));
}

TEST(ParameterRulesTest, TheWeightDecayCanSpareBiasesAndNorms) {
  EXPECT_EQ(*FactorsWith("decay_kernels_only: true"),
            (std::vector<TensorFactors>{{1, 1}, {1, 0}, {1, 0}, {1, 1}, {1, 0}}));
}

TEST(ParameterRulesTest, TheFirstRuleThatMatchesCounts) {
  EXPECT_EQ(*FactorsWith(R"(
              decay_kernels_only: true
              parameter_rules { parameters: "bn1.bias" weight_decay_factor: 2 }
              parameter_rules { parameters: "conv*" parameters: "bn*" learning_rate_factor: 0 }
              parameter_rules { parameters: "*.weight" learning_rate_factor: 0.5
                                weight_decay_factor: 0.25 })"),
            (std::vector<TensorFactors>{{0, 1}, {0, 0}, {1, 2}, {0.5, 0.25}, {1, 0}}));
}

TEST(ParameterRulesTest, ANameThatMatchesNothingIsAnError) {
  ExpectError(FactorsWith(R"(
                parameter_rules { parameters: "fc*" parameters: "fc2*" learning_rate_factor: 2 })")
                  .status(),
              absl::StatusCode::kInvalidArgument, {"\"fc2*\"", "conv1.weight", "fc.bias"});
}

TEST(ParameterRulesTest, SomeParameterMustBeTrained) {
  ExpectError(FactorsWith("parameter_rules { parameters: \"*\" learning_rate_factor: 0 }").status(),
              absl::StatusCode::kInvalidArgument, {"all 5 parameters", "no parameter is trained"});
}

}  // namespace
}  // namespace syncgrads
