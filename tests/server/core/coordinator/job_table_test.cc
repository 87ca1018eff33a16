#include "server/core/coordinator/job_table.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/signals/protocol.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/coordinator/coordinator_options.h"
#include "server/core/coordinator/memory_budget.h"
#include "server/core/jobs/jobs.h"
#include "server/core/plan_log/plan_log.h"
#include "tests/server/core/coordinator/coordinator_fixture.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// Keeps the records in memory, and records which jobs are forgotten and where the plan is
// reset.
class CompactedRecords : public KeptRecords {
 public:
  void Forget(const std::string& job, Generation generation) override {
    forgotten.emplace_back(job, ToNumber(generation));
  }
  absl::Status Reset(const PlanStart& start) override {
    starts.push_back(start);
    return absl::OkStatus();
  }

  std::vector<std::pair<std::string, uint64_t>> forgotten;
  std::vector<PlanStart> starts;
};

// Server 0, which follows the plan, and one job table. The test reports the changes as applied.
class JobTableTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kFirst = 100;

  static Hello HelloFor(const std::string& job, uint64_t generation = 0) {
    Hello hello;
    hello.protocol_version = kProtocolVersion;
    hello.job = job;
    hello.token = "secret";
    hello.incarnation = Incarnation{7};
    hello.generation = Generation{generation};
    hello.world_size = 1;
    hello.host = "host";
    return hello;
  }

  // Opens a job, and admits its only worker.
  CoordinatedJob* Open(const std::string& name) {
    const auto job = table_.Open(HelloFor(name));
    EXPECT_THAT(job, IsOk());
    EXPECT_THAT((*job)->Admit(HelloFor(name), member_), IsOk());
    return *job;
  }
  void ApplyAll() {
    own_->Apply(log_);
    for (const auto& [name, job] : table_.all()) job->SendApplied();
  }

  class OwnLink : public ServerLink {
   public:
    void Send(const PlanChange& change) override { newest_ = change.sequence; }
    void Prepare(const GroupPreparation&) override {}
    void Apply(PlanLog& log) const { log.Applied(ServerIndex{0}, this, newest_); }

   private:
    uint64_t newest_ = 0;
  };

  FakeClock clock_;
  LineJournal journal_;
  Jobs jobs_{ServerIndex{0}, clock_};
  const CoordinatorOptions options_ = {.first_generation = Generation{kFirst}};
  PlanLog log_{1, ""};
  MemoryBudget budget_{1, [](ServerIndex) { return std::optional<uint64_t>(); }};
  CompactedRecords store_;
  std::shared_ptr<OwnLink> own_ = std::make_shared<OwnLink>();
  std::shared_ptr<FakeMember> member_ = std::make_shared<FakeMember>();
  JobTable table_{{options_, log_, budget_, jobs_, clock_, journal_}, clock_, /*most_closed=*/50};
};

TEST_F(JobTableTest, AJobIsOpenUntilItIsClosedAndKeptUntilEveryServerKnows) {
  log_.AttachOwn(own_);
  CoordinatedJob* const job = Open("iris");
  EXPECT_EQ(table_.Find("iris"), job);
  EXPECT_EQ(*table_.FindOpen("iris"), job);
  EXPECT_TRUE(table_.any_open());
  ExpectError(table_.FindOpen("other"), absl::StatusCode::kNotFound, {"\"other\""});

  table_.Close(*job, "a test closes it");
  EXPECT_FALSE(table_.any_open());
  ExpectError(table_.FindOpen("iris"), absl::StatusCode::kNotFound, {"\"iris\""});
  table_.ForgetClosed();
  EXPECT_EQ(table_.Find("iris"), job);

  ApplyAll();
  table_.ForgetClosed();
  EXPECT_EQ(table_.Find("iris"), nullptr);
  EXPECT_THAT(table_.all(), IsEmpty());
  EXPECT_THAT(table_.status(), IsOk());
}

TEST_F(JobTableTest, ClosedJobsOfWhichAServerDoesNotKnowDoNotPileUp) {
  log_.AttachOwn(own_);
  for (int i = 0; i < 50; ++i) table_.Close(*Open(absl::StrCat("job", i)), "a test closes it");
  table_.ForgetClosed();
  ExpectError(table_.Open(HelloFor("next")), absl::StatusCode::kResourceExhausted,
              {"50 jobs have been closed, of at most 50"});
  ApplyAll();
  table_.ForgetClosed();
  EXPECT_THAT(table_.Open(HelloFor("next")), IsOk());
}

