// Workers of an elastic job are killed, stopped, restarted and added while it runs, with real
// processes.

#include <signal.h>

#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kIdentical[] = "replicas are bit-identical";

// The job waits for a worker that is killed until another process has taken its place, so it cannot
// end before that process has started.
class ElasticTest : public ::testing::Test {
 protected:
  explicit ElasticTest(const std::string& stream_grace = "10m")
      : cluster_(2, {absl::StrCat("--stream_grace=", stream_grace), "--lease=10m",
                     "--heartbeat_interval=200ms", "--exit_when_done"}) {}

  // Writes the job file of an elastic job with generated data, to which `text` is appended.
  std::string WriteJob(const std::string& text) const {
    return WriteTemporaryFile(
        "elastic.job",
        absl::StrCat("name: \"elastic\" seed: 7 batch_size: 8 optimizer { adam {} }\n"
                     "model { layers { dense { outputs: 6 activation: TANH } } "
                     "layers { dense { outputs: 1 } } }\n"
                     "loss { sigmoid_cross_entropy {} }\n",
                     text));
  }

  std::unique_ptr<Process> Start(const std::string& job, int rank, int world_size,
                                 std::vector<std::string> flags = {}) const {
    flags.push_back(absl::StrCat("--name=worker-", rank));
    flags.push_back(absl::StrCat("--event_log=", LogOf(rank)));
    return cluster_.StartWorker(job, rank, world_size, flags);
  }
  void StartAll(const std::string& job, int world_size) {
    for (int rank = 0; rank < world_size; ++rank) {
      workers_.push_back(Start(job, rank, world_size));
    }
    ASSERT_TRUE(workers_[0]->WaitForLine("step ", kLongEnough).ok());
  }

  void ExpectToFinish(Process& worker) {
    EXPECT_EQ(WaitFor(worker), ExitCode(0)) << worker.output();
  }

  static std::string LogOf(int rank) {
    return TemporaryPath(
        absl::StrCat(::testing::UnitTest::GetInstance()->current_test_info()->name(), ".", rank));
  }
  // Returns the lines of the steps in a worker's event log.
  static std::vector<std::string> StepsOf(int rank) {
    std::vector<std::string> steps;
    std::ifstream file(LogOf(rank));
    for (std::string line; std::getline(file, line);) {
      if (absl::StrContains(line, "\"event\":\"step\"")) steps.push_back(line);
    }
    return steps;
  }
  static std::string Field(const std::string& line, const std::string& name) {
    std::smatch match;
    const std::regex field(
        absl::StrCat("\"", name, "\":(\\[(\\[[0-9,]*\\],?)*\\]|\\[[^\\]]*\\]|[^,}]*)"));
    return std::regex_search(line, match, field) ? match[1].str() : "";
  }

  Cluster cluster_;
  std::vector<std::unique_ptr<Process>> workers_;
};

constexpr char kLong[] =
    "data { generated { rows: 4000 seed: 1 } mode: DYNAMIC } steps: 12000 workers: 3 elastic {} ";

TEST_F(ElasticTest, AKilledWorkerComesBackAndAllEndEqual) {
  const std::string job = WriteJob(kLong);
  StartAll(job, 3);
  workers_[2]->Kill(SIGKILL);
  EXPECT_EQ(WaitFor(*workers_[2]), KilledBy(SIGKILL));
  workers_[2] = Start(job, 2, 3);
  const auto joined = cluster_.server(0).WaitForLine("\"worker-2\" is up to date", kLongEnough);
  ASSERT_TRUE(joined.ok()) << joined.status();
  for (const auto& worker : workers_) ExpectToFinish(*worker);
  EXPECT_THAT(workers_[0]->output(), HasSubstr(absl::StrCat("the 3 ", kIdentical)));
}

