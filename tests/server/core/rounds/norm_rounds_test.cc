// Rounds that close in stages because they need norms. The test carries the sums of the chunks
// to a NormTally, and its decisions back to the chunks.

#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/optim/clip.h"
#include "common/optim/update.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/coordinator/norm_tally.h"
#include "server/core/rounds/chunk_rounds.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kElements = 5 + 12 + 1;

GroupSpec ModelSpec(Optimizer rule, double clip_norm, uint32_t chunk_bytes = 0) {
  GroupSpec spec;
  spec.name = "model";
  spec.tensors = {{"a", DType::kF32, {5}}, {"b", DType::kF32, {3, 4}}, {"c", DType::kF32, {1}}};
  spec.rule = std::move(rule);
  spec.clip_norm = clip_norm;
  spec.chunk_bytes = chunk_bytes;
  return spec;
}

// All chunks of a group on one server, and the group's members. Not thread-safe.
class Group {
 public:
  Group(uint32_t members, GroupSpec spec)
      : plan_(std::make_shared<const GroupPlan>(PlanOf(std::move(spec)))), tally_(plan_) {
    roster_.Add(EpochOfSize(members));
    ShowRoster();
    for (uint32_t c = 0; c < plan_->layout.chunks().size(); ++c) {
      chunks_.push_back(MakeChunk(c));
      sinks_.emplace_back();
      for (uint32_t m = 0; m < members; ++m) {
        sinks_.back().push_back(std::make_shared<RecordingSink>());
      }
    }
  }

  size_t chunks() const { return chunks_.size(); }
  ChunkRounds& chunk(uint32_t c) { return *chunks_[c]; }
  RecordingSink& sink(uint32_t chunk, uint32_t member) { return *sinks_[chunk][member]; }
  const std::vector<ReducedChunk>& told() const { return told_; }

  // Pushes a member's contribution to chunk `c`. `values` has the whole layout.
  void PushTo(uint32_t c, uint32_t member, uint64_t round, const std::vector<float>& values) {
    const Chunk& chunk = plan_->layout.chunks()[c];
    const auto begin = values.begin() + static_cast<ptrdiff_t>(chunk.first_element);
    const std::vector<float> part(begin, begin + static_cast<ptrdiff_t>(chunk.elements));
    chunks_[c]->Push(PushOf(member, round, c), PayloadOf(BytesOf(part)), sinks_[c][member]);
  }
  void Push(uint32_t member, uint64_t round, const std::vector<float>& values) {
    for (uint32_t c = 0; c < chunks_.size(); ++c) PushTo(c, member, round, values);
  }
  void SkipTo(uint32_t c, uint32_t member, uint64_t round) {
    chunks_[c]->Push(SkipOf(member, round, c), PayloadOf(""), sinks_[c][member]);
  }

  // Plays the coordinator until no chunk has unreported sums.
  void Exchange() {
    while (!told_.empty()) {
      for (const ReducedChunk& chunk : std::exchange(told_, {})) Hear(chunk);
    }
  }
  void Hear(const ReducedChunk& chunk) {
    tally_.Reduced(ServerIndex{0}, chunk);
    const auto norms =
        tally_.Decide([this](Round round) { return roster_.EpochOf(plan_->id, round)->number; });
    if (!norms.has_value()) return;
    tally_.Decided(*norms);
    decided_.push_back(*norms);
    Tell(*norms);
  }
  void Tell(const StepNorms& norms) {
    for (const auto& chunk : chunks_) {
      chunk->Finish(chunk->SetNorms(norms));
    }
  }
  const std::vector<StepNorms>& decided() const { return decided_; }

  // Drops the member `gone` and begins an epoch without it at the round `first`.
  void NewEpochWithout(uint32_t gone, uint64_t first) {
    roster_.Remove({MemberId{gone}, IncarnationOf(gone), "lease of 30s ended", false, {}});
    ShowRoster();
    Epoch epoch = *roster_.newest_epoch();
    ++epoch.number;
    std::erase_if(epoch.members, [gone](const Member& m) { return m.id == MemberId{gone}; });
    epoch.first_rounds = {{plan_->id, Round{first}}};
    roster_.Add(epoch);
    ShowRoster();
    for (const auto& chunk : chunks_) chunk->Finish(chunk->EndHold());
  }

  // Begins an epoch with this learning rate factor at the round `first`.
  void SetRateFactor(double factor, uint64_t first) {
    Epoch epoch = *roster_.newest_epoch();
    ++epoch.number;
    epoch.learning_rate.factor = factor;
    epoch.first_rounds = {{plan_->id, Round{first}}};
    roster_.Add(epoch);
    ShowRoster();
  }

