// What others do with a chunk while one thread computes a result of it. Nobody waits for that
// thread: if a function did, these tests would not end.

#include "server/core/rounds/computing.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/plan/current_roster.h"
#include "server/core/rounds/chunk_rounds.h"
#include "server/core/rounds/chunk_versions.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// Memory of the process. The thread that requests a slot, to compute a result, can be stopped.
class HeldSource : public SlotSource {
 public:
  std::vector<StoredSlot> SlotsOf(size_t) override { return {}; }
  absl::StatusOr<std::unique_ptr<Slot>> Another(size_t, size_t, size_t) override {
    if (is_held_) {
      requested_.Notify();
      released_.WaitForNotification();
      is_held_ = false;
    }
    return nullptr;
  }
  absl::StatusOr<FileDescriptor> ReadOnlyDescriptor() const override {
    return absl::UnimplementedError("");
  }

  // The next request will wait for Release.
  void Hold() { is_held_ = true; }
  void WaitForRequest() { requested_.WaitForNotification(); }
  void Release() { released_.Notify(); }

 private:
  bool is_held_ = false;
  absl::Notification requested_, released_;
};

// Keeps the results, so that each round needs another slot.
class HoldingSink : public RecordingSink {
 public:
  void Send(std::shared_ptr<const RoundResult> result, bool with_payload) override {
    {
      MutexLock lock(mutex_);
      held_.push_back(result);
    }
    RecordingSink::Send(std::move(result), with_payload);
  }

 private:
  Mutex mutex_;
  std::vector<std::shared_ptr<const RoundResult>> held_ ABSL_GUARDED_BY(mutex_);
};

// Records the seats that are taken.
class Listener : public SeatListener {
 public:
  void Seated(Round round, MemberId member) override {
    MutexLock lock(mutex_);
    seated_.emplace_back(round, member);
  }
  std::vector<std::pair<Round, MemberId>> seated() const {
    MutexLock lock(mutex_);
    return seated_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::pair<Round, MemberId>> seated_ ABSL_GUARDED_BY(mutex_);
};

// A chunk of one number. `closer_` is the thread that computes.
class ComputingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Replace([](Roster& roster) { roster.Add(EpochOfSize(3)); });
  }
  void Make(GroupPlan plan) {
    plan_ = std::move(plan);
    if (std::holds_alternative<Staleness>(plan_->spec.policy)) {
      chunk_ = std::make_unique<ChunkVersions>(*plan_, ChunkId{0}, Generation{1}, current_, clock_,
                                               source_);
      return;
    }
    chunk_ = std::make_unique<ChunkRounds>(
        *plan_, ChunkId{0}, Generation{1}, current_, clock_, source_, 0,
        std::make_shared<GradientAlerts>(), &listener_,
        [this](ReducedChunk reduced) { reduced_.push_back(std::move(reduced)); });
  }
  // The sum of three members' numbers.
  void MakeSum() { Make(OneTensor(DType::kF64, 1, Reduction::kSum)); }
  // The sum of those members' numbers that Fix names.
  void MakeQuorum() {
    GroupPlan plan = OneTensor(DType::kF64, 1, Reduction::kSum);
    plan.spec.policy = Quorum{.least = 2, .kept = 3};
    Make(std::move(plan));
  }

  // Versions of a parameter that starts at 100. Contributions are subtracted from it.
  void StartVersions(std::optional<uint32_t> bound) {
    GroupPlan plan = OneTensor(DType::kF64, 1, Sgd{.learning_rate = 1});
    plan.spec.policy = Staleness{.bound = bound};
    Make(std::move(plan));
    chunk_->Finish(Seat(0, 0, 100));
    for (uint32_t member : {1, 2}) {
      chunk_->Finish(chunk_->Seat(SkipOf(member, 0), PayloadOf(""), sinks_[member]));
    }
  }

  CloseWork Seat(uint32_t member, uint64_t round, double value) {
    return SeatTo(sinks_[member], member, round, value);
  }
  // Completes round 1: each member contributes 1.
  void SeatAll() {
    for (uint32_t member : {0, 1}) ASSERT_EQ(Seat(member, 1, 1), CloseWork::kNone);
    ASSERT_EQ(Seat(2, 1, 1), CloseWork::kLittle);
  }
  CloseWork SeatTo(const std::shared_ptr<RecordingSink>& sink, uint32_t member, uint64_t round,
                   double value) {
    return chunk_->Seat(PushOf(member, round), PayloadOf(BytesOf<double>({value})), sink);
  }
  template <typename Change>
  void Replace(Change change) {
    change(roster_);
    current_.Set(std::make_shared<Roster>(roster_));
  }

  // Lets a thread begin to close the open round. Returns when it computes the result.
  void BeginToCompute() {
    source_->Hold();
    closer_ = std::thread([this] { left_ = chunk_->Close(); });
    source_->WaitForRequest();
  }
  // Returns what Close has left, when the thread has closed the round.
  CloseWork EndComputing() {
    source_->Release();
    closer_.join();
    return left_;
  }
  double value(uint32_t member) const {
    EXPECT_THAT(sinks_[member]->error(), IsOk());
    return sinks_[member]->values<double>().at(0);
  }

  FakeClock clock_;
  std::optional<GroupPlan> plan_;
  Roster roster_;
  CurrentRoster current_{nullptr};
  Listener listener_;
  std::vector<ReducedChunk> reduced_;
  const std::shared_ptr<HeldSource> source_ = std::make_shared<HeldSource>();
  std::unique_ptr<ServedChunk> chunk_;
  const std::vector<std::shared_ptr<RecordingSink>> sinks_ = {std::make_shared<HoldingSink>(),
                                                              std::make_shared<HoldingSink>(),
                                                              std::make_shared<HoldingSink>()};
  CloseWork left_ = CloseWork::kNone;
  std::thread closer_;
};

