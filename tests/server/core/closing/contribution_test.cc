#include "server/core/closing/contribution.h"

#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

GroupPlan Plan(UpdateRule rule = Reduction::kAverage) {
  return PlanOf(
      {"model",
       {{"kernel", DType::kF32, {32}}, {"bias", DType::kF32, {4}}, {"scale", DType::kF32, {4}}},
       std::move(rule),
       128});
}

absl::Status Check(const PushHeader& header, size_t bytes, UpdateRule rule = Reduction::kAverage) {
  return CheckPush(Plan(std::move(rule)), header, PayloadOf(std::string(bytes, '\0')).pieces,
                   "member 2");
}

TEST(CheckPushTest, NamesTheTensorAndBothLengths) {
  EXPECT_THAT(Check(PushOf(2, 1), 128), IsOk());
  ExpectError(
      Check(PushOf(2, 1), 31 * 4), kInvalid,
      {"gradient \"kernel\" of group \"model\" has 31 values from member 2, layout has 32"});
  ExpectError(Check(PushOf(2, 1), 33 * 4), kInvalid, {"has 33 values", "layout has 32"});
  ExpectError(Check(PushOf(2, 1), 0), kInvalid, {"has 0 values", "layout has 32"});
}

TEST(CheckPushTest, NamesTheDTypeWhenBytesAreNoWholeElements) {
  ExpectError(Check(PushOf(2, 1), 65), kInvalid, {"65 bytes", "128 bytes of f32"});
}

TEST(CheckPushTest, NamesTheTensorsOfASharedChunk) {
  EXPECT_THAT(Check(PushOf(2, 1, 1), 32), IsOk());
  ExpectError(Check(PushOf(2, 1, 1), 28), kInvalid,
              {"chunk 1", "\"bias\"", "\"scale\"", "7 values", "layout has 8"});
}

TEST(CheckPushTest, ExpectsOnlyTheSpansThatArePresent) {
  PushHeader header = PushOf(2, 1, 1);
  header.absent_spans = {1};
  EXPECT_THAT(Check(header, 16), IsOk());
  ExpectError(Check(header, 32), kInvalid, {"8 values", "layout has 4"});
}

TEST(CheckPushTest, RefusesAbsentSpansThatCannotBe) {
  PushHeader header = PushOf(2, 1, 1);
  header.absent_spans = {2};
  ExpectError(Check(header, 32), kInvalid, {"absent span 2", "number of spans: 2"});
  header.absent_spans = {0, 0};
  ExpectError(Check(header, 16), kInvalid, {"absent span 0 follows 0"});
  header.absent_spans = {1, 0};
  ExpectError(Check(header, 16), kInvalid, {"absent span 0 follows 1"});
  header.absent_spans = {0, 1};
  ExpectError(Check(header, 0), kInvalid, {"every span is absent"});
  header.absent_spans = {0};
  ExpectError(Check(header, 16, Gather{}), kInvalid, {"gather"});
}

TEST(CheckPushTest, RefusesASkipThatHasMoreToSay) {
  EXPECT_THAT(Check(SkipOf(2, 1), 0), IsOk());
  ExpectError(Check(SkipOf(2, 1), 4), kInvalid, {"skip", "4 bytes"});
  PushHeader header = SkipOf(2, 1, 1);
  header.absent_spans = {0};
  ExpectError(Check(header, 0), kInvalid, {"skip", "1 absent"});
}

TEST(CheckPushTest, RefusesWeightsThatAnAverageCannotHave) {
  for (const double weight : {0.0, 1.0, 32.0, 1e-10}) {
    PushHeader header = PushOf(2, 1);
    header.weight = weight;
    EXPECT_THAT(Check(header, 128), IsOk()) << weight;
  }
  for (const double weight : {-1.0, 1e300, 1e-300, std::numeric_limits<double>::infinity(),
                              std::numeric_limits<double>::quiet_NaN()}) {
    PushHeader header = PushOf(2, 1);
    header.weight = weight;
    ExpectError(Check(header, 128), kInvalid, {"weight", "2^64", "member 2"});
  }
}

TEST(CheckPushTest, RefusesACodecThatItDoesNotKnow) {
  PushHeader header = PushOf(2, 1);
  header.codec = Codec{9};
  ExpectError(Check(header, 128), kInvalid, {"codec 9", "raw is expected"});
  header.codec = Codec::kInt8;
  ExpectError(Check(header, 128), kInvalid, {"int8", "raw is expected"});
}

// Returns a group with a kernel of 32 elements, whose pushes are encoded, and a bias, whose pushes
// are not.
GroupPlan EncodedPlan(const Encoding& push, UpdateRule rule = Reduction::kAverage) {
  GroupSpec spec = {
      "model", {{"kernel", DType::kF32, {32}}, {"bias", DType::kF32, {4}}}, std::move(rule), 128};
  spec.compression = {{push, {}}, {}};
  return PlanOf(spec);
}

PushHeader In(Codec codec, uint64_t round = 1) {
  PushHeader header = PushOf(2, round);
  header.codec = codec;
  return header;
}

TEST(CheckPushTest, TakesThePlannedCodecAndMilderOnes) {
  const GroupPlan plan = EncodedPlan({Codec::kTopK, 0.1});  // keeps 4 of 32 elements
  const auto check = [&](Codec codec, size_t bytes) {
    std::string payload(bytes, '\0');
    if (codec == Codec::kTopK) payload.replace(0, 8, BytesOf<uint16_t>({0, 1, 2, 31}));
    return CheckPush(plan, In(codec), PayloadOf(payload, {bytes / 3}).pieces, "member 2");
  };
  EXPECT_THAT(check(Codec::kTopK, 4 * 6), IsOk());
  EXPECT_THAT(check(Codec::kInt8, 4 + 32), IsOk());
  EXPECT_THAT(check(Codec::kRaw, 128), IsOk());
  ExpectError(check(Codec::kTopK, 4 * 6 + 1), kInvalid, {"member 2", "25 bytes", "24"});
  ExpectError(check(Codec::kInt8, 35), kInvalid, {"member 2", "35 bytes", "36"});
  ExpectError(check(Codec::kOneBit, 8), kInvalid, {"member 2", "one-bit", "top-k 0.1"});
}

TEST(CheckPushTest, NamesTheTensorWhosePayloadCannotBeDecoded) {
  const GroupPlan plan = EncodedPlan({Codec::kTopK, 0.1});
  const std::string payload = BytesOf<uint16_t>({0, 1, 2, 32}) + BytesOf<float>({1, 2, 3, 4});
  ExpectError(CheckPush(plan, In(Codec::kTopK), PayloadOf(payload, {5, 9}).pieces, "member 2"),
              kInvalid, {"member 2", "\"kernel\"", "position 32", "32 elements"});
}

TEST(CheckPushTest, RefusesEncodedParametersAndEncodedPayloadsInSharedMemory) {
  const std::string payload(36, '\0');
  const GroupPlan plan = EncodedPlan({Codec::kInt8}, Optimizer(Sgd{}));
  EXPECT_THAT(CheckPush(plan, In(Codec::kInt8, 1), PayloadOf(payload).pieces, "w"), IsOk());
  ExpectError(CheckPush(plan, In(Codec::kInt8, 0), PayloadOf(payload).pieces, "w"), kInvalid,
              {"initial parameters"});
  PushHeader header = In(Codec::kInt8);
  header.shared = {{1, 0, 36}};
  ExpectError(CheckPush(plan, header, PayloadOf(payload).pieces, "w"), kInvalid,
              {"int8", "shared memory"});
}

}  // namespace
}  // namespace syncgrads::server
