#include "common/group/group.h"

#include <limits>
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

  spec = Model();
  spec.first_chunk_bytes = 4;
  ExpectError(Validate(spec), kInvalid, {"first_chunk_bytes is 4", "8 to"});
}

GroupSpec Compressed(Compression compression, UpdateRule rule = Reduction::kAverage) {
  GroupSpec spec = Model(std::move(rule));
  spec.compression = {compression, {}};
  return spec;
}

TEST(ValidateTest, AcceptsCompressedSumsAndGradientsForAnOptimizer) {
  const Compression both{{Codec::kTopK, 0.01}, {Codec::kInt8}};
  EXPECT_THAT(Validate(Compressed(both)), IsOk());
  EXPECT_THAT(Validate(Compressed(both, Reduction::kSum)), IsOk());
  EXPECT_THAT(Validate(Compressed({{Codec::kOneBit}, {}}, Optimizer(Adam{}))), IsOk());
}

TEST(ValidateTest, RefusesCompressionThatCannotBe) {
  const Compression push{{Codec::kInt8}, {}}, result{{}, {Codec::kInt8}};
  ExpectError(Validate(Compressed(result, Optimizer(Adam{}))), kInvalid,
              {"\"kernel\"", "result int8", "parameters"});
  for (const UpdateRule& rule : {UpdateRule(Reduction::kMax), UpdateRule(Gather{})}) {
    ExpectError(Validate(Compressed(push, rule)), kInvalid, {"\"kernel\"", "only averages"});
  }
  GroupSpec spec = Compressed(push);
  spec.tensors[0].dtype = DType::kF64;
  ExpectError(Validate(spec), kInvalid, {"\"kernel\"", "needs dtype f32", "f64"});
  ExpectError(Validate(Compressed({{Codec{9}}, {}})), kInvalid, {"\"kernel\"", "codec 9"});
  ExpectError(Validate(Compressed({{Codec::kTopK, 0.9}, {}})), kInvalid, {"\"kernel\"", "0.9"});
  spec = Compressed(push);
  spec.compression.pop_back();
  ExpectError(Validate(spec), kInvalid, {"compressions for 1 tensors", "2 tensors"});
  spec = Compressed(push, Reduction::kSum);
  spec.policy = First{};
  ExpectError(Validate(spec), kInvalid, {"\"kernel\"", "policy first"});
}

TEST(CheckAgreementTest, NamesATensorThatIsCompressedInAnotherWay) {
  const GroupSpec ours = Compressed({{Codec::kInt8}, {}});
  ExpectError(CheckAgreement(ours, Model(), "w0"), kInvalid,
              {"\"kernel\"", "push int8", "w0", "raw"});
  GroupSpec none = Model();
  none.compression.resize(2);
  EXPECT_THAT(CheckAgreement(none, Model(), "w0"), IsOk());
}

TEST(ValidateTest, RefusesAPolicyOutOfItsRangeOrOfAnotherRule) {
  GroupSpec spec = Model();
  spec.policy = Quorum{.least = 0};
  ExpectError(Validate(spec), kInvalid, {"\"model\"", "least is 0"});
  spec.policy = Quorum{.least = 1, .kept = 1};
  ExpectError(Validate(spec), kInvalid, {"kept is 1", "from 2"});
  spec.policy = Quorum{.least = 1, .grace = -absl::Seconds(1)};
  ExpectError(Validate(spec), kInvalid, {"grace is -1s"});
  spec.policy = Quorum{.least = 1};
  spec.one_epoch = true;
  ExpectError(Validate(spec), kInvalid, {"quorum", "one_epoch"});
  spec.one_epoch = false;
  spec.policy = Staleness{};
  ExpectError(Validate(spec), kInvalid, {"staleness", "average", "optimizer"});
  spec.rule = Optimizer(Sgd{});
  EXPECT_THAT(Validate(spec), IsOk());
}