TEST_F(ComputingTest, PushesAreQueuedAndSeatedAfterwards) {
  MakeQuorum();
  for (uint32_t member : {0, 1}) ASSERT_EQ(Seat(member, 1, 1 + member), CloseWork::kNone);
  ASSERT_EQ(chunk_->Fix(Round{1}, {MemberId{0}, MemberId{1}}), CloseWork::kLittle);
  BeginToCompute();
  EXPECT_EQ(Seat(2, 1, 100), CloseWork::kNone);
  EXPECT_EQ(sinks_[2]->count(), 0u);
  EXPECT_EQ(EndComputing(), CloseWork::kNone);
  for (uint32_t member : {0, 1, 2}) EXPECT_EQ(value(member), 3);
  EXPECT_EQ(chunk_->late_contributions(), 1u);
}

TEST_F(ComputingTest, PushesThatCompleteTheNextRoundLeaveItToTheCaller) {
  MakeQuorum();
  ASSERT_EQ(Seat(0, 1, 5), CloseWork::kNone);
  ASSERT_EQ(chunk_->Fix(Round{1}, {MemberId{0}}), CloseWork::kLittle);
  BeginToCompute();
  // The coordinator has fixed the next round already, as after a restart of this server.
  EXPECT_EQ(chunk_->Fix(Round{2}, {MemberId{1}, MemberId{2}}), CloseWork::kNone);
  EXPECT_EQ(Seat(1, 2, 7), CloseWork::kNone);
  EXPECT_EQ(Seat(2, 2, 8), CloseWork::kNone);
  EXPECT_EQ(EndComputing(), CloseWork::kLittle);
  EXPECT_THAT(listener_.seated(),
              ElementsAre(Pair(Round{1}, MemberId{0}), Pair(Round{2}, MemberId{1}),
                          Pair(Round{2}, MemberId{2})));
  EXPECT_EQ(sinks_[1]->count(), 0u);
  chunk_->Finish(CloseWork::kLittle);
  EXPECT_EQ(value(1), 15);
}