TEST_F(ElasticTest, AMasterThatIsKilledComesBackToo) {
  const std::string job = WriteJob(absl::StrCat(kLong, "optimizer_placement: SERVERS"));
  StartAll(job, 3);
  workers_[0]->Kill(SIGKILL);
  EXPECT_EQ(WaitFor(*workers_[0]), KilledBy(SIGKILL));
  workers_[0] = Start(job, 0, 3);
  for (const auto& worker : workers_) ExpectToFinish(*worker);
  EXPECT_THAT(workers_[0]->output(), HasSubstr(absl::StrCat("the 3 ", kIdentical)));
}

TEST_F(ElasticTest, AWorkerThatWasTakenForDeadJoinsAgainByItself) {
  Cluster cluster(1, {"--lease=10s", "--heartbeat_interval=200ms", "--exit_when_done"});
  const std::string job = WriteJob(kLong);
  for (int rank = 0; rank < 3; ++rank) {
    workers_.push_back(cluster.StartWorker(job, rank, 3, {absl::StrCat("--name=worker-", rank)}));
  }
  ASSERT_TRUE(workers_[0]->WaitForLine("step ", kLongEnough).ok());
  workers_[1]->Kill(SIGSTOP);
  ASSERT_TRUE(cluster.server(0).WaitForLine("\"worker-1\" on", kLongEnough).ok());
  const auto dropped = cluster.server(0).WaitForLine("is dropped: lease", kLongEnough);
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_THAT(*dropped, HasSubstr("\"worker-1\""));
  workers_[1]->Kill(SIGCONT);
  const auto again = workers_[1]->WaitForLine("rejoining", kLongEnough);
  ASSERT_TRUE(again.ok()) << again.status();
  for (const auto& worker : workers_) ExpectToFinish(*worker);
  EXPECT_THAT(workers_[0]->output(), HasSubstr(absl::StrCat("the 3 ", kIdentical)));
}

TEST_F(ElasticTest, ALateWorkerMakesTheJobLarger) {
  const std::string job = WriteJob(
      "data { generated { rows: 4000 seed: 1 } mode: DYNAMIC } steps: 12000 workers: 2 "
      "elastic { max_workers: 3 } ");
  StartAll(job, 2);
  // While a worker is stopped, no step ends, so the job cannot end before the late worker has
  // joined.
  workers_[1]->Kill(SIGSTOP);
  workers_.push_back(Start(job, 2, 2));
  const auto joined = cluster_.server(0).WaitForLine("\"worker-2\" on", kLongEnough);
  ASSERT_TRUE(joined.ok()) << joined.status();
  workers_[1]->Kill(SIGCONT);
  for (const auto& worker : workers_) ExpectToFinish(*worker);
  EXPECT_THAT(workers_[0]->output(), HasSubstr(absl::StrCat("the 3 ", kIdentical)));
}

class ShortGraceTest : public ElasticTest {
 protected:
  ShortGraceTest() : ElasticTest("1s") {}
};

TEST_F(ShortGraceTest, BelowTheMinimumTheJobWaits) {
  const std::string job = WriteJob(
      "data { generated { rows: 4000 seed: 1 } } steps: 12000 workers: 2 "
      "elastic { min_workers: 2 } ");
  StartAll(job, 2);
  workers_[1]->Kill(SIGKILL);
  EXPECT_EQ(WaitFor(*workers_[1]), KilledBy(SIGKILL));
  const auto waits =
      cluster_.server(0).WaitForLine("waits for workers: 1 of at least 2", kLongEnough);
  ASSERT_TRUE(waits.ok()) << waits.status();
  workers_[1] = Start(job, 1, 2);
  for (const auto& worker : workers_) ExpectToFinish(*worker);
  EXPECT_THAT(workers_[0]->output(), HasSubstr(absl::StrCat("the 2 ", kIdentical)));
}

