#include "server/core/jobs/jobs.h"

#include <atomic>
#include <memory>
#include <string>

#include "common/secret.h"
#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class JobsTest : public testing::Test {
 protected:
  JobsTest() : jobs_(ServerIndex{0}, clock_, &journal_) {}

  std::vector<GroupRound> Apply(uint64_t sequence, decltype(PlanChange::kind) kind,
                                const std::string& job = "iris") {
    return jobs_.Apply({sequence, job, Generation{1}, std::move(kind)});
  }

  static std::shared_ptr<const GroupPlan> Model() {
    return std::make_shared<GroupPlan>(OneTensor(DType::kF32, 2, Reduction::kSum));
  }

  FakeClock clock_;
  LineJournal journal_;
  Jobs jobs_;
};

TEST_F(JobsTest, KnowsAJobsTokenByItsHash) {
  const std::string hash = HashSecret("secret");
  Apply(1, JobOpened{hash});
  EXPECT_TRUE(jobs_.Find("iris")->HasToken("secret"));
  for (const std::string& other : {std::string("guess"), std::string(), hash}) {
    EXPECT_FALSE(jobs_.Find("iris")->HasToken(other)) << other;
  }
}

TEST_F(JobsTest, OpensAndClosesJobs) {
  EXPECT_EQ(jobs_.Find("iris"), nullptr);
  Apply(1, JobOpened{"secret"});
  ASSERT_NE(jobs_.Find("iris"), nullptr);
  EXPECT_TRUE(jobs_.Find("iris")->HasToken("secret"));
  EXPECT_THAT(jobs_.All(), SizeIs(1));
  EXPECT_FALSE(jobs_.all_done());
  Apply(2, JobOpened{""}, "mnist");
  Apply(3, JobClosed{"every worker has left", false});
  EXPECT_EQ(jobs_.Find("iris"), nullptr);
  EXPECT_FALSE(jobs_.all_done());
  Apply(4, JobClosed{"every worker has left", true}, "mnist");
  EXPECT_TRUE(jobs_.all_done());
  Apply(5, JobOpened{""});
  EXPECT_FALSE(jobs_.all_done());
}

TEST_F(JobsTest, IgnoresAChangeThatItHasApplied) {
  Apply(1, JobOpened{"secret"});
  const std::shared_ptr<Job> job = jobs_.Find("iris");
  Apply(2, EpochOfSize(2));
  Apply(1, JobOpened{"other"});
  EXPECT_EQ(jobs_.Find("iris"), job);
  Epoch other = EpochOfSize(1);
  Apply(2, other);
  EXPECT_EQ(job->epoch()->members.size(), 2u);
  EXPECT_EQ(jobs_.applied(), 2u);
}

TEST_F(JobsTest, PassesOverChangesOfAJobThatItDoesNotKnow) {
  EXPECT_THAT(Apply(7, EpochOfSize(2)), IsEmpty());
  EXPECT_THAT(Apply(8, Model()), IsEmpty());
  EXPECT_THAT(Apply(9, EpochProposed{2}), IsEmpty());
  EXPECT_EQ(jobs_.applied(), 9u);
  EXPECT_THAT(jobs_.All(), IsEmpty());
}

TEST_F(JobsTest, AnswersAProposalWithTheRoundsThatAreHeld) {
  Apply(1, JobOpened{""});
  Apply(2, EpochOfSize(2));
  Apply(3, Model());
  EXPECT_THAT(Apply(4, EpochProposed{2}), ElementsAre(GroupRound{GroupId{0}, Round{1}}));
}

TEST_F(JobsTest, AppliesMembershipToRounds) {
  Apply(1, JobOpened{""});
  Apply(2, EpochOfSize(3));
  Apply(3, Model());
  const auto sink = std::make_shared<RecordingSink>();
  jobs_.Find("iris")->Push(PushOf(0, 1), PayloadOf(BytesOf<float>({1, 2})), sink);
  Apply(4, MemberEnded{MemberId{1}, GroupId{0}, Round{0}, false});
  EXPECT_EQ(sink->count(), 0u);
  Apply(5, MemberGone{MemberId{2}, IncarnationOf(2), "lease of 30s ended", false, {}});
  EXPECT_EQ(sink->values<float>(), (std::vector<float>{1, 2}));
}

TEST_F(JobsTest, SaysWhichRoundADroppedMemberKeptWaiting) {
  Apply(1, JobOpened{""});
  Apply(2, EpochOfSize(2));
  Apply(3, Model());
  jobs_.Find("iris")->Push(PushOf(0, 1), PayloadOf(BytesOf<float>({1, 2})),
                           std::make_shared<RecordingSink>());
  clock_.Advance(absl::Seconds(4));
  Apply(4, MemberGone{MemberId{1}, IncarnationOf(1), "lease of 3s ended", false, {}});
  ASSERT_THAT(journal_.lines(), SizeIs(1));
  for (const char* part : {"\"iris\"", "step 1", "\"w1\"", "4.0s", "\"w\"", "lease of 3s ended"}) {
    EXPECT_THAT(journal_.lines()[0], HasSubstr(part));
  }
}

// A clock by which every reading takes a millisecond.
class SlowClock : public FakeClock {
 public:
  absl::Time Now() const override { return FakeClock::Now() + absl::Milliseconds(++readings_); }

 private:
  mutable std::atomic<int> readings_{0};
};

// Looking the rounds up takes a few milliseconds here.
TEST(JobsDropsTest, ManyDropsInARowAreExplainedByOneLookUp) {
  SlowClock clock;
  LineJournal journal;
  Jobs jobs(ServerIndex{0}, clock, &journal);
  uint64_t sequence = 0;
  const auto apply = [&](decltype(PlanChange::kind) kind) {
    jobs.Apply({++sequence, "iris", Generation{1}, std::move(kind)});
  };
  const auto drop = [&apply](uint32_t member) {
    apply(MemberGone{MemberId{member}, IncarnationOf(member), "lease ended", false, {}});
  };
  apply(JobOpened{""});
  apply(EpochOfSize(4));
  apply(std::make_shared<GroupPlan>(OneTensor(DType::kF32, 2, Reduction::kSum)));
  const auto push = [&jobs](uint32_t member) {
    jobs.Find("iris")->Push(PushOf(member, 1), PayloadOf(BytesOf<float>({1, 2})),
                            std::make_shared<RecordingSink>());
  };
  drop(3);
  EXPECT_THAT(journal.lines(), IsEmpty());
  push(0);
  drop(2);
  EXPECT_THAT(journal.lines(), IsEmpty()) << "it was explained by the look-up for member 3";
  clock.Advance(absl::Seconds(1));
  drop(1);
  ASSERT_THAT(journal.lines(), SizeIs(1));
  EXPECT_THAT(journal.lines()[0], HasSubstr("\"w1\""));
}

}  // namespace
}  // namespace syncgrads::server