TEST_F(ComputingTest, RetriesAreAnsweredToo) {
  MakeSum();
  SeatAll();
  BeginToCompute();
  const auto retry = std::make_shared<RecordingSink>();
  const auto again = std::make_shared<RecordingSink>();
  EXPECT_EQ(SeatTo(retry, 1, 1, 50), CloseWork::kNone);
  EXPECT_EQ(SeatTo(again, 1, 1, 60), CloseWork::kNone);
  EXPECT_EQ(SeatTo(sinks_[1], 1, 2, 70), CloseWork::kNone);
  EXPECT_EQ(sinks_[1]->error().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(sinks_[1]->error().message(), HasSubstr("its push of round 1 in epoch 1 waits"));
  EXPECT_EQ(EndComputing(), CloseWork::kNone);
  EXPECT_EQ(value(0), 3);
  EXPECT_THAT(retry->values<double>(), ElementsAre(3));
  EXPECT_THAT(again->values<double>(), ElementsAre(3));
}

TEST_F(ComputingTest, OnlyOneThreadCloses) {
  MakeSum();
  SeatAll();
  BeginToCompute();
  EXPECT_EQ(chunk_->Close(), CloseWork::kNone);
  EXPECT_EQ(sinks_[0]->count(), 0u);
  EndComputing();
  EXPECT_EQ(value(0), 3);
  EXPECT_EQ(sinks_[0]->count(), 1u);
}

TEST_F(ComputingTest, QuestionsAreAnsweredAtOnce) {
  MakeSum();
  SeatAll();
  BeginToCompute();
  EXPECT_EQ(chunk_->Explain(), std::nullopt);
  EXPECT_EQ(chunk_->ExplainBriefly(), std::nullopt);
  EXPECT_EQ(chunk_->waiting_since(), absl::InfiniteFuture());
  EXPECT_EQ(chunk_->Reduced(), std::nullopt);
  EXPECT_EQ(chunk_->Kept(Round{1}), nullptr);
  EXPECT_EQ(chunk_->open_round(), Round{1});
  EndComputing();
  EXPECT_NE(chunk_->Kept(Round{1}), nullptr);
}

TEST_F(ComputingTest, ARosterIsTakenOverAfterwards) {
  MakeQuorum();
  for (uint32_t member : {0, 1}) ASSERT_EQ(Seat(member, 1, 1 + member), CloseWork::kNone);
  ASSERT_EQ(chunk_->Fix(Round{1}, {MemberId{0}, MemberId{1}}), CloseWork::kLittle);
  BeginToCompute();
  EXPECT_EQ(Seat(2, 1, 100), CloseWork::kNone);
  Replace([](Roster& roster) {
    roster.Remove({MemberId{2}, IncarnationOf(2), "lease of 30s ended", false, {}});
  });
  EXPECT_TRUE(chunk_->HasPushes()) << "so the roster is passed to this chunk";
  EXPECT_EQ(chunk_->TakeRoster(), CloseWork::kNone);
  EndComputing();
  EXPECT_THAT(sinks_[2]->error().message(), HasSubstr("lease of 30s ended"));
  EXPECT_EQ(value(0), 3);
}

TEST_F(ComputingTest, TheRoundThatIsComputedIsNotHeld) {
  MakeSum();
  SeatAll();
  BeginToCompute();
  EXPECT_EQ(chunk_->Hold(), Round{2});
  EndComputing();
  EXPECT_EQ(value(0), 3);
  for (uint32_t member : {0, 1, 2}) EXPECT_EQ(Seat(member, 2, 1), CloseWork::kNone) << "held";
  EXPECT_EQ(chunk_->EndHold(), CloseWork::kLittle);
}

TEST_F(ComputingTest, AHoldMayEndMeanwhile) {
  MakeSum();
  SeatAll();
  EXPECT_EQ(chunk_->Hold(), Round{2});
  BeginToCompute();
  EXPECT_EQ(chunk_->EndHold(), CloseWork::kNone);
  EndComputing();
  for (uint32_t member : {0, 1}) EXPECT_EQ(Seat(member, 2, 1), CloseWork::kNone);
  EXPECT_EQ(Seat(2, 2, 1), CloseWork::kLittle);
}

TEST_F(ComputingTest, NormsAreUsedAfterwards) {
  Make([] {
    GroupSpec spec;
    spec.name = "model";
    spec.tensors = {{"w", DType::kF32, {1}}};
    spec.rule = Sgd{.learning_rate = 1};
    spec.clip_norm = 1;
    return PlanOf(std::move(spec));
  }());
  const auto push = [this](uint32_t member, uint64_t round, float value) {
    return chunk_->Seat(PushOf(member, round), PayloadOf(BytesOf<float>({value})), sinks_[member]);
  };
  for (uint32_t member : {0, 1, 2}) chunk_->Finish(push(member, 0, 10));
  for (uint32_t member : {0, 1}) ASSERT_EQ(push(member, 1, 3), CloseWork::kNone);
  ASSERT_EQ(push(2, 1, 3), CloseWork::kLittle);
  BeginToCompute();
  StepNorms norms;
  norms.group = plan_->id;
  norms.round = Round{1};
  norms.epoch = 1;
  norms.gradient_factor = 1 / 3.0;
  EXPECT_EQ(chunk_->SetNorms(norms), CloseWork::kNone);
  EXPECT_EQ(EndComputing(), CloseWork::kLittle);
  chunk_->Finish(CloseWork::kLittle);
  EXPECT_EQ(sinks_[0]->values<float>().at(0), 9) << "the step of 3 was shortened to 1";
  EXPECT_EQ(chunk_->open_round(), Round{2});
}

TEST_F(ComputingTest, VersionsQueuePushesAndAnswerQuestions) {
  StartVersions(std::nullopt);
  ASSERT_EQ(Seat(0, 1, 1), CloseWork::kLittle);
  BeginToCompute();
  EXPECT_EQ(Seat(1, 1, 10), CloseWork::kNone);
  EXPECT_EQ(Seat(1, 2, 1000), CloseWork::kNone);
  EXPECT_EQ(sinks_[1]->error().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Seat(2, 1, 20), CloseWork::kNone);
  EXPECT_EQ(chunk_->Close(), CloseWork::kNone);
  EXPECT_EQ(chunk_->open_round(), Round{1});
  EXPECT_THAT(chunk_->Explain()->missing, IsEmpty());
  EXPECT_EQ(chunk_->ExplainBriefly()->round, Round{1});
  Replace([](Roster& roster) {
    roster.Remove({MemberId{2}, IncarnationOf(2), "lease of 30s ended", false, {}});
  });
  EXPECT_EQ(chunk_->TakeRoster(), CloseWork::kNone);
  EXPECT_EQ(EndComputing(), CloseWork::kLittle);
  EXPECT_EQ(value(0), 99);
  EXPECT_THAT(sinks_[2]->error().message(), HasSubstr("lease of 30s ended"));
  chunk_->Finish(CloseWork::kLittle);
  EXPECT_EQ(value(1), 89);
}

TEST_F(ComputingTest, ARosterThatComesMeanwhileEndsAWait) {
  StartVersions(/*bound=*/1);
  for (uint32_t member : {0, 1}) chunk_->Finish(Seat(member, 1, 1));
  ASSERT_EQ(Seat(0, 2, 1), CloseWork::kLittle);
  BeginToCompute();
  EXPECT_THAT(chunk_->Explain()->missing, ElementsAre(MemberId{2}));
  Replace([](Roster& roster) {
    roster.Remove({MemberId{2}, IncarnationOf(2), "lease of 30s ended", false, {}});
  });
  EXPECT_EQ(chunk_->TakeRoster(), CloseWork::kNone);
  EXPECT_EQ(EndComputing(), CloseWork::kNone);
  EXPECT_EQ(sinks_[0]->count(), 3u) << "one answer to each of its pushes";
  EXPECT_EQ(value(0), 97);
}

// The size of the work decides who does it.
TEST_F(ComputingTest, ManySmallContributionsAreMuchWork) {
  Replace([](Roster& roster) {
    roster = Roster();
    roster.Add(EpochOfSize(1200));
  });
  MakeSum();
  CloseWork work = CloseWork::kNone;
  for (uint32_t member = 0; member < 1200; ++member) {
    ASSERT_EQ(work, CloseWork::kNone);
    work = SeatTo(sinks_[0], member, 1, 1);
  }
  EXPECT_EQ(work, CloseWork::kMuch);
}

TEST_F(ComputingTest, ALargeResultIsMuchWork) {
  Make(OneTensor(DType::kF64, (256 << 10) / 8 + 1, Reduction::kSum));
  for (uint32_t member : {0, 1}) {
    ASSERT_EQ(chunk_->Seat(SkipOf(member, 1), PayloadOf(""), sinks_[member]), CloseWork::kNone);
  }
  EXPECT_EQ(chunk_->Seat(SkipOf(2, 1), PayloadOf(""), sinks_[2]), CloseWork::kMuch);
}

}  // namespace
}  // namespace syncgrads::server