TEST_F(JobTableTest, EachJobOfANameHasALargerGeneration) {
  log_.AttachOwn(own_);
  for (uint64_t generation : {kFirst, kFirst + 1}) {
    CoordinatedJob* const job = Open("iris");
    EXPECT_EQ(ToNumber(job->generation()), generation);
    table_.Close(*job, "a test closes it");
    ApplyAll();
    table_.ForgetClosed();
  }
  EXPECT_EQ(table_.Position().generations.at("iris"), Generation{kFirst + 1});
}

TEST_F(JobTableTest, StartsTheStoredPlanAfreshOnceTheLastJobIsForgotten) {
  table_.Restore(store_, PlanStart{}, {});
  log_.AttachOwn(own_);
  CoordinatedJob* const iris = Open("iris");
  CoordinatedJob* const wine = Open("wine");
  table_.Close(*iris, "a test closes it");
  ApplyAll();
  table_.ForgetClosed();
  EXPECT_THAT(store_.forgotten, ElementsAre(Pair("iris", kFirst)));
  EXPECT_THAT(store_.starts, IsEmpty());

  table_.Close(*wine, "a test closes it");
  ApplyAll();
  table_.ForgetClosed();
  EXPECT_THAT(store_.forgotten, ElementsAre(Pair("iris", kFirst), Pair("wine", kFirst)));
  ASSERT_EQ(store_.starts.size(), 1u);
  EXPECT_THAT(store_.starts[0].generations,
              ElementsAre(Pair("iris", Generation{kFirst}), Pair("wine", Generation{kFirst})));
}

TEST_F(JobTableTest, AJobThatCannotBeStoredIsNotOpened) {
  table_.Restore(store_, PlanStart{}, {});
  log_.AttachOwn(own_);
  store_.full = true;
  ExpectError(table_.Open(HelloFor("iris")), absl::StatusCode::kResourceExhausted, {"full"});
  EXPECT_EQ(table_.Find("iris"), nullptr);
}

TEST_F(JobTableTest, RestoresOpenJobsAndClosesThoseWithoutAnAdmittedWorker) {
  const std::vector<Stored> records = {
      PlanChange{1, "iris", Generation{3}, JobOpened{"secret"}},
      MemberAdmitted{HelloFor("iris"), Generation{3}, MemberId{0}, "worker-0", false},
      PlanChange{2, "wine", Generation{4}, JobOpened{"secret"}},
  };
  table_.Restore(store_, PlanStart{}, records);
  ASSERT_NE(table_.Find("iris"), nullptr);
  EXPECT_EQ(table_.Find("iris")->generation(), Generation{3});
  EXPECT_FALSE(table_.Find("iris")->AllGone());
  EXPECT_EQ(table_.Find("wine"), nullptr);
  EXPECT_TRUE(store_.HasClosing());
  EXPECT_THAT(table_.Position().generations,
              ElementsAre(Pair("iris", Generation{3}), Pair("wine", Generation{4})));
}

TEST_F(JobTableTest, KnowsWhichGenerationsItHasNoRecordOf) {
  PlanStart start;
  start.generations = {{"iris", Generation{3}}};
  table_.Restore(store_, start, {});
  log_.AttachOwn(own_);
  EXPECT_FALSE(table_.IsUnknownGeneration(HelloFor("iris")));
  EXPECT_FALSE(table_.IsUnknownGeneration(HelloFor("iris", 3)));
  EXPECT_TRUE(table_.IsUnknownGeneration(HelloFor("iris", 4)));
  EXPECT_TRUE(table_.IsUnknownGeneration(HelloFor("wine", 1)));

  // A generation from before the start stays unknown when there is a newer job of its name.
  Open("iris");
  EXPECT_FALSE(table_.IsUnknownGeneration(HelloFor("iris", kFirst)));
  EXPECT_TRUE(table_.IsUnknownGeneration(HelloFor("iris", 4)));
  EXPECT_TRUE(table_.IsUnknownGeneration(HelloFor("iris", kFirst + 1)));
}

}  // namespace
}  // namespace syncgrads::server
