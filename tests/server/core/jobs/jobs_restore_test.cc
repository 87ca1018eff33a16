// Restored jobs: after a server was killed, it gives the same answers.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/group/policy.h"
#include "common/shm/region.h"
#include "gtest/gtest.h"
#include "server/core/jobs/jobs.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// Keeps the changes in memory. If it is full, only closings of jobs can be appended, and only if
// there is a reserve for them.
class FakeStore : public Store {
 public:
  absl::Status Append(const Stored& record) override {
    const auto* change = std::get_if<PlanChange>(&record);
    const bool ends = change != nullptr && std::holds_alternative<JobClosed>(change->kind);
    if (full && !(ends && has_reserve)) return absl::ResourceExhaustedError("the disk is full");
    if (change != nullptr) changes.push_back(*change);
    return absl::OkStatus();
  }
  absl::Status Reset(const PlanStart& new_start) override {
    start = new_start;
    changes.clear();
    return absl::OkStatus();
  }

  bool full = false;
  bool has_reserve = true;
  PlanStart start;
  std::vector<PlanChange> changes;
};

class JobsRestoreTest : public testing::Test {
 protected:
  JobsRestoreTest() {
    std::filesystem::remove_all(path_);
    directory_ = *StateDirectory::Own(path_);
    Restart();
  }
  ~JobsRestoreTest() override { std::filesystem::remove_all(path_); }

  // Replaces the Jobs as if the process had been killed and restarted.
  void Restart() {
    jobs_ = std::make_unique<Jobs>(ServerIndex{1}, clock_);
    restored_ = jobs_->Restore({directory_.get(), &store_}, store_.start, store_.changes);
  }

  std::vector<GroupRound> Apply(decltype(PlanChange::kind) kind) {
    return jobs_->Apply({++sequence_, "iris", Generation{1}, std::move(kind), 77});
  }
  // Returns a plan with two chunks on server 1 and one on server 0.
  static std::shared_ptr<const GroupPlan> Model(UpdateRule rule) {
    GroupSpec spec{"model", {{"w", DType::kF32, {5}}}, std::move(rule), 8};
    return std::make_shared<GroupPlan>(
        PlanOf(std::move(spec), {ServerIndex{1}, ServerIndex{0}, ServerIndex{1}}));
  }
  void Open(UpdateRule rule) {
    Apply(JobOpened{"secret"});
    Apply(EpochOfSize(2));
    Apply(Model(std::move(rule)));
  }

