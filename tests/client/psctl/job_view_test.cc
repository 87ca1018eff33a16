#include "client/psctl/job_view.h"

#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/psctl/status_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads::client {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

// The answers of two servers that serve the job "iris" with three workers.
class JobViewTest : public ::testing::Test {
 protected:
  JobViewTest() {
    for (uint32_t index : {0, 1}) {
      Answer& answer = answers_.emplace_back();
      answer.index = index;
      answer.address = absl::StrCat("host-", index, ":7000");
      answer.at = absl::UnixEpoch();
      answer.reply = v1::GetStatusReply();
      answer.reply->set_server_index(index);
      v1::JobStatus& job = *answer.reply->add_jobs();
      job.set_job("iris");
      job.set_generation(4);
      job.mutable_epoch()->set_number(2);
      for (uint32_t rank = 0; rank < 3; ++rank) {
        v1::Member& member = *job.mutable_epoch()->add_members();
        member.set_member(10 + rank);
        member.set_name(absl::StrCat("w", rank));
        if (index > 0) continue;
        v1::MemberStatus& status = *job.add_members();
        status.set_member(10 + rank);
        status.set_name(absl::StrCat("w", rank));
        status.set_host(absl::StrCat("host-of-w", rank));
        status.set_rank(rank);
        status.set_lease_ms(30'000);
      }
      Group(index, 0).set_name("state/model");
      Group(index, 1).set_name("model");
      Group(index, 1).set_chunks(2);
    }
  }

  v1::GroupStatus& Group(uint32_t server, uint32_t group) {
    v1::JobStatus& job = *answers_[server].reply->mutable_jobs(0);
    while (job.groups_size() <= static_cast<int>(group)) {
      job.add_groups()->set_group(static_cast<uint32_t>(job.groups_size() - 1));
    }
    return *job.mutable_groups(static_cast<int>(group));
  }
  // On this server, the worker has contributed to `round` with `count` lags of `lag_ms` each.
  void Contributes(uint32_t server, uint32_t rank, uint64_t round, uint64_t count,
                   uint64_t lag_ms) {
    v1::GroupStatus& group = Group(server, 1);
    v1::ContributorStatus* one = nullptr;
    for (v1::ContributorStatus& known : *group.mutable_contributors()) {
      if (known.member() == 10 + rank) one = &known;
    }
    if (one == nullptr) one = group.add_contributors();
    one->set_member(10 + rank);
    one->set_round(round);
    if (one->arrival_lag().counts().empty()) one->mutable_arrival_lag()->add_counts(0);
    one->mutable_arrival_lag()->set_counts(0, one->arrival_lag().counts(0) + count);
    one->mutable_arrival_lag()->set_sum_us(one->arrival_lag().sum_us() + count * lag_ms * 1000);
  }
  static std::vector<std::string> NamesOf(const JobView& job) {
    std::vector<std::string> names;
    for (const WorkerView& worker : job.workers) names.push_back(worker.name);
    return names;
  }

  std::vector<Answer> answers_;
};

TEST_F(JobViewTest, AHundredThousandJobsAreShownOnceEach) {
  constexpr int kJobs = 100'000;
  for (Answer& answer : answers_) {
    for (int i = 0; i < kJobs; ++i) answer.reply->add_jobs()->set_job(absl::StrCat("job ", i));
  }
  EXPECT_THAT(JobsOf(answers_, &answers_), SizeIs(1 + kJobs));
}

TEST_F(JobViewTest, AHundredThousandWorkersAreShownWithTheirStepsAndWaits) {
  constexpr uint32_t kWorkers = 100'000;
  v1::JobStatus& job = *answers_[0].reply->mutable_jobs(0);
  job.clear_members();
  for (uint32_t rank = 0; rank < kWorkers; ++rank) {
    v1::MemberStatus& status = *job.add_members();
    status.set_member(10 + rank);
    status.set_rank(rank);
    v1::ContributorStatus& one = *Group(0, 1).add_contributors();
    one.set_member(10 + rank);
    one.set_round(7);
    // All but the last one have contributed.
    if (rank + 1 == kWorkers) continue;
    v1::ContributorStatus& other = *Group(0, 2).add_contributors();
    other.set_member(10 + rank);
    other.set_round(3);
    other.mutable_arrival_lag()->add_counts(1);
  }
  Group(0, 2).set_name("barrier/end");
  Group(0, 2).set_open_round(3);
  Group(0, 2).set_open_chunks(1);
  Group(0, 2).set_oldest_open_ms(8000);
  const std::vector<JobView> jobs = JobsOf(answers_, nullptr);
  ASSERT_THAT(jobs, SizeIs(1));
  ASSERT_THAT(jobs[0].workers, SizeIs(kWorkers));
  EXPECT_EQ(jobs[0].workers.front().step, 7u);
  EXPECT_EQ(jobs[0].workers.front().lag, std::nullopt);
  EXPECT_EQ(jobs[0].workers.back().lag, absl::Seconds(8));
}

TEST_F(JobViewTest, TheTrainingGroupIsTheBusiestThatIsNoCollective) {
  Group(0, 1).set_open_round(7);
  Group(1, 1).set_open_round(6);
  Group(0, 1).set_rounds_closed(12);
  Group(0, 2).set_name("all_reduce/sum/loss");
  Group(0, 2).set_rounds_closed(500);
  Group(0, 2).set_chunks(9);
  Group(0, 3).set_name("evaluation");
  Group(0, 3).set_rounds_closed(3);
  Group(0, 3).set_chunks(9);
  const std::vector<JobView> jobs = JobsOf(answers_, nullptr);
  ASSERT_THAT(jobs, SizeIs(1));
  EXPECT_EQ(jobs[0].group, "model");
  EXPECT_EQ(jobs[0].chunks, 4u);
  EXPECT_EQ(jobs[0].open_round, 6u) << "every round before it has closed on all servers";
  EXPECT_EQ(jobs[0].other_groups, 3u);
  EXPECT_EQ(jobs[0].workers[1].host, "host-of-w1");
}

TEST_F(JobViewTest, StepsPerSecondAreThoseOfTheSlowestServerWithChunks) {
  Group(0, 1).set_rounds_per_second(22.25);
  Group(1, 1).set_rounds_per_second(22.5);
  EXPECT_EQ(JobsOf(answers_, nullptr)[0].steps_per_second, 22.25);
  std::ostringstream status;
  PrintStatus(answers_, nullptr, status);
  EXPECT_THAT(status.str(), HasSubstr(" step 0 is open, 22.2 steps/s, 4 chunks, "));
  EXPECT_THAT(status.str(), HasSubstr(" connections, 2 chunks, memory "));
  Group(0, 1).set_chunks(0);
  EXPECT_EQ(JobsOf(answers_, nullptr)[0].steps_per_second, 22.5);
  Group(1, 1).set_rounds_per_second(0.04);
  std::ostringstream slow;
  PrintStatus(answers_, nullptr, slow);
  EXPECT_THAT(slow.str(), HasSubstr(", 0.040 steps/s, "));
}

TEST_F(JobViewTest, AServersVersionIsShown) {
  answers_[0].reply->mutable_server()->set_version("1.2.3");
  answers_[0].reply->mutable_server()->set_commit("unknown");
  answers_[1].reply->mutable_server()->set_version("1.2.4");
  answers_[1].reply->mutable_server()->set_commit("1fb4471a2b3c");
  std::ostringstream status;
  PrintStatus(answers_, nullptr, status);
  EXPECT_THAT(status.str(), HasSubstr("coordinator, version 1.2.3, up "));
  EXPECT_THAT(status.str(), HasSubstr("version 1.2.4 of commit 1fb4471a2b3c, up "));
}

TEST_F(JobViewTest, StepsPerSecondComeFromTwoLooks) {
  for (uint32_t server : {0, 1}) Group(server, 1).set_open_round(10);
  const std::vector<Answer> before = answers_;
  for (Answer& answer : answers_) answer.at += absl::Seconds(2);
  Group(0, 1).set_open_round(50);
  Group(1, 1).set_open_round(40);
  EXPECT_EQ(JobsOf(answers_, &before)[0].steps_per_second, 15.0);
  Group(1, 1).set_open_round(3);  // it was restarted
  EXPECT_EQ(JobsOf(answers_, &before)[0].steps_per_second, 20.0);
}

TEST_F(JobViewTest, TheLagIsTheMeanSinceTheLookBeforeOnTheServerWhereItIsLongest) {
  Contributes(0, 1, 5, 10, 900);
  const std::vector<Answer> before = answers_;
  Contributes(0, 1, 9, 4, 20);
  Contributes(1, 1, 9, 4, 30);
  EXPECT_EQ(JobsOf(answers_, &before)[0].workers[1].lag, absl::Milliseconds(30));
  EXPECT_EQ(JobsOf(answers_, &before)[0].workers[0].lag, std::nullopt);
  EXPECT_GT(JobsOf(answers_, nullptr)[0].workers[1].lag, absl::Milliseconds(600));
}

TEST_F(JobViewTest, AWorkerThatTheOpenRoundWaitsForHasAtLeastThatLag) {
  Group(0, 1).set_open_round(6);
  Group(0, 1).set_open_chunks(1);
  Group(0, 1).set_oldest_open_ms(8000);
  Contributes(0, 0, 6, 6, 0);
  Contributes(0, 1, 5, 5, 1);
  JobView job = JobsOf(answers_, nullptr)[0];
  EXPECT_EQ(job.workers[0].lag, absl::ZeroDuration());
  EXPECT_EQ(job.workers[1].lag, absl::Seconds(8));
  EXPECT_EQ(job.workers[2].lag, absl::Seconds(8)) << "it has contributed to nothing";
}

TEST_F(JobViewTest, AWorkerThatACollectiveWaitsForHasAtLeastThatLag) {
  Contributes(0, 0, 6, 6, 0);
  Contributes(0, 1, 6, 6, 1);
  v1::GroupStatus& collective = Group(1, 2);
  collective.set_name("all_reduce/sum/loss");
  collective.set_open_round(3);
  collective.set_open_chunks(1);
  collective.set_oldest_open_ms(9000);
  v1::ContributorStatus& one = *collective.add_contributors();
  one.set_member(10);
  one.set_round(3);
  one.mutable_arrival_lag()->add_counts(3);
  JobView job = JobsOf(answers_, nullptr)[0];
  EXPECT_EQ(job.group, "model");
  EXPECT_EQ(job.workers[0].lag, absl::ZeroDuration());
  EXPECT_EQ(job.workers[1].lag, absl::Seconds(9));
  EXPECT_EQ(job.workers[1].step, 6u) << "a step of the training group";
}

TEST_F(JobViewTest, AWorkersDeviceAndLossAreShownIfItHasReportedThem) {
  v1::TrainingFigures& figures =
      *answers_[0].reply->mutable_jobs(0)->mutable_members(1)->mutable_figures();
  figures.set_device("NVIDIA H200");
  figures.set_loss(0.123456);
  std::ostringstream status;
  PrintStatus(answers_, nullptr, status);
  EXPECT_THAT(status.str(), ContainsRegex("rank +worker +host +device +step +loss +lag"));
  EXPECT_THAT(status.str(), ContainsRegex("0 +w0 +host-of-w0 +- +0 +- "));
  EXPECT_THAT(status.str(), ContainsRegex("1 +w1 +host-of-w1 +NVIDIA H200 +0 +0.1235 "));
}

TEST_F(JobViewTest, TheSlowestWorkerIsFirstAndMarked) {
  Contributes(0, 0, 9, 9, 0);
  Contributes(0, 1, 9, 9, 40);
  Contributes(0, 2, 9, 9, 3);
  JobView job = JobsOf(answers_, nullptr)[0];
  EXPECT_TRUE(SortSlowestFirst(job));
  EXPECT_THAT(NamesOf(job), ElementsAre("w1", "w2", "w0"));
  std::ostringstream top;
  PrintTop(answers_, nullptr, top);
  const std::string text = top.str();
  EXPECT_LT(text.find("host-of-w1"), text.find("<- SLOWEST"));
  EXPECT_LT(text.find("<- SLOWEST"), text.find("host-of-w2"));
  std::ostringstream status;
  PrintStatus(answers_, nullptr, status);
  EXPECT_THAT(status.str(), Not(HasSubstr("SLOWEST")));
}

TEST_F(JobViewTest, WorkersThatAreEquallyFastAreNotMarked) {
  for (uint32_t rank : {0, 1, 2}) Contributes(0, rank, 9, 9, 20 + rank);
  JobView job = JobsOf(answers_, nullptr)[0];
  EXPECT_FALSE(SortSlowestFirst(job));
}

TEST_F(JobViewTest, WithoutLagsTheWorkerThatIsBehindIsFirst) {
  Contributes(0, 0, 90, 0, 0);
  Contributes(0, 1, 20, 0, 0);
  Contributes(0, 2, 91, 0, 0);
  JobView job = JobsOf(answers_, nullptr)[0];
  EXPECT_TRUE(SortSlowestFirst(job));
  EXPECT_THAT(NamesOf(job), ElementsAre("w1", "w0", "w2"));
}

TEST_F(JobViewTest, NobodyWaitsForAWorkerThatHasEndedItsData) {
  for (uint32_t rank : {0, 1}) Contributes(0, rank, 9, 9, 1);
  Contributes(0, 2, 9, 9, 70);
  answers_[0].reply->mutable_jobs(0)->mutable_members(2)->set_follows(true);
  JobView job = JobsOf(answers_, nullptr)[0];
  EXPECT_FALSE(SortSlowestFirst(job));
  EXPECT_THAT(NamesOf(job), ElementsAre("w0", "w1", "w2"));
}

TEST_F(JobViewTest, WithoutTheCoordinatorTheWorkersAreThoseOfTheEpoch) {
  answers_[0].reply = absl::UnavailableError("connection refused");
  Contributes(1, 2, 3, 3, 5);
  const std::vector<JobView> jobs = JobsOf(answers_, nullptr);
  ASSERT_THAT(jobs, SizeIs(1));
  EXPECT_THAT(NamesOf(jobs[0]), ElementsAre("w0", "w1", "w2"));
  EXPECT_EQ(jobs[0].workers[2].step, 3u);
  EXPECT_EQ(jobs[0].workers[2].silent, std::nullopt);
  std::ostringstream text;
  PrintStatus(answers_, nullptr, text);
  EXPECT_THAT(text.str(), HasSubstr("server 0, host-0:7000: DOES NOT ANSWER: connection refused"));
  EXPECT_THAT(text.str(), HasSubstr("epoch 2 of 3 workers: w0, w1, w2"));
}

TEST(StatusTextTest, QuantitiesHaveAUnit) {
  EXPECT_EQ(BytesText(0), "0 bytes");
  EXPECT_EQ(BytesText(1536), "1.5 KiB");
  EXPECT_EQ(BytesText(uint64_t{3} << 40), "3.0 TiB");
  EXPECT_EQ(DurationText(absl::Microseconds(2500)), "2.5 ms");
  EXPECT_EQ(DurationText(absl::Seconds(90)), "90.0 s");
  EXPECT_EQ(DurationText(absl::Hours(30)), "30.0 h");
}

}  // namespace
}  // namespace syncgrads::client