TEST(CheckAgreementTest, NamesBothPolicies) {
  GroupSpec ours = Model(), theirs = Model();
  ours.policy = Quorum{.least = 2};
  theirs.policy = Quorum{.least = 3};
  ExpectError(CheckAgreement(ours, theirs, "w1"), kInvalid,
              {"quorum(least=2", "\"w1\"", "quorum(least=3"});
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

  ours = Model();
  ours.first_chunk_bytes = 32;
  check(ours, {"first_chunk_bytes 32", "registered 0", "\"w0\""});

  ours = Model();
  ours.non_finite = OnBad::kSkip;
  check(ours, {"non_finite SKIP", "registered REJECT", "\"w0\""});

  check(Model(Reduction::kSum), {"sum", "average", "\"w0\""});
  check(Model(Optimizer(Sgd{.learning_rate = 0.5})), {"sgd(learning_rate=0.5", "average"});
}

TEST(CheckAgreementTest, ComparesEveryHyperparameter) {
  ExpectError(CheckAgreement(Model(Optimizer(Momentum{.momentum = 0.9})),
                             Model(Optimizer(Momentum{.momentum = 0.95})), "w0"),
              kInvalid, {"momentum=0.9", "momentum=0.95"});
}

TEST(TakesNonFiniteTest, IsForGroupsThatAllowItOrDoNotAdd) {
  const auto takes = [](UpdateRule rule, OnBad non_finite) {
    GroupSpec spec = Model(std::move(rule));
    spec.non_finite = non_finite;
    return TakesNonFinite(spec);
  };
  for (const OnBad refusing : {OnBad::kReject, OnBad::kSkip}) {
    EXPECT_FALSE(takes(Reduction::kAverage, refusing));
    EXPECT_FALSE(takes(Optimizer(Adam{}), refusing));
    EXPECT_FALSE(takes(Reduction::kSum, refusing));
    EXPECT_TRUE(takes(Reduction::kMin, refusing));
    EXPECT_TRUE(takes(Gather{}, refusing));
  }
  EXPECT_TRUE(takes(Reduction::kAverage, OnBad::kAllow));
  EXPECT_TRUE(takes(Optimizer(Adam{}), OnBad::kAllow));
}

TEST(ValidateTest, TakesNormsWhereRoundsCloseAsOne) {
  for (const Optimizer& rule : {Optimizer(Lamb{}), Optimizer(Lars{}), Optimizer(Sgd{})}) {
    GroupSpec spec = Model(rule);
    spec.clip_norm = 0.5;
    EXPECT_TRUE(NeedsNorms(spec));
    EXPECT_THAT(Validate(spec), IsOk());
    spec.policy = Quorum{.least = 2};
    EXPECT_THAT(Validate(spec), IsOk());
    spec.policy = Staleness{};
    ExpectError(Validate(spec), kInvalid, {"\"model\"", "staleness(", "clip_norm 0.5", "norms"});
    spec.policy = Sync{};
    spec.one_epoch = true;
    ExpectError(Validate(spec), kInvalid, {"\"model\"", "one_epoch", "clip_norm 0.5", "norms"});
  }
  GroupSpec lars = Model(Optimizer(Lars{}));
  EXPECT_TRUE(NeedsNorms(lars));
  lars.policy = Staleness{.bound = 2};
  ExpectError(Validate(lars), kInvalid, {"staleness(bound=2", "lars(", "norms"});
  EXPECT_FALSE(NeedsNorms(Model(Optimizer(Adam{}))));
}

TEST(ValidateTest, RefusesClipNormsThatAreNone) {
  for (const double clip_norm :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    GroupSpec spec = Model(Optimizer(Sgd{}));
    spec.clip_norm = clip_norm;
    ExpectError(Validate(spec), kInvalid, {"clip_norm"});
  }
  GroupSpec average = Model(Reduction::kAverage);
  average.clip_norm = 1;
  EXPECT_FALSE(NeedsNorms(average));
  ExpectError(Validate(average), kInvalid, {"\"model\"", "clip_norm 1", "average"});
}