  std::shared_ptr<RecordingSink> Push(uint32_t member, uint64_t round, float value) {
    auto sink = std::make_shared<RecordingSink>();
    jobs_->Find("iris")->Push(PushOf(member, round), PayloadOf(BytesOf<float>({value, -value})),
                              sink);
    return sink;
  }
  static std::vector<float> ValuesOf(const RecordingSink& sink) {
    EXPECT_THAT(sink.answers(), SizeIs(1));
    if (sink.answers().empty()) return {};
    EXPECT_THAT(sink.answers()[0].header.error, IsOk());
    return syncgrads::server::ValuesOf<float>(sink.answers()[0].payload);
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/jobs_restore_test");
  FakeClock clock_;
  std::unique_ptr<StateDirectory> directory_;
  FakeStore store_;
  uint64_t sequence_ = 0;
  std::unique_ptr<Jobs> jobs_;
  absl::StatusOr<std::vector<HeldRounds>> restored_;
};

TEST_F(JobsRestoreTest, APushToAClosedRoundIsAnsweredWithItsResult) {
  Open(Reduction::kSum);
  Push(0, 1, 1);
  const auto answer = Push(1, 1, 2);
  EXPECT_THAT(ValuesOf(*answer), ElementsAre(3, -3));
  Restart();
  ASSERT_THAT(restored_, IsOk());
  const auto again = Push(0, 1, 1);
  EXPECT_THAT(ValuesOf(*again), ElementsAre(3, -3));
  EXPECT_EQ(again->answers()[0].header.counts, std::vector<uint32_t>{2});
  EXPECT_EQ(again->answers()[0].header.epoch, 1u);
  EXPECT_EQ(jobs_->applied(), 3u);
  EXPECT_EQ(jobs_->plan(), 77u);
}

TEST_F(JobsRestoreTest, ARoundThatHadNotClosedIsPushedAgainAndCountedOnce) {
  Open(Reduction::kSum);
  for (uint64_t round = 1; round <= 3; ++round) {
    Push(0, round, static_cast<float>(round));
    Restart();
    ASSERT_THAT(restored_, IsOk());
    EXPECT_THAT(Push(1, round, 10)->answers(), IsEmpty());
    EXPECT_THAT(ValuesOf(*Push(0, round, static_cast<float>(round))),
                ElementsAre(10 + static_cast<float>(round), -10 - static_cast<float>(round)));
  }
}

TEST_F(JobsRestoreTest, AnOptimizerGoesOnWhereItWas) {
  const auto train = [this](bool killed) {
    Apply(JobOpened{"secret"});
    Apply(EpochOfSize(2));
    Apply(Model(Optimizer{Adam{}}));
    Push(0, 0, 1);
    std::vector<float> values;
    Push(1, 0, 1);
    for (uint64_t round = 1; round <= 5; ++round) {
      if (killed) Restart();
      Push(0, round, 0.5F * static_cast<float>(round));
      values = ValuesOf(*Push(1, round, 0.25F));
    }
    Apply(JobClosed{"the test says so", true});
    return values;
  };
  EXPECT_EQ(train(true), train(false));
}

TEST_F(JobsRestoreTest, RoundsAreHeldThatWereHeld) {
  Open(Reduction::kSum);
  Push(0, 1, 1);
  Push(1, 1, 1);
  const std::vector<GroupRound> held = Apply(EpochProposed{2});
  EXPECT_THAT(held, ElementsAre(GroupRound{GroupId{0}, Round{2}}));
  Restart();
  ASSERT_THAT(restored_, IsOk());
  ASSERT_THAT(*restored_, SizeIs(1));
  EXPECT_EQ((*restored_)[0].sequence, sequence_);
  EXPECT_EQ((*restored_)[0].rounds, held);
  EXPECT_THAT(Push(0, 2, 1)->answers(), IsEmpty());
  EXPECT_THAT(Push(1, 2, 1)->answers(), IsEmpty()) << "it is held";
  Epoch epoch = EpochOfSize(2);
  epoch.number = 2;
  epoch.first_rounds = held;
  Apply(epoch);
  Restart();
  EXPECT_THAT(*restored_, IsEmpty());
  Push(0, 2, 1);
  EXPECT_THAT(ValuesOf(*Push(1, 2, 1)), ElementsAre(2, -2));
}

TEST_F(JobsRestoreTest, WhatIsClosedLeavesNothing) {
  Open(Reduction::kSum);
  Push(0, 1, 1);
  EXPECT_TRUE(std::filesystem::exists(directory_->group_path(3)));
  Apply(JobClosed{"every worker has left", true});
  EXPECT_FALSE(std::filesystem::exists(directory_->group_path(3)));
  EXPECT_THAT(store_.changes, IsEmpty());
  Restart();
  ASSERT_THAT(restored_, IsOk());
  EXPECT_EQ(jobs_->Find("iris"), nullptr);
  EXPECT_TRUE(jobs_->all_done());
  EXPECT_EQ(jobs_->applied(), 4u);
}

TEST_F(JobsRestoreTest, APlanThatIsReplacedLeavesNoPreparedMemory) {
  constexpr uint64_t kKey = (uint64_t{1} << 63) + 5;
  Apply(JobOpened{"secret"});
  Apply(EpochOfSize(2));
  jobs_->Prepare({"iris", Generation{1}, kKey, Model(Reduction::kSum)});
  EXPECT_TRUE(std::filesystem::exists(directory_->group_path(kKey)));
  PlanStart start;
  start.plan = 78;
  jobs_->Reset(start);
  EXPECT_EQ(jobs_->Find("iris"), nullptr);
  EXPECT_FALSE(std::filesystem::exists(directory_->group_path(kKey)));
}

// A large result is checksummed block by block while it is computed.
TEST_F(JobsRestoreTest, ALargeResultIsKept) {
  constexpr int64_t kElements = (1 << 17) + 12345;
  Apply(JobOpened{"secret"});
  Apply(EpochOfSize(2));
  GroupSpec spec{"model", {{"w", DType::kF32, {kElements}}}, Reduction::kSum, 4 << 20};
  Apply(std::make_shared<const GroupPlan>(PlanOf(std::move(spec), {ServerIndex{1}})));
  std::vector<float> values(kElements), sums(kElements);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 977);
    sums[i] = 2 * values[i];
  }
  const auto push = [&](uint32_t member, std::vector<size_t> cuts) {
    auto sink = std::make_shared<RecordingSink>();
    jobs_->Find("iris")->Push(PushOf(member, 1), PayloadOf(BytesOf(values), std::move(cuts)), sink);
    return sink;
  };
  push(0, {});
  EXPECT_EQ(ValuesOf(*push(1, {5, 262146, 300000})), sums);
  Restart();
  ASSERT_THAT(restored_, IsOk());
  EXPECT_EQ(ValuesOf(*push(0, {})), sums);
}

