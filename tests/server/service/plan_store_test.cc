#include "server/service/plan_store.h"

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

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
  StoredPlan Stored() {
    StoredPlan plan;
    EXPECT_THAT(PlanStore::Open(path_, plan, options_).status(), IsOk());
    return plan;
  }

  Disk disk_;
  const std::string path_ = absl::StrCat(::testing::TempDir(), "/plan_store_test");
  const PlanStoreOptions options_{.max_steps = 3, .log = {.reserve = 10000, .disk = &disk_}};
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

TEST_F(PlanStoreTest, BeginsAfreshOnAFullDisk) {
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