TEST(CheckAgreementTest, NamesBothClipNorms) {
  GroupSpec ours = Model(Optimizer(Sgd{})), theirs = ours;
  ours.clip_norm = 1;
  theirs.clip_norm = 2.5;
  ExpectError(CheckAgreement(ours, theirs, "w7"), kInvalid, {"clip_norm 1", "\"w7\"", "2.5"});
}

TEST(ValidateTest, RefusesAScheduleOutOfItsRangeOrWithoutAnOptimizer) {
  GroupSpec spec = Model();
  spec.schedule = {.warmup_steps = 3};
  ExpectError(Validate(spec), kInvalid,
              {"\"model\"", "schedule(warmup_steps=3, constant)", "average"});
  spec.rule = Optimizer(Sgd());
  EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
  spec.schedule.decay = CosineDecay{0};
  ExpectError(Validate(spec), kInvalid, {"\"model\"", "cycle_steps"});
}

TEST(CheckAgreementTest, NamesBothSchedules) {
  GroupSpec ours = Model(), theirs = Model();
  ours.schedule = {.decay = StepDecay{{5}, 0.5}};
  theirs.schedule = {.decay = StepDecay{{6}, 0.5}};
  ExpectError(CheckAgreement(ours, theirs, "w1"), kInvalid,
              {"\"model\"", "milestones=[5]", "\"w1\"", "milestones=[6]"});
}

TEST(ValidateTest, RefusesFactorsOutOfTheirRangeOrWithoutAnOptimizer) {
  GroupSpec spec = Model();
  spec.factors.resize(spec.tensors.size());
  ExpectError(Validate(spec), kInvalid, {"\"model\"", "factors", "average"});
  spec.rule = Optimizer(Sgd{.learning_rate = 1e38});
  EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
  spec.factors.back().weight_decay = -1;
  ExpectError(Validate(spec), kInvalid, {spec.tensors.back().name, "weight_decay is -1"});
  // The product is out of the learning rate's range.
  spec.factors.back() = {.learning_rate = 10};
  ExpectError(Validate(spec), kInvalid, {spec.tensors.back().name, "learning_rate is 1e+39"});
  spec.rule = Optimizer(Sgd{.learning_rate = 1e33});
  EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
  ExpectError(CheckRateFactor(spec, 1e5), kInvalid, {"factor of 100000", "\"model\""});
  EXPECT_TRUE(CheckRateFactor(spec, 1e4).ok());
  spec.factors.emplace_back();
  ExpectError(Validate(spec), kInvalid,
              {absl::StrCat("factors for ", spec.factors.size(), " tensors, and ")});
}

TEST(CheckAgreementTest, NamesTheTensorAndBothFactors) {
  GroupSpec ours = Model(), theirs = Model();
  ours.factors.resize(ours.tensors.size());
  EXPECT_TRUE(CheckAgreement(ours, theirs, "w1").ok());
  ours.factors.back().weight_decay = 0;
  ExpectError(CheckAgreement(ours, theirs, "w1"), kInvalid,
              {"\"model\"", ours.tensors.back().name, "learning_rate=1, weight_decay=0", "\"w1\"",
               "learning_rate=1, weight_decay=1"});
}

TEST(FirstRoundTest, IsZeroOnlyWhereServersNeedParametersFirst) {
  EXPECT_EQ(FirstRound(Reduction::kAverage), Round{1});
  EXPECT_EQ(FirstRound(Gather{}), Round{1});
  EXPECT_EQ(FirstRound(Optimizer(Sgd{})), Round{0});
}

TEST(PlaceChunksTest, KeepsServersEvenByBytes) {
  // Ten chunks of 64 bytes, and two smaller ones.
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