// A worker on this host that maps the results reads a result until its next push. Only the process
// that published the result has a record of this; the restarted process does not.
TEST_F(JobsRestoreTest, NoResultIsOverwrittenThatAWorkerMayBeReading) {
  constexpr size_t kElements = 1 << 13;
  const Policy policies[] = {Sync{}, Quorum{.least = 2, .kept = 1}};
  for (const Policy& policy : policies) {
    SCOPED_TRACE(ToString(policy));
    Apply(JobOpened{"secret"});
    Apply(EpochOfSize(3));
    GroupSpec spec{"model", {{"w", DType::kF32, {kElements}}}, Reduction::kSum, 4 << 20};
    spec.policy = policy;
    Apply(std::make_shared<const GroupPlan>(PlanOf(std::move(spec), {ServerIndex{1}})));
    const auto push = [&](uint32_t member, uint64_t round, float value) {
      jobs_->Find("iris")->Push(PushOf(member, round),
                                PayloadOf(BytesOf(std::vector<float>(kElements, value))),
                                std::make_shared<RecordingSink>());
    };
    const auto fix_without_the_reader = [&](uint64_t round) {
      if (!std::holds_alternative<Quorum>(policy)) return;
      Apply(QuorumSet{GroupId{0}, Round{round}, {MemberId{0}, MemberId{1}}});
    };
    for (uint32_t member = 0; member < 3; ++member) push(member, 1, 1);
    fix_without_the_reader(1);
    const float result = std::holds_alternative<Quorum>(policy) ? 2 : 3;

    // Member 2 reads the result of round 1 and does not push again.
    const absl::StatusOr<FileDescriptor> shared = jobs_->Find("iris")->ShareResults(GroupId{0});
    std::shared_ptr<const PeerRegion> mapped;
    absl::Span<const float> read;
    if (shared.ok()) {
      mapped = *PeerRegion::MapOwn(*shared);
      const absl::Span<const float> all(reinterpret_cast<const float*>(mapped->bytes().data()),
                                        mapped->bytes().size() / sizeof(float));
      const std::vector<float> expected(kElements, result);
      const auto at = std::search(all.begin(), all.end(), expected.begin(), expected.end());
      ASSERT_NE(at, all.end());
      read = all.subspan(static_cast<size_t>(at - all.begin()), kElements);
    } else {
      ExpectError(shared.status(), absl::StatusCode::kNotFound, {"no shared results"});
    }

    Restart();
    ASSERT_THAT(restored_, IsOk());
    for (uint64_t round = 2; round <= 5; ++round) {
      for (uint32_t member = 0; member < 2; ++member) push(member, round, 10);
      fix_without_the_reader(round);
    }
    for (const float value : read) ASSERT_EQ(value, result);
    Apply(JobClosed{"the test says so", false});
  }
}

// Flips a bit in every number after the file's header.
void Damage(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const size_t bytes = std::filesystem::file_size(path);
  for (size_t at = 128; at < bytes; at += 8) {
    file.seekg(at);
    const char byte = static_cast<char>(file.get());
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
  }
}

TEST_F(JobsRestoreTest, DamageCostsTheJobThatHasIt) {
  for (const bool missing : {false, true}) {
    SCOPED_TRACE(missing ? "missing" : "damaged");
    store_.changes.clear();
    sequence_ = 0;
    Restart();
    Open(Reduction::kSum);
    Apply(EpochProposed{2});
    const auto other = [this](decltype(PlanChange::kind) kind) {
      jobs_->Apply({++sequence_, "digits", Generation{2}, std::move(kind), 77});
    };
    const uint64_t damaged = 3;
    ASSERT_TRUE(std::filesystem::exists(directory_->group_path(damaged)));
    Push(0, 1, 1);
    Push(1, 1, 2);
    other(JobOpened{"secret"});
    other(EpochOfSize(2));
    other(Model(Reduction::kSum));
    const uint64_t whole = sequence_;
    if (missing) {
      std::filesystem::remove(directory_->group_path(damaged));
    } else {
      Damage(directory_->group_path(damaged));
    }
    // Until the coordinator has closed the job, each start reports it.
    for (int start = 1; start <= 2; ++start) {
      Restart();
      ASSERT_THAT(restored_, IsOk());
      EXPECT_THAT(*restored_, IsEmpty()) << "the job that is lost holds no rounds";
      EXPECT_EQ(jobs_->Find("iris"), nullptr);
      EXPECT_NE(jobs_->Find("digits"), nullptr);
      ASSERT_THAT(jobs_->StoreFailures(), SizeIs(1));
      EXPECT_EQ(jobs_->StoreFailures()[0].job, "iris");
      EXPECT_EQ(jobs_->StoreFailures()[0].generation, Generation{1});
      ExpectError(jobs_->StoreFailures()[0].error, absl::StatusCode::kDataLoss,
                  {directory_->group_path(damaged)});
      EXPECT_FALSE(std::filesystem::exists(directory_->group_path(damaged)));
      EXPECT_TRUE(std::filesystem::exists(directory_->group_path(whole)));
      EXPECT_EQ(jobs_->applied(), sequence_);
    }
    Apply(JobClosed{"its state is damaged", false});
    EXPECT_THAT(jobs_->StoreFailures(), IsEmpty());
    Restart();
    EXPECT_THAT(jobs_->StoreFailures(), IsEmpty());
    EXPECT_NE(jobs_->Find("digits"), nullptr);
  }
}

