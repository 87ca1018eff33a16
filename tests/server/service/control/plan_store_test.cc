#include "server/service/control/plan_store.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A log disk that, if `full` is true, allocates no more space.
class Disk : public LogDisk {
 public:
  int Allocate(int file, off_t offset, off_t length) const override {
    if (!full) return LogDisk::Allocate(file, offset, length);
    errno = ENOSPC;
    return -1;
  }

  bool full = false;
};

class PlanStoreTest : public ::testing::Test {
 protected:
  PlanStoreTest() {
    PlanStart start;
    start.plan = 77;
    store_ = *PlanStore::Create(path_, start, options_);
  }
  ~PlanStoreTest() override { std::filesystem::remove(path_); }

  absl::Status Change(decltype(PlanChange::kind) kind, const std::string& job = "iris") {
    return store_->Append(PlanChange{++sequence_, job, Generation{1}, std::move(kind), 77});
  }
  // Appends records until the disk is full.
  void Fill() {
    disk_.full = true;
    const absl::Status appended = [this] {
      for (;;) {
        if (absl::Status status = Change(JobOpened{std::string(1000, 't')}); !status.ok()) {
          return status;
        }
      }
    }();
    ExpectError(appended, absl::StatusCode::kResourceExhausted, {path_, "No space"});
  }
  // Appends as many steps as begin a compaction, which waits in `background_`.
  void BeginCompaction() {
    at_once_ = false;
    for (uint64_t step = 1; step <= options_.max_steps; ++step) {
      EXPECT_THAT(Change(QuorumSet{GroupId{0}, Round{step}, {}}), IsOk());
    }
    ASSERT_NE(background_, nullptr);
  }
  // The sequence numbers of the stored changes.
  std::vector<uint64_t> Sequences() {
    std::vector<uint64_t> sequences;
    for (const server::Stored& record : Stored().records) {
      if (const auto* change = std::get_if<PlanChange>(&record)) {
        sequences.push_back(change->sequence);
      }
    }
    return sequences;
  }
  bool HasCompactedFile() const { return std::filesystem::exists(path_ + ".compacted"); }
  StoredPlan Stored() {
    StoredPlan plan;
    EXPECT_THAT(PlanStore::Open(path_, plan, options_).status(), IsOk());
    return plan;
  }

  Disk disk_;
  const std::string path_ = absl::StrCat(::testing::TempDir(), "/plan_store_test");
  // Whether compactions run within Append. Otherwise the last one is in `background_`.
  bool at_once_ = true;
  std::function<void()> background_;
  const PlanStoreOptions options_{.max_steps = 3,
                                  .run =
                                      [this](std::function<void()> compact) {
                                        at_once_ ? compact() : background_.swap(compact);
                                      },
                                  .log = {.reserve = 10000, .copied = true, .disk = &disk_}};
  std::unique_ptr<PlanStore> store_;
  uint64_t sequence_ = 0;
};

TEST_F(PlanStoreTest, AJobCanBeClosedOnAFullDisk) {
  ASSERT_THAT(Change(JobOpened{"secret"}), IsOk());
  Fill();
  EXPECT_FALSE(Change(JobOpened{std::string(1000, 't')}).ok());
  EXPECT_THAT(Change(JobClosed{"the disk is full", true}), IsOk());
  const StoredPlan plan = Stored();
  EXPECT_TRUE(std::holds_alternative<JobClosed>(std::get<PlanChange>(plan.records.back()).kind));
}

TEST_F(PlanStoreTest, CanBeResetOnAFullDisk) {
  ASSERT_THAT(Change(JobOpened{"secret"}), IsOk());
  Fill();
  PlanStart start;
  start.plan = 78;
  start.applied = 5;
  ASSERT_THAT(store_->Reset(start), IsOk());
  EXPECT_EQ(Stored().start.plan, 78u);
  EXPECT_THAT(Stored().records, IsEmpty());
  ASSERT_THAT(Change(JobClosed{"of the new plan", true}), IsOk());
  EXPECT_THAT(Stored().records, SizeIs(1));
  disk_.full = false;
  ASSERT_THAT(store_->Reset(start), IsOk());
  EXPECT_LT(std::filesystem::file_size(path_), 200u) << "what came before is gone";
}

TEST_F(PlanStoreTest, ADamagedLogIsReadFromItsCopy) {
  for (uint64_t step = 1; step <= 4; ++step) {
    ASSERT_THAT(Change(QuorumSet{GroupId{0}, Round{step}, {}}), IsOk());
  }
  const std::vector<uint64_t> sequences = Sequences();
  EXPECT_THAT(Stored().replaced, IsOk());
  store_ = nullptr;
  std::fstream(path_, std::ios::binary | std::ios::in | std::ios::out).seekp(40) << "damage";
  StoredPlan plan;
  ASSERT_THAT(PlanStore::Open(path_, plan, options_), IsOk());
  ExpectError(plan.replaced, absl::StatusCode::kDataLoss, {path_, "damaged"});
  EXPECT_EQ(Sequences(), sequences);
}

