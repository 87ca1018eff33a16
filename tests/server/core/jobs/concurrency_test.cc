// Many threads use one job at once: for the thread sanitizer, and for invariants that hold in every
// order.

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "server/core/closing/closers.h"
#include "server/core/jobs/job.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

constexpr uint32_t kMembers = 4;
constexpr uint32_t kChunks = 4;
constexpr uint64_t kRounds = 150;

// Returns a group of four chunks with one value each.
std::shared_ptr<const GroupPlan> FourChunks(GroupId id) {
  GroupPlan plan = PlanOf({"model", {{"w", DType::kF64, {kChunks}}}, Reduction::kSum, 8});
  plan.id = id;
  return std::make_shared<GroupPlan>(std::move(plan));
}

Payload ValueOf(double value) { return PayloadOf(BytesOf<double>({value})); }

// Pushes all chunks of each round up to `last`, even and odd members in opposite orders. Stops at
// the first error. Returns the number of rounds whose results arrived, and appends the results to
// `sums` if that is not null.
uint64_t Work(Job& job, uint32_t member, uint64_t last, std::vector<double>* sums) {
  for (uint64_t round = 1; round <= last; ++round) {
    std::vector<std::shared_ptr<RecordingSink>> sinks(kChunks);
    for (uint32_t i = 0; i < kChunks; ++i) {
      const uint32_t chunk = member % 2 == 0 ? i : kChunks - 1 - i;
      sinks[chunk] = std::make_shared<RecordingSink>();
      job.Push(PushOf(member, round, chunk), ValueOf(1 << member), sinks[chunk]);
      // A retry on another stream. In the last round there is none, because its result may have
      // been released by then.
      if ((round + i) % 3 == 0 && round < last) {
        sinks[chunk] = std::make_shared<RecordingSink>();
        job.Push(PushOf(member, round, chunk), ValueOf(1000), sinks[chunk]);
      }
    }
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      const Answered answer = sinks[chunk]->Wait(0);
      if (!answer.header.error.ok()) return round - 1;
      const std::vector<double> values = ValuesOf<double>(answer.payload);
      EXPECT_EQ(values.size(), 1u);
      if (sums != nullptr) sums->push_back(values.at(0));
    }
  }
  return last;
}

TEST(JobConcurrencyTest, EveryMemberGetsEverySumWhileOthersAskForReports) {
  FakeClock clock;
  Job job("iris", "", Generation{1}, ServerIndex{0}, clock);
  job.AddEpoch(EpochOfSize(kMembers));
  job.AddGroup(FourChunks(GroupId{0}));
  std::atomic<bool> done = false;
  std::thread reports([&] {
    while (!done) {
      job.Explain(std::nullopt);
      job.Progress();
      job.epoch();
      job.RecordMessage(MemberId{1}, clock.Now());
      clock.Advance(absl::Seconds(1));
    }
  });
  std::vector<std::vector<double>> sums(kMembers);
  std::vector<std::thread> workers;
  for (uint32_t member = 0; member < kMembers; ++member) {
    workers.emplace_back(
        [&, member] { EXPECT_EQ(Work(job, member, kRounds, &sums[member]), kRounds); });
  }
  for (std::thread& worker : workers) worker.join();
  done = true;
  reports.join();
  for (const std::vector<double>& sum : sums) {
    EXPECT_EQ(sum, std::vector<double>(kRounds * kChunks, 1 + 2 + 4 + 8));
  }
}

TEST(JobConcurrencyTest, MembersThatEndAndMembersThatAreDroppedHoldNobodyUp) {
  for (int repetition = 0; repetition < 20; ++repetition) {
    FakeClock clock;
    Closers closers(2);
    Job job("iris", "", Generation{1}, ServerIndex{0}, clock,
            repetition % 2 == 0 ? nullptr : &closers);
    job.AddEpoch(EpochOfSize(kMembers));
    job.AddGroup(FourChunks(GroupId{0}));
    std::vector<std::vector<double>> sums(2);
    std::vector<std::thread> threads;
    // Members 0 and 1 run to the end, member 2 ends after 30 rounds, and member 3 dies at a random
    // moment.
    for (uint32_t member : {0, 1}) {
      threads.emplace_back(
          [&, member] { EXPECT_EQ(Work(job, member, kRounds, &sums[member]), kRounds); });
    }
    threads.emplace_back([&] { EXPECT_EQ(Work(job, 2, 30, nullptr), 30u); });
    std::thread dying([&] { Work(job, 3, kRounds, nullptr); });
    threads.emplace_back([&] {
      // The end of member 2 is known before its last contributions arrive.
      job.End({MemberId{2}, GroupId{0}, Round{30}, false});
      for (int i = 0; i < 50 * (repetition % 5); ++i) std::this_thread::yield();
      job.Remove({MemberId{3}, IncarnationOf(3), "lease of 30s ended", false, {}});
      Epoch epoch = EpochOfSize(3);
      epoch.number = 2;
      epoch.first_rounds = job.Hold();
      for (int i = 0; i < 50; ++i) std::this_thread::yield();
      job.AddEpoch(epoch);
      job.AddGroup(FourChunks(GroupId{1}));
    });
    for (std::thread& thread : threads) thread.join();
    dying.join();
    closers.Stop();
    // Members 0 and 1 received the same sums. Each sum has the contributions of members 0 and 1, of
    // member 2 up to round 30, and possibly that of member 3.
    EXPECT_EQ(sums[0], sums[1]);
    for (size_t i = 0; i < sums[0].size(); ++i) {
      const bool third = i < 30 * kChunks;
      const double without = 1 + 2 + (third ? 4 : 0);
      EXPECT_TRUE(sums[0][i] == without || sums[0][i] == without + 8) << i << ": " << sums[0][i];
    }
  }
}

// A push races with the first epoch, and Explain races with both.
TEST(JobConcurrencyTest, ReportsNeverNameAMemberThatTheyDoNotKnow) {
  for (int repetition = 0; repetition < 300; ++repetition) {
    FakeClock clock;
    Job job("iris", "", Generation{1}, ServerIndex{0}, clock);
    job.AddGroup(FourChunks(GroupId{0}));
    std::atomic<bool> seated = false;
    std::thread reports([&] {
      for (bool last = false; !last;) {
        last = seated;
        for (const RoundWait& wait : job.Explain(std::nullopt)) {
          for (const RoundWait::Missing& missing : wait.missing) EXPECT_NE(missing.name, "");
        }
      }
    });
    job.AddEpoch(EpochOfSize(2));
    job.Push(PushOf(0, 1, 0), ValueOf(1), std::make_shared<RecordingSink>());
    seated = true;
    reports.join();
  }
}

}  // namespace
}  // namespace syncgrads::server