Epoch SecondEpoch() {
  Epoch epoch = EpochOfSize(1);
  epoch.number = 2;
  return epoch;
}

TEST_F(JobsRestoreTest, AJobWhoseChangeCannotBeStoredIsGivenUpAndOthersGoOn) {
  Open(Reduction::kSum);
  jobs_->Apply({++sequence_, "digits", Generation{2}, JobOpened{"secret"}, 77});
  std::vector<StoreFailure> told;
  jobs_->store_failures().SetSink([&](const StoreFailure& failure) { told.push_back(failure); });
  const auto waiting = Push(0, 1, 1);
  store_.full = true;
  Apply(SecondEpoch());
  jobs_->store_failures().SetSink(nullptr);

  EXPECT_THAT(jobs_->status(), IsOk());
  EXPECT_EQ(jobs_->applied(), 5u);
  EXPECT_EQ(jobs_->Find("iris"), nullptr);
  EXPECT_NE(jobs_->Find("digits"), nullptr);
  EXPECT_FALSE(std::filesystem::exists(directory_->group_path(3)));
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].job, "iris");
  EXPECT_EQ(told[0].generation, Generation{1});
  ExpectError(told[0].error, absl::StatusCode::kResourceExhausted, {"full"});
}

TEST_F(JobsRestoreTest, AJobThatWasGivenUpIsReportedUntilTheCoordinatorClosesIt) {
  Open(Reduction::kSum);
  store_.full = true;
  Apply(SecondEpoch());
  EXPECT_THAT(jobs_->StoreFailures(), SizeIs(1));
  // More changes of the job may already be in flight.
  Apply(EpochProposed{3, ""});
  Restart();
  ASSERT_THAT(restored_, IsOk());
  EXPECT_EQ(jobs_->applied(), 5u);
  EXPECT_EQ(jobs_->Find("iris"), nullptr);
  ASSERT_THAT(jobs_->StoreFailures(), SizeIs(1));
  ExpectError(jobs_->StoreFailures()[0].error, absl::StatusCode::kResourceExhausted, {"full"});

  Apply(JobClosed{"its plan could not be stored", true});
  EXPECT_THAT(jobs_->StoreFailures(), IsEmpty());
  EXPECT_TRUE(jobs_->all_done());
  Restart();
  EXPECT_THAT(jobs_->StoreFailures(), IsEmpty());
  EXPECT_EQ(jobs_->applied(), 6u);
}

TEST_F(JobsRestoreTest, AJobThatCannotBeStoredIsNotOpened) {
  store_.full = true;
  Apply(JobOpened{"secret"});
  EXPECT_EQ(jobs_->Find("iris"), nullptr);
  EXPECT_THAT(jobs_->StoreFailures(), SizeIs(1));
  EXPECT_THAT(jobs_->status(), IsOk());
}

TEST_F(JobsRestoreTest, WithoutAReserveNothingMoreIsApplied) {
  Open(Reduction::kSum);
  store_.full = true;
  store_.has_reserve = false;
  Apply(SecondEpoch());
  EXPECT_EQ(jobs_->applied(), 3u);
  EXPECT_EQ(jobs_->Find("iris")->epoch()->number, 1u);
  ExpectError(jobs_->status(), absl::StatusCode::kResourceExhausted, {"full"});
}

TEST_F(JobsRestoreTest, AGroupWithoutRoomAnswersEveryPushWithBothNumbers) {
  directory_ = nullptr;
  directory_ = *StateDirectory::Own(path_, [] { return uint64_t{100}; });
  Restart();
  Open(Reduction::kSum);
  const auto sink = Push(0, 1, 1);
  ASSERT_THAT(sink->answers(), SizeIs(1));
  ExpectError(sink->answers()[0].header.error, absl::StatusCode::kResourceExhausted,
              {directory_->group_path(3), "100"});
}

}  // namespace
}  // namespace syncgrads::server