TEST_F(ElasticTest, AWorkerThatIsToldToStopLeavesInOrder) {
  const std::string job = WriteJob(kLong);
  StartAll(job, 3);
  workers_[2]->Kill(SIGTERM);
  EXPECT_EQ(WaitFor(*workers_[2]), ExitCode(143));
  ExpectToFinish(*workers_[0]);
  ExpectToFinish(*workers_[1]);
  const auto leaves = cluster_.server(0).WaitForLine("worker \"worker-2\" leaves", kLongEnough);
  EXPECT_TRUE(leaves.ok()) << leaves.status();
  EXPECT_THAT(workers_[0]->output(), HasSubstr(absl::StrCat("the 2 ", kIdentical)));
}

// Returns the child process of `launcher` that has the argument `argument`; -1 if there is none.
pid_t ChildWith(pid_t launcher, const std::string& argument) {
  std::ifstream children(absl::StrCat("/proc/", launcher, "/task/", launcher, "/children"));
  for (pid_t child; children >> child;) {
    std::ifstream file(absl::StrCat("/proc/", child, "/cmdline"));
    for (std::string one; std::getline(file, one, '\0');) {
      if (one == argument) return child;
    }
  }
  return -1;
}

TEST_F(ElasticTest, TheLauncherStartsAKilledWorkerAgain) {
  const auto launch = Process::Start(
      {.program = "worker/launch/ps-launch",
       .args = {absl::StrCat("--job=", WriteJob(kLong)), "--servers=2", "--on_worker_death=restart",
                "--server_args=--stream_grace=10m", "--log_level=debug",
                "--server_program=server/ps-server", "--worker_program=worker/ps-worker"}});
  ASSERT_TRUE(launch.ok()) << launch.status();
  ASSERT_TRUE((*launch)->WaitForLine("step ", kLongEnough).ok());
  const pid_t worker = ChildWith((*launch)->pid(), "--rank=1");
  ASSERT_GT(worker, 0);
  kill(worker, SIGKILL);
  ExpectToFinish(**launch);
  EXPECT_THAT((*launch)->output(), HasSubstr("; restarting it"));
  EXPECT_THAT((*launch)->output(), HasSubstr(absl::StrCat("the 3 ", kIdentical)));
}

// Counts each row in the event logs of all workers. A worker is killed in one of the two passes.
TEST_F(ElasticTest, DealtRowsAreCountedOnceInEachPassWhoeverDies) {
  const std::string job = WriteJob(
      "data { generated { rows: 20000 seed: 1 } mode: DYNAMIC } epochs: 2 workers: 3 elastic {} ");
  StartAll(job, 3);
  workers_[1]->Kill(SIGKILL);
  EXPECT_EQ(WaitFor(*workers_[1]), KilledBy(SIGKILL));
  workers_[1] = Start(job, 1, 3);
  for (const auto& worker : workers_) ExpectToFinish(*worker);

  // A worker logs a step after the step has closed. The steps that were open when the worker was
  // killed are not in its log.
  std::map<std::string, int> counted;
  uint64_t last = 0;
  for (int rank = 0; rank < 3; ++rank) {
    uint64_t before = 0;
    for (const std::string& line : StepsOf(rank)) {
      const uint64_t step = std::stoull(Field(line, "step"));
      EXPECT_GT(step, before) << line;
      before = step;
      last = std::max(last, step);
      if (!absl::StrContains(Field(line, "contributors"), absl::StrCat("\"worker-", rank, "\""))) {
        continue;
      }
      std::string rows = Field(line, "rows");
      const std::regex pair("\\[[0-9]+,[0-9]+\\]");
      for (std::sregex_iterator row(rows.begin(), rows.end(), pair), end; row != end; ++row) {
        ++counted[row->str()];
      }
    }
  }
  EXPECT_EQ(counted.size(), 20000u);
  // If the worker was killed before it logged its last counted step, that step's rows (at most one
  // batch) appear only once.
  int once = 0;
  for (const auto& [row, times] : counted) {
    ASSERT_LE(times, 2) << row;
    if (times == 1) ++once;
  }
  EXPECT_LE(once, 8);
  EXPECT_GE(last, 2u * 20000 / 24);
}

}  // namespace
}  // namespace syncgrads::testing