// The record is appended, so the change may be published, even if the log cannot be compacted.
TEST_F(PlanStoreTest, ALogThatCannotBeWrittenAnewIsNoReasonToRefuseARecord) {
  disk_.full = true;
  for (uint64_t step = 1; step <= 5; ++step) {
    EXPECT_THAT(Change(QuorumSet{GroupId{0}, Round{step}, {}}), IsOk()) << step;
  }
  EXPECT_THAT(Stored().records, SizeIs(5));
  disk_.full = false;
  EXPECT_THAT(Change(QuorumSet{GroupId{0}, Round{6}, {}}), IsOk());
  EXPECT_THAT(Stored().records, SizeIs(1)) << "it is as soon as it can be";
}

TEST_F(PlanStoreTest, TheNewLogHasTheRecordsThatWereAppendedDuringTheCompaction) {
  BeginCompaction();
  ASSERT_THAT(Change(QuorumSet{GroupId{0}, Round{4}, {}}), IsOk());
  background_();
  EXPECT_TRUE(HasCompactedFile());
  EXPECT_THAT(*RecordLog::Read(path_), SizeIs(5)) << "the old log is complete until the new one is";
  ASSERT_THAT(Change(QuorumSet{GroupId{0}, Round{5}, {}}), IsOk());
  EXPECT_FALSE(HasCompactedFile());
  EXPECT_THAT(Sequences(), ElementsAre(3, 4, 5));
}

TEST_F(PlanStoreTest, ACompactionOfAProcessThatDiedIsRemoved) {
  BeginCompaction();
  background_();
  ASSERT_TRUE(HasCompactedFile());
  EXPECT_THAT(Sequences(), ElementsAre(1, 2, 3));
  EXPECT_FALSE(HasCompactedFile());
}

TEST_F(PlanStoreTest, ACompactionOfAnEarlierPlanIsDropped) {
  BeginCompaction();
  PlanStart start;
  start.plan = 78;
  ASSERT_THAT(store_->Reset(start), IsOk());
  std::exchange(background_, nullptr)();
  EXPECT_FALSE(HasCompactedFile());
  ASSERT_THAT(Change(JobOpened{"of the new plan"}), IsOk());
  EXPECT_EQ(Stored().start.plan, 78u);
  EXPECT_THAT(Sequences(), ElementsAre(4));
}

TEST_F(PlanStoreTest, JobsThatAreForgottenDuringACompactionAreRemovedByTheNextOne) {
  const auto close = [this](const std::string& job) {
    ASSERT_THAT(Change(JobOpened{"secret"}, job), IsOk());
    ASSERT_THAT(store_->Append(MemberAdmitted{{.job = job}, Generation{1}, MemberId{0}, "m"}),
                IsOk());
    ASSERT_THAT(Change(JobClosed{"over", true}, job), IsOk());
  };
  close("first");
  close("second");
  store_->Forget("first", Generation{1});
  BeginCompaction();
  store_->Forget("second", Generation{1});
  std::exchange(background_, nullptr)();
  ASSERT_THAT(Change(QuorumSet{GroupId{0}, Round{4}, {}}), IsOk());
  EXPECT_THAT(Sequences(), ElementsAre(3, 4, 7, 8)) << "the first job is gone";
  at_once_ = true;
  for (uint64_t step = 5; step <= 6; ++step) {
    ASSERT_THAT(Change(QuorumSet{GroupId{0}, Round{step}, {}}), IsOk());
  }
  EXPECT_THAT(Sequences(), ElementsAre(4, 10)) << "a plan keeps the newest end of a job";
}

// Records are appended while the store's own thread compacts the log.
TEST_F(PlanStoreTest, CompactsInTheBackground) {
  PlanStoreOptions options = options_;
  options.run = nullptr;
  PlanStart start;
  start.plan = 77;
  store_ = *PlanStore::Create(path_, start, options);
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  size_t records = 0;
  uint64_t step = 0;
  do {
    records = RecordLog::Read(path_)->size();
    ASSERT_THAT(Change(QuorumSet{GroupId{0}, Round{++step}, {}}), IsOk());
  } while (RecordLog::Read(path_)->size() > records && absl::Now() < deadline);
  ASSERT_LE(RecordLog::Read(path_)->size(), records) << "the log was never compacted";
  store_ = nullptr;
  EXPECT_EQ(Sequences().back(), sequence_);
  EXPECT_FALSE(HasCompactedFile());
}

TEST_F(PlanStoreTest, AServerThatComesBackAsItWasIsNotStoredAgain) {
  for (uint64_t incarnation : {1, 1, 2, 2, 1}) {
    ASSERT_THAT(store_->Append(ServerSeen{ServerIndex{1}, "a:1", Incarnation{incarnation}}),
                IsOk());
  }
  EXPECT_THAT(Stored().records, SizeIs(3));
  StoredPlan plan;
  store_ = *PlanStore::Open(path_, plan, options_);
  ASSERT_THAT(store_->Append(ServerSeen{ServerIndex{1}, "a:1", Incarnation{1}}), IsOk());
  EXPECT_THAT(Stored().records, SizeIs(3));
}

}  // namespace
}  // namespace syncgrads::server
