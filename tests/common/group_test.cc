#include "common/group.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

GroupSpec Model(UpdateRule rule = Reduction::kAverage) {
  return {"model", {{"kernel", DType::kF32, {4, 3}}, {"bias", DType::kF32, {3}}}, rule, 0};
}

GroupSpec WithDType(DType dtype, UpdateRule rule) {
  return {"model", {{"kernel", DType::kF32, {4}}, {"counter", dtype, {2}}}, rule, 0};
}

TEST(ValidateTest, AcceptsEveryReductionOfFloats) {
  for (const Reduction reduction : {Reduction::kAverage, Reduction::kSum, Reduction::kMin,
                                    Reduction::kMax, Reduction::kProduct}) {
    EXPECT_THAT(Validate(Model(reduction)), IsOk());
  }
}

TEST(ValidateTest, RefusesAnAverageOfIntegersAndNamesTheTensor) {
  ExpectError(Validate(WithDType(DType::kI32, Reduction::kAverage)), kInvalid,
              {"\"counter\"", "\"model\"", "i32", "average"});
  ExpectError(Validate(WithDType(DType::kI64, Reduction::kAverage)), kInvalid, {"i64"});
  EXPECT_THAT(Validate(WithDType(DType::kI64, Reduction::kSum)), IsOk());
  EXPECT_THAT(Validate(WithDType(DType::kI64, Gather{})), IsOk());
  EXPECT_THAT(Validate(WithDType(DType::kF16, Reduction::kAverage)), IsOk());
}

TEST(ValidateTest, RefusesAnOptimizerOnTheServersOverAnythingButF32AndF64) {
  EXPECT_THAT(Validate(WithDType(DType::kF64, Optimizer(Adam{}))), IsOk());
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kI32, DType::kI64}) {
    ExpectError(Validate(WithDType(dtype, Optimizer(Sgd{}))), kInvalid,
                {"\"counter\"", std::string(NameOf(dtype)), "f32 and f64"});
  }
}

TEST(ValidateTest, RefusesAnOptimizerWithAHyperparameterOutOfItsRange) {
  ExpectError(Validate(Model(Optimizer(Adam{.beta1 = 1.5}))), kInvalid, {"beta1", "1.5"});
}

TEST(ValidateTest, RefusesAnEmptyNameAndWhatTheLayoutRefuses) {
  GroupSpec spec = Model();
  spec.name = "";
  ExpectError(Validate(spec), kInvalid, {"empty name"});
  spec = Model();
  spec.chunk_bytes = 3;
  ExpectError(Validate(spec), kInvalid, {"chunk_bytes is 3"});
}

TEST(CheckAgreementTest, AcceptsTheSameGroup) {
  EXPECT_THAT(CheckAgreement(Model(), Model(), "w0"), IsOk());
}

TEST(CheckAgreementTest, NamesTheFirstDifferenceBothValuesAndTheOtherWorker) {
  const auto check = [](const GroupSpec& ours, std::initializer_list<std::string> parts) {
    ExpectError(CheckAgreement(ours, Model(), "w0"), kInvalid, parts);
  };
  GroupSpec ours = Model();
  ours.tensors[0].shape = {4, 2};
  check(ours, {"\"kernel\"", "\"model\"", "f32[4,2]", "f32[4,3]", "\"w0\""});

  ours = Model();
  ours.tensors[1].dtype = DType::kF64;
  check(ours, {"\"bias\"", "f64[3]", "f32[3]", "\"w0\""});

  ours = Model();
  ours.tensors[1].name = "scale";
  check(ours, {"tensor 1", "\"scale\"", "\"bias\"", "\"w0\""});

  ours = Model();
  ours.tensors.pop_back();
  check(ours, {"1 tensors", "2", "\"w0\""});

  ours = Model();
  ours.chunk_bytes = 64;
  check(ours, {"chunk_bytes 64", "registered 0", "\"w0\""});

  check(Model(Reduction::kSum), {"sum", "average", "\"w0\""});
  check(Model(Optimizer(Sgd{.learning_rate = 0.5})), {"sgd(learning_rate=0.5", "average"});
}

TEST(CheckAgreementTest, ComparesEveryHyperparameter) {
  ExpectError(CheckAgreement(Model(Optimizer(Momentum{.momentum = 0.9})),
                             Model(Optimizer(Momentum{.momentum = 0.95})), "w0"),
              kInvalid, {"momentum=0.9", "momentum=0.95"});
}

TEST(FirstRoundTest, IsZeroOnlyWhereServersNeedParametersFirst) {
  EXPECT_EQ(FirstRound(Reduction::kAverage), Round{1});
  EXPECT_EQ(FirstRound(Gather{}), Round{1});
  EXPECT_EQ(FirstRound(Optimizer(Sgd{})), Round{0});
}

TEST(PlaceChunksTest, KeepsServersEvenByBytes) {
  // Ten chunks of 64 bytes, and two that are smaller.
  const absl::StatusOr<Layout> layout = Layout::Create(
      {{"w", DType::kF32, {160}}, {"h", DType::kF16, {3}}, {"i", DType::kI64, {1}}}, 64);
  ASSERT_THAT(layout, IsOk());
  std::vector<uint64_t> bytes(3);
  const std::vector<ServerIndex> servers = PlaceChunks(*layout, bytes);
  ASSERT_EQ(servers.size(), layout->chunks().size());
  std::vector<uint64_t> placed(3);
  for (size_t c = 0; c < servers.size(); ++c) {
    placed[ToNumber(servers[c])] += layout->chunks()[c].bytes();
  }
  EXPECT_EQ(placed, bytes);
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  EXPECT_LE(*most - *least, 64u);
}

TEST(PlaceChunksTest, FillsTheServerThatHasTheFewestBytesOfEarlierGroups) {
  const absl::StatusOr<Layout> layout = Layout::Create({{"w", DType::kF32, {48}}}, 64);
  ASSERT_THAT(layout, IsOk());
  std::vector<uint64_t> bytes = {200, 0};
  EXPECT_EQ(PlaceChunks(*layout, bytes),
            (std::vector<ServerIndex>{ServerIndex{1}, ServerIndex{1}, ServerIndex{1}}));
  EXPECT_EQ(bytes, (std::vector<uint64_t>{200, 192}));
  EXPECT_EQ(PlaceChunks(*layout, bytes).front(), ServerIndex{1});
}

}  // namespace
}  // namespace syncgrads
