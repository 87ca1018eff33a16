#include "worker/train/compression.h"

#include <gtest/gtest.h>

#include "google/protobuf/text_format.h"
#include "tests/worker/testing/status.h"

namespace syncgrads {
namespace {

const TensorSpec kParameters[] = {{"conv1.weight", DType::kF32, {6, 1, 5, 5}},
                                  {"conv1.bias", DType::kF32, {6}},
                                  {"dense1/kernel", DType::kF32, {64, 120}},
                                  {"dense1/bias", DType::kF32, {2000}},
                                  {"dense2/kernel", DType::kF32, {120, 84}}};

absl::StatusOr<std::vector<Compression>> Of(const std::string& rules) {
  v1::JobFile job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(rules, &job)) << rules;
  return CompressionOf(job, kParameters);
}

TEST(CompressionTest, WithoutRulesNothingIsCompressed) {
  const auto compression = Of("");
  SYNCGRADS_ASSERT_OK(compression);
  EXPECT_TRUE(compression->empty());
}

TEST(CompressionTest, SmallParametersAndBiasesOfAnySizeNeverAre) {
  const Compression both{{Codec::kTopK, kDefaultTopKFraction}, {Codec::kInt8}}, none;
  const auto compression = Of("compression { push { codec: TOP_K } result { codec: INT8 } }");
  SYNCGRADS_ASSERT_OK(compression);
  EXPECT_EQ(*compression, (std::vector<Compression>{none, none, both, none, both}));
  const auto from_100 =
      Of("compression { min_elements: 100 push { codec: TOP_K } result { codec: INT8 } }");
  SYNCGRADS_ASSERT_OK(from_100);
  EXPECT_EQ(*from_100, (std::vector<Compression>{both, none, both, none, both}));
}

TEST(CompressionTest, TheFirstRuleWithTheNameCounts) {
  const Compression one_bit{{Codec::kOneBit}, {}}, half{{Codec::kBF16}, {Codec::kBF16}}, none;
  const auto compression =
      Of("compression { parameters: 'conv*' }"
         "compression { parameters: '*2/kernel' push { codec: ONE_BIT } }"
         "compression { min_elements: 1 push { codec: BFLOAT16 } result { codec: BFLOAT16 } }");
  SYNCGRADS_ASSERT_OK(compression);
  EXPECT_EQ(*compression, (std::vector<Compression>{none, none, half, none, one_bit}));
}

TEST(CompressionTest, ANameThatNoParameterHasIsAnError) {
  ExpectError(Of("compression { parameters: ['dense1/*', 'dense9/*'] }"),
              absl::StatusCode::kInvalidArgument, {"\"dense9/*\"", "conv1.weight"});
}

}  // namespace
}  // namespace syncgrads