  // Replaces chunk `c` as after a server restart: the new one has no contributions.
  void Restart(uint32_t c) { chunks_[c] = MakeChunk(c); }

  std::vector<float> Values(uint32_t member) const {
    std::vector<float> all;
    for (size_t c = 0; c < chunks_.size(); ++c) {
      const std::vector<float> part = ValuesOf<float>(sinks_[c][member]->last().payload);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

 private:
  std::unique_ptr<ChunkRounds> MakeChunk(uint32_t c) {
    return std::make_unique<ChunkRounds>(
        *plan_, ChunkId{c}, Generation{1}, current_, clock_, nullptr, 0,
        std::make_shared<GradientAlerts>(), nullptr,
        [this](ReducedChunk chunk) { told_.push_back(std::move(chunk)); });
  }
  void ShowRoster() {
    current_.Set(std::make_shared<Roster>(roster_));
    for (const auto& chunk : chunks_) chunk->Finish(chunk->TakeRoster());
  }

  FakeClock clock_;
  const std::shared_ptr<const GroupPlan> plan_;
  NormTally tally_;
  Roster roster_;
  CurrentRoster current_{nullptr};
  std::vector<ReducedChunk> told_;
  std::vector<StepNorms> decided_;
  std::vector<std::unique_ptr<ChunkRounds>> chunks_;
  std::vector<std::vector<std::shared_ptr<RecordingSink>>> sinks_;
};

// A reference: the training step of a worker that applies the optimizer by itself, to whole
// tensors.
class WorkersPath {
 public:
  // `factors` has the factors of each tensor, or is empty if all are 1.
  WorkersPath(Optimizer rule, double clip_norm, std::vector<TensorFactors> factors,
              std::vector<float> start)
      : rule_(std::move(rule)),
        clip_norm_(clip_norm),
        factors_(std::move(factors)),
        values_(std::move(start)),
        slots_(static_cast<size_t>(SlotCount(rule_)), std::vector<float>(values_.size())) {
    factors_.resize(std::size(kTensors));
  }

  void Step(std::vector<float> gradient) {
    std::vector<MutableTensor> tensors;
    for (const auto& [begin, elements] : kTensors) {
      tensors.push_back({DType::kF32, Bytes(gradient, begin), elements});
    }
    if (clip_norm_ > 0) ClipToNorm(tensors, clip_norm_);
    ++steps_;
    for (size_t t = 0; t < tensors.size(); ++t) {
      std::vector<std::byte*> slots;
      for (std::vector<float>& slot : slots_) slots.push_back(Bytes(slot, kTensors[t].first));
      UpdateTensor(WithRateFactor(WithFactors(rule_, factors_[t]), rate_factor_), DType::kF32,
                   steps_, tensors[t].data, tensors[t].elements, Bytes(values_, kTensors[t].first),
                   absl::MakeSpan(slots));
    }
  }
  void SetRateFactor(double factor) { rate_factor_ = factor; }
  const std::vector<float>& values() const { return values_; }

 private:
  static constexpr std::pair<size_t, size_t> kTensors[] = {{0, 5}, {5, 12}, {17, 1}};
  static std::byte* Bytes(std::vector<float>& values, size_t at) {
    return reinterpret_cast<std::byte*>(values.data() + at);
  }

  const Optimizer rule_;
  double rate_factor_ = 1;
  const double clip_norm_;
  std::vector<TensorFactors> factors_;
  uint64_t steps_ = 0;
  std::vector<float> values_;
  std::vector<std::vector<float>> slots_;
};

std::vector<float> Wave(double phase, double scale) {
  std::vector<float> values(kElements);
  for (int i = 0; i < kElements; ++i) {
    values[i] = static_cast<float>(scale * std::sin(phase + 0.7 * i));
  }
  return values;
}

struct Rule {
  Optimizer optimizer;
  double clip_norm;
  std::vector<TensorFactors> factors = {};
};
const std::vector<Rule>& Rules() {
  const std::vector<TensorFactors> factors = {
      {}, {.learning_rate = 0.3, .weight_decay = 0}, {.weight_decay = 0.1}};
  static const auto* const rules =
      new std::vector<Rule>{{Sgd{.learning_rate = 0.1}, 0.5},
                            {AdamW{.learning_rate = 0.1}, 0.5},
                            {Lamb{.learning_rate = 0.1}, 0},
                            {Lars{.learning_rate = 10, .weight_decay = 0.01}, 0},
                            {Lamb{.learning_rate = 0.1}, 0.5},
                            {Lars{.learning_rate = 10, .weight_decay = 0.01}, 0.5},
                            {Lamb{.learning_rate = 0.1}, 0, factors},
                            {Lars{.learning_rate = 10, .weight_decay = 0.5}, 0.5, factors}};
  return *rules;
}

// Trains for five rounds with two members and returns the parameters. In round 3 the gradients are
// small. From round 4 on, the learning rate is multiplied by `rate_factor`.
std::vector<float> TrainInChunks(const Rule& rule, uint32_t chunk_bytes, double rate_factor = 1) {
  GroupSpec spec = ModelSpec(rule.optimizer, rule.clip_norm, chunk_bytes);
  spec.factors = rule.factors;
  Group group(2, std::move(spec));
  group.Push(0, 0, Wave(1, 2));
  for (uint32_t c = 0; c < group.chunks(); ++c) group.SkipTo(c, 1, 0);
  for (uint64_t round = 1; round <= 5; ++round) {
    if (round == 2 && rate_factor != 1) group.SetRateFactor(rate_factor, 4);
    for (uint32_t member : {0, 1}) {
      group.Push(member, round,
                 Wave(static_cast<double>(round * 3 + member), round == 3 ? 0.01 : 3));
    }
    group.Exchange();
  }
  EXPECT_EQ(group.Values(0), group.Values(1));
  return group.Values(0);
}

std::vector<float> TrainOnWorkers(const Rule& rule, double rate_factor = 1) {
  WorkersPath workers(rule.optimizer, rule.clip_norm, rule.factors, Wave(1, 2));
  for (uint64_t round = 1; round <= 5; ++round) {
    std::vector<float> average(kElements);
    if (round == 4) workers.SetRateFactor(rate_factor);
    const auto a = Wave(static_cast<double>(round * 3), round == 3 ? 0.01 : 3);
    const auto b = Wave(static_cast<double>(round * 3 + 1), round == 3 ? 0.01 : 3);
    for (int i = 0; i < kElements; ++i) average[i] = (a[i] + b[i]) / 2;
    workers.Step(average);
  }
  return workers.values();
}

TEST(NormRoundsTest, HaveTheLearningRateOfTheirEpoch) {
  for (const Rule& rule : Rules()) {
    const std::vector<float> expected = TrainOnWorkers(rule, 0.25);
    EXPECT_NE(expected, TrainOnWorkers(rule));
    EXPECT_EQ(TrainInChunks(rule, 0, 0.25), expected) << ToString(rule.optimizer) << rule.clip_norm;
  }
}

TEST(NormRoundsTest, HaveTheBitsOfTheWorkersWhereNoTensorIsCut) {
  for (const Rule& rule : Rules()) {
    const std::vector<float> expected = TrainOnWorkers(rule);
    EXPECT_NE(expected, Wave(1, 2));
    EXPECT_EQ(TrainInChunks(rule, 0), expected) << ToString(rule.optimizer) << rule.clip_norm;
    // The three tensors are in four chunks, and tensor "b" is cut, so the bits may differ.
    EXPECT_EQ(TrainInChunks(rule, 20).size(), expected.size());
  }
}

TEST(NormRoundsTest, CutTensorsDifferByRoundingAlone) {
  for (const Rule& rule : Rules()) {
    const std::vector<float> expected = TrainOnWorkers(rule);
    for (const uint32_t chunk_bytes : {8, 12, 28, 44}) {
      const std::vector<float> got = TrainInChunks(rule, chunk_bytes);
      for (int i = 0; i < kElements; ++i) {
        EXPECT_NEAR(got[i], expected[i], 1e-6) << ToString(rule.optimizer) << " in " << chunk_bytes;
      }
    }
  }
}

// Chunks of 12 bytes make six chunks.
class OpenStepTest : public ::testing::Test {
 protected:
  OpenStepTest() : group_(2, ModelSpec(Sgd{.learning_rate = 1}, 1, 12)) {
    group_.Push(0, 0, std::vector<float>(kElements, 1));
    for (uint32_t c = 0; c < group_.chunks(); ++c) group_.SkipTo(c, 1, 0);
  }
  // Returns the expected parameters after one step with this averaged gradient.
  static std::vector<float> After(const std::vector<float>& gradient) {
    WorkersPath workers(Sgd{.learning_rate = 1}, 1, {}, std::vector<float>(kElements, 1));
    workers.Step(gradient);
    return workers.values();
  }
  void ExpectValues(const std::vector<float>& expected) {
    const std::vector<float> got = group_.Values(0);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-6) << i;
  }

  Group group_;
};

TEST_F(OpenStepTest, NothingIsAnsweredBeforeEveryChunkIsReduced) {
  ASSERT_EQ(group_.chunks(), 6u);
  for (uint32_t c = 0; c < 5; ++c) {
    for (uint32_t member : {0, 1}) group_.PushTo(c, member, 1, Wave(1, 3));
  }
  EXPECT_THAT(group_.told(), SizeIs(5));
  group_.Exchange();
  EXPECT_EQ(group_.sink(0, 0).count(), 1u) << "of round 0";
  const std::optional<ChunkWait> wait = group_.chunk(0).Explain();
  ASSERT_TRUE(wait.has_value());
  EXPECT_TRUE(wait->reduced);
  EXPECT_THAT(wait->missing, IsEmpty());
  for (uint32_t member : {0, 1}) group_.PushTo(5, member, 1, Wave(1, 3));
  group_.Exchange();
  EXPECT_EQ(group_.sink(0, 0).count(), 2u);
  EXPECT_FALSE(group_.chunk(0).Explain().has_value());
  ExpectValues(After(Wave(1, 3)));
}

TEST_F(OpenStepTest, WhatHadArrivedOfAWorkerThatDiesStands) {
  const std::vector<float> mine = Wave(1, 3), others = Wave(2, 3);
  group_.Push(0, 1, mine);
  for (uint32_t c = 0; c < 3; ++c) group_.PushTo(c, 1, 1, others);
  for (uint32_t c = 0; c < 6; ++c) EXPECT_EQ(group_.chunk(c).Hold(), Round{2});
  group_.NewEpochWithout(1, 2);
  group_.Exchange();
  std::vector<float> average = mine;
  for (int i = 0; i < 9; ++i) average[i] = (mine[i] + others[i]) / 2;
  ExpectValues(After(average));
}

TEST_F(OpenStepTest, AReducedRoundIsNotGivenToTheNextEpochThoughAllWereRefused) {
  std::vector<float> bad = Wave(1, 3);
  bad[0] = std::numeric_limits<float>::quiet_NaN();
  for (uint32_t member : {0, 1}) group_.PushTo(0, member, 1, bad);
  EXPECT_THAT(std::string(group_.sink(0, 0).error().message()), HasSubstr("nan"));
  EXPECT_EQ(group_.chunk(0).Hold(), Round{2});
}

TEST_F(OpenStepTest, WhatIsRefusedIsInNoNorm) {
  std::vector<float> bad = Wave(2, 3);
  bad[1] = std::numeric_limits<float>::infinity();
  group_.Push(0, 1, Wave(1, 3));
  group_.Push(1, 1, bad);
  // The refusal is sent before the norm is decided.
  EXPECT_EQ(group_.sink(0, 1).error().code(), absl::StatusCode::kInvalidArgument);
  group_.Exchange();
  std::vector<float> average = Wave(1, 3);
  for (int i = 3; i < kElements; ++i) average[i] = (average[i] + bad[i]) / 2;
  ExpectValues(After(average));
  // If the refused member pushes again, it gets the result.
  group_.PushTo(0, 1, 1, bad);
  EXPECT_THAT(group_.sink(0, 1).error(), IsOk());
}

TEST_F(OpenStepTest, ARepeatedWordOfTheCoordinatorAndARepeatedPushChangeNothing) {
  for (uint32_t member : {0, 1}) group_.Push(member, 1, Wave(1, 3));
  group_.PushTo(0, 1, 1, Wave(7, 9));
  group_.Exchange();
  const std::vector<float> once = group_.Values(0);
  ASSERT_THAT(group_.decided(), SizeIs(1));
  group_.Tell(group_.decided()[0]);
  for (uint32_t member : {0, 1}) group_.Push(member, 1, Wave(9, 9));
  EXPECT_EQ(group_.Values(0), once);
  ExpectValues(After(Wave(1, 3)));
}

TEST_F(OpenStepTest, NormsOfAnotherEpochAreNotUsed) {
  for (uint32_t member : {0, 1}) group_.Push(member, 1, Wave(1, 3));
  StepNorms norms{GroupId{}, Round{1}, /*epoch=*/2, 0.5, {}};
  group_.Tell(norms);
  EXPECT_EQ(group_.chunk(0).open_round(), Round{1});
  norms.epoch = 1;
  group_.Tell(norms);
  EXPECT_EQ(group_.chunk(0).open_round(), Round{2});
}

// A round whose norms were decided before a crash closes with the same norms when its contributions
// have been pushed again: other chunks have closed with them.
TEST_F(OpenStepTest, ARestartedServerUsesTheNormsThatWereTold) {
  group_.Restart(0);
  group_.PushTo(0, 0, 0, std::vector<float>(kElements, 1));
  group_.SkipTo(0, 1, 0);
  EXPECT_EQ(group_.chunk(0).SetNorms({GroupId{}, Round{1}, 1, 0.25, {}}), CloseWork::kNone);
  for (uint32_t member : {0, 1}) group_.PushTo(0, member, 1, std::vector<float>(kElements, 2));
  EXPECT_THAT(group_.sink(0, 0).values<float>(), ElementsAre(0.5f, 0.5f, 0.5f));
}

TEST(NormRoundsOfTwoStagesTest, ARestartedServerUsesBothStagesAtOnce) {
  Group group(1, ModelSpec(Lamb{.learning_rate = 1, .weight_decay = 0}, 1));
  group.Push(0, 0, std::vector<float>(kElements, 1));
  EXPECT_EQ(group.chunk(0).SetNorms({GroupId{}, Round{1}, 1, 0.25, {0, 0, 2}}), CloseWork::kNone);
  group.Push(0, 1, std::vector<float>(kElements, 2));
  std::vector<float> expected(kElements, 1);
  // The first update of Lamb has the size 1 for each element, up to epsilon.
  expected[kElements - 1] -= 2;
  const std::vector<float> got = group.Values(0);
  for (int i = 0; i < kElements; ++i) EXPECT_NEAR(got[i], expected[i], 1e-5) << i;
}

TEST(NormRoundsOfTwoStagesTest, ClippingIsDecidedFirst) {
  Group group(1, ModelSpec(Lamb{}, 1, 12));
  group.Push(0, 0, Wave(1, 1));
  group.Push(0, 1, Wave(2, 3));
  group.Exchange();
  ASSERT_THAT(group.decided(), SizeIs(2));
  EXPECT_EQ(group.decided()[0].stage(), NormStage::kGradient);
  EXPECT_LT(group.decided()[0].gradient_factor, 1);
  EXPECT_EQ(group.decided()[1].stage(), NormStage::kTensors);
  EXPECT_EQ(group.decided()[1].gradient_factor, group.decided()[0].gradient_factor);
  EXPECT_THAT(group.decided()[1].ratios, SizeIs(3));
}

TEST(NormRoundsOfAbsentTensorsTest, WhatNobodyContributedToStaysAndCountsForNothing) {
  Group group(1, ModelSpec(Sgd{.learning_rate = 1}, 1));
  group.Push(0, 0, std::vector<float>(kElements, 1));
  PushHeader header = PushOf(0, 1);
  header.absent_spans = {0, 1};
  group.chunk(0).Push(header, PayloadOf(BytesOf<float>({4})), std::make_shared<RecordingSink>());
  group.Exchange();
  ASSERT_THAT(group.decided(), SizeIs(1));
  EXPECT_EQ(group.decided()[0].gradient_factor, 0.25);
  const auto kept = group.chunk(0).Kept(Round{1});
  ASSERT_NE(kept, nullptr);
  const auto* const values = reinterpret_cast<const float*>(kept->payload.data());
  EXPECT_EQ(std::vector<float>(values, values + 17), std::vector<float>(17, 1));
  EXPECT_EQ(values[17], 0);
}

TEST(NormRoundsOfAQuorumTest, WhoComesWhileARoundIsReducedIsLate) {
  GroupSpec spec = ModelSpec(Sgd{.learning_rate = 1}, 1);
  spec.policy = Quorum{.least = 1};
  Group group(2, spec);
  for (uint32_t member : {0, 1}) group.Push(member, 0, std::vector<float>(kElements, 1));
  group.Push(0, 1, std::vector<float>(kElements, 2));
  EXPECT_THAT(group.told(), IsEmpty());
  group.chunk(0).Finish(group.chunk(0).Fix(Round{1}, {MemberId{0}}));
  EXPECT_THAT(group.told(), SizeIs(1));
  group.Push(1, 1, std::vector<float>(kElements, 100));
  group.Exchange();
  EXPECT_THAT(group.sink(0, 1).last().header.contributors, ElementsAre(0));
  EXPECT_EQ(group.chunk(0).late_contributions(), 1u);
  EXPECT_NEAR(group.Values(1)[0], 1 - 1 / std::sqrt(18.0), 1e-6);
}

}  // namespace
}  // namespace syncgrads::server
