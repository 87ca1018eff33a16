// Tests of psctl on running jobs. checkpoint_run_test tests requests for checkpoints.

#include <google/protobuf/util/json_util.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/admin.pb.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

Finished Psctl(const std::vector<std::string>& args) {
  const auto finished = RunProgram({.program = "client/psctl/psctl", .args = args}, kLongEnough);
  EXPECT_TRUE(finished.ok()) << finished.status();
  return finished.value_or(Finished{});
}

class PsctlTest : public ::testing::Test {
 protected:
  void Start(const std::string& more) {
    const std::string job = WriteTemporaryFile(
        "psctl.job", absl::StrCat("name: \"ctl\" seed: 7 batch_size: 8 workers: 2 steps: 1000000 "
                                  "data { generated { rows: 300 seed: 1 } } optimizer { sgd {} }\n"
                                  "model { layers { dense { outputs: 1 } } }\n"
                                  "loss { sigmoid_cross_entropy {} } ",
                                  more));
    for (int rank = 0; rank < 2; ++rank) {
      workers_.push_back(
          cluster_.StartWorker(job, rank, 2, {absl::StrCat("--name=worker-", rank)}));
    }
    // A worker prints this line when it starts to train.
    ASSERT_TRUE(workers_[0]->WaitForLine("ctl: 300 rows", kLongEnough).ok());
  }
  Finished At(int server, std::vector<std::string> args) const {
    args.push_back(absl::StrCat("--server=", cluster_.address(server)));
    args.push_back("--timeout=2m");
    return Psctl(args);
  }

  Cluster cluster_{2, {"--lease=10m", "--stall_warning=200ms"}};
  std::vector<std::unique_ptr<Process>> workers_;
};

TEST_F(PsctlTest, SaysWhatThereIs) {
  Start("");
  const Finished status = At(0, {"status"});
  EXPECT_EQ(status.exit, ExitCode(0)) << status.output;
  for (const std::string& output : {status.output, At(1, {"status"}).output}) {
    for (int server = 0; server < 2; ++server) {
      EXPECT_THAT(output, HasSubstr(absl::StrCat("server ", server, ", ")));
      EXPECT_THAT(output, HasSubstr(cluster_.address(server)));
    }
    EXPECT_THAT(output, HasSubstr("epoch 1 of 2 workers: worker-0, worker-1"));
    EXPECT_THAT(output, HasSubstr("\"model\": "));
    EXPECT_THAT(output, HasSubstr(", received "));
    EXPECT_THAT(output, HasSubstr("workers: 2 joined, 0 dropped"));
    EXPECT_THAT(output, HasSubstr("checkpoints: 0 written; 0 failed"));
    EXPECT_THAT(output, HasSubstr(" steps/s, 1 chunks, "));
    EXPECT_THAT(output, HasSubstr("coordinator, version "));
  }
  EXPECT_THAT(At(0, {"status", "--interval=1ms"}).output, HasSubstr(" steps/s"));
}

TEST_F(PsctlTest, StatusInJsonHasWhatTheServersAnswered) {
  Start("");
  const Finished status = At(1, {"status", "-o", "json"});
  EXPECT_EQ(status.exit, ExitCode(0)) << status.output;
  v1::ClusterStatus cluster;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(status.output, &cluster).ok())
      << status.output;
  ASSERT_EQ(cluster.servers_size(), 2);
  EXPECT_EQ(cluster.servers(1).address(), cluster_.address(1));
  ASSERT_EQ(cluster.servers(0).status().jobs_size(), 1);
  const v1::JobStatus& job = cluster.servers(0).status().jobs(0);
  ASSERT_EQ(job.members_size(), 2);
  EXPECT_EQ(job.members(1).name(), "worker-1");
  EXPECT_GT(job.groups(0).contributors_size(), 0);
}

TEST_F(PsctlTest, AServerKnowsItsStepsPerSecond) {
  Start("");
  const absl::Time deadline = absl::Now() + kLongEnough;
  double rate = 0;
  while (rate == 0 && absl::Now() < deadline) {
    const Finished top = At(0, {"top", "--count=1", "-o", "json"});
    ASSERT_EQ(top.exit, ExitCode(0)) << top.output;
    EXPECT_EQ(top.output.find('\n'), top.output.size() - 1) << "one line for each refresh";
    v1::ClusterStatus cluster;
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(top.output, &cluster).ok())
        << top.output;
    for (const v1::ServerAnswer& server : cluster.servers()) {
      for (const v1::JobStatus& job : server.status().jobs()) {
        for (const v1::GroupStatus& group : job.groups()) {
          rate = std::max(rate, group.rounds_per_second());
        }
      }
    }
  }
  EXPECT_GT(rate, 0);
}

TEST_F(PsctlTest, WithADeadServerItAnswersForTheOthersAndNamesTheDeadOne) {
  Start("");
  cluster_.server(1).Kill(SIGKILL);
  WaitFor(cluster_.server(1));
  const Finished status = At(0, {"status"});
  EXPECT_EQ(status.exit, ExitCode(128)) << status.output;
  EXPECT_THAT(status.output, HasSubstr("epoch 1 of 2 workers: worker-0, worker-1"));
  const std::string dead = absl::StrCat("server 1, ", cluster_.address(1));
  EXPECT_THAT(status.output, HasSubstr(dead + ": DOES NOT ANSWER"));
  const Finished doctor = At(0, {"doctor", "--max_latency=1h", "--min_bandwidth=0"});
  EXPECT_EQ(doctor.exit, ExitCode(3)) << doctor.output;
  EXPECT_THAT(doctor.output, HasSubstr("WRONG: " + dead));
  const Finished json = At(0, {"doctor", "-o", "json", "--max_latency=1h", "--min_bandwidth=0"});
  EXPECT_EQ(json.exit, ExitCode(3)) << json.output;
  EXPECT_THAT(json.output, HasSubstr("{\"wrong\":true,\"text\":\"" + dead));
  EXPECT_THAT(json.output, HasSubstr("{\"wrong\":false,\"text\":\""));
}

// Returns the line of `top` for the slowest worker; empty if no worker is marked.
std::string SlowestIn(const std::string& top) {
  const size_t mark = top.find("<- SLOWEST");
  if (mark == std::string::npos) return "";
  const size_t begin = top.rfind('\n', mark) + 1;
  return top.substr(begin, mark - begin);
}

TEST_F(PsctlTest, TopShowsTheWorkerThatTheOthersWaitForFirst) {
  Start("");
  workers_[1]->Kill(SIGSTOP);
  const absl::Time deadline = absl::Now() + kLongEnough;
  std::string top;
  // The other worker may still have to contribute to the step that was open when the worker was
  // stopped. As long as it has not, or was late, it is the slowest.
  while (!absl::StrContains(SlowestIn(top), "worker-1") && absl::Now() < deadline) {
    const Finished finished = At(0, {"top", "--count=2", "--interval=10ms"});
    ASSERT_EQ(finished.exit, ExitCode(0)) << finished.output;
    ASSERT_THAT(finished.output, HasSubstr("\n\n"));
    top = finished.output.substr(finished.output.find("\n\n"));
  }
  EXPECT_THAT(SlowestIn(top), HasSubstr("worker-1")) << top;
  workers_[1]->Kill(SIGKILL);
}

TEST_F(PsctlTest, DoctorFindsThatAServerWasDrained) {
  const std::vector<std::string> doctor = {"doctor", "--max_latency=1h", "--min_bandwidth=0"};
  // Server 1 may still be about to connect to the coordinator. The limits of the machine that runs
  // this test may be a finding too.
  const absl::Time deadline = absl::Now() + kLongEnough;
  std::string before = "WRONG: server";
  while (absl::StrContains(before, "WRONG: server") && absl::Now() < deadline) {
    before = At(1, doctor).output;
  }
  EXPECT_THAT(before, Not(HasSubstr("WRONG: server")));
  const Finished drained = At(0, {"drain"});
  EXPECT_EQ(drained.exit, ExitCode(0)) << drained.output;
  EXPECT_THAT(drained.output, HasSubstr("open jobs: 0"));
  const Finished after = At(1, doctor);
  EXPECT_EQ(after.exit, ExitCode(3)) << after.output;
  EXPECT_THAT(after.output, HasSubstr("refuses new jobs because it was drained"));
}

TEST_F(PsctlTest, SaysWhomAStepWaitsFor) {
  Start("");
  workers_[1]->Kill(SIGSTOP);
  const absl::Time deadline = absl::Now() + kLongEnough;
  std::string waits;
  // A step that was open when the worker was stopped may wait for the other one too, for a moment.
  while (!absl::StrContains(waits, "for worker \"worker-1\"") && absl::Now() < deadline) {
    waits = At(0, {"waits", "--job=ctl"}).output + At(1, {"waits", "--job=ctl"}).output;
  }
  EXPECT_THAT(waits, HasSubstr("for worker \"worker-1\""));
  workers_[1]->Kill(SIGKILL);
}

TEST_F(PsctlTest, EveryCommandAnswersInJson) {
  Start("elastic {}");
  const auto expect = [this](std::vector<std::string> args, const std::string& json) {
    args.insert(args.end(), {"--job=ctl", "-o", "json"});
    const Finished finished = At(0, args);
    EXPECT_EQ(finished.exit, ExitCode(0)) << finished.output;
    EXPECT_THAT(finished.output, MatchesRegex(json));
  };
  expect({"waits"}, "\\{.*\"waits\": \\[.*\\}\n");
  expect({"set", "learning-rate-factor", "0.5"},
         "\\{\"factor\":0.5,\"epoch\":[0-9]+,\"since\":\\[\\{\"group\":[0-9]+,\"step\":[0-9]+\\}\\]"
         "\\}\n");
  expect({"evict", "worker-1"}, "\\{\"worker\":\"worker-1\"\\}\n");
  expect({"readmit", "worker-1"}, "\\{\"worker\":\"worker-1\"\\}\n");
  expect({"drain"}, "\\{\"open_jobs\":1\\}\n");
}

TEST_F(PsctlTest, DropsAWorkerWhichIsToldWhy) {
  Start("elastic {}");
  const Finished evicted = At(0, {"evict", "worker-1", "its disk fails", "--job=ctl"});
  EXPECT_EQ(evicted.exit, ExitCode(0)) << evicted.output;
  EXPECT_NE(WaitFor(*workers_[1]), ExitCode(0));
  EXPECT_THAT(workers_[1]->output(), HasSubstr("its disk fails"));
  // The worker may end before all servers have applied the epoch without it.
  const absl::Time deadline = absl::Now() + kLongEnough;
  std::string status;
  while (!absl::StrContains(status, "of 1 workers: worker-0") && absl::Now() < deadline) {
    status = At(0, {"status"}).output;
  }
  EXPECT_THAT(status, HasSubstr("of 1 workers: worker-0"));
}

// Returns the kinds of the events, in order, and beside a kind the worker, if there is one.
std::vector<std::string> KindsOf(const std::string& json_lines) {
  std::vector<std::string> kinds;
  for (const auto line : absl::StrSplit(json_lines, '\n', absl::SkipEmpty())) {
    v1::Event event;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(std::string(line), &event).ok())
        << line;
    kinds.push_back(event.worker().empty() ? event.kind()
                                           : absl::StrCat(event.kind(), " ", event.worker()));
  }
  return kinds;
}

// The events of a job from which one worker is evicted, one leaves, and one dies.
TEST(PsctlEventsTest, ShowsWhatHasHappenedInOrderAndFollowsWhatHappens) {
  Cluster cluster(1, {"--lease=10m", "--stream_grace=100ms"});
  const std::string job = WriteTemporaryFile(
      "events.job",
      "name: \"long\" seed: 7 batch_size: 8 workers: 4 steps: 1000000 elastic {} "
      "data { generated { rows: 300 seed: 1 } } optimizer { sgd {} }\n"
      "model { layers { dense { outputs: 1 } } }\n"
      "loss { sigmoid_cross_entropy {} }");
  const auto psctl = [&cluster](std::vector<std::string> args) {
    args.push_back(absl::StrCat("--server=", cluster.address(0)));
    args.push_back("--timeout=2m");
    return args;
  };
  const auto followed =
      Process::Start({.program = "client/psctl/psctl", .args = psctl({"events", "-f"})});
  ASSERT_TRUE(followed.ok()) << followed.status();
  Process& following = **followed;
  std::vector<std::unique_ptr<Process>> workers;
  for (int rank = 0; rank < 4; ++rank) {
    workers.push_back(cluster.StartWorker(job, rank, 4, {absl::StrCat("--name=w", rank)}));
  }
  const auto wait_for = [&following](const std::string& text) {
    const auto line = following.WaitForLine(text, kLongEnough);
    EXPECT_TRUE(line.ok()) << line.status();
  };
  wait_for("epoch 1 of 4 workers: w0, w1, w2, w3");
  EXPECT_EQ(Psctl(psctl({"evict", "w1", "its disk fails", "--job=long"})).exit, ExitCode(0));
  wait_for("epoch 2 of 3 workers");
  workers[2]->Kill(SIGTERM);
  wait_for("epoch 3 of 2 workers");
  workers[3]->Kill(SIGKILL);
  wait_for("epoch 4 of 1 workers");
  EXPECT_EQ(Psctl(psctl({"readmit", "w1", "--job=long"})).exit, ExitCode(0));
  wait_for("may join again");
  EXPECT_THAT(following.output(), HasSubstr("W server 0: job \"long\": worker \"w1\" on "));
  EXPECT_THAT(following.output(), HasSubstr("is dropped: evicted: its disk fails"));

  const Finished all = Psctl(psctl({"events", "--job=long", "-o", "json"}));
  EXPECT_EQ(all.exit, ExitCode(0)) << all.output;
  const std::vector<std::string> kinds = KindsOf(all.output);
  // Workers join in any order, and are ready in any order.
  ASSERT_GE(kinds.size(), 6u) << all.output;
  EXPECT_EQ(kinds[0], "opened");
  EXPECT_THAT(std::vector<std::string>(kinds.begin() + 1, kinds.begin() + 5),
              UnorderedElementsAre("joined w0", "joined w1", "joined w2", "joined w3"));
  EXPECT_EQ(kinds[5], "epoch");
  std::vector<std::string> later;
  for (const std::string& kind : std::vector<std::string>(kinds.begin() + 6, kinds.end())) {
    if (!absl::StartsWith(kind, "ready")) later.push_back(kind);
  }
  EXPECT_THAT(later, ElementsAre("evicted w1", "epoch", "left w2", "epoch", "disconnected w3",
                                 "dropped w3", "epoch", "readmitted w1"))
      << all.output;
  const Finished newest = Psctl(psctl({"events", "--count=1", "-o", "json"}));
  EXPECT_THAT(KindsOf(newest.output), ElementsAre("readmitted w1"));
  const Finished other = Psctl(psctl({"events", "--job=other"}));
  EXPECT_EQ(other.exit, ExitCode(0));
  EXPECT_EQ(other.output, "");

  // A psctl that has enough ends; one whose server ends reports it.
  const auto counted = Process::Start(
      {.program = "client/psctl/psctl", .args = psctl({"events", "-f", "--count=1"})});
  ASSERT_TRUE(counted.ok()) << counted.status();
  EXPECT_TRUE((*counted)->WaitForLine("may join again", kLongEnough).ok());
  EXPECT_EQ(Psctl(psctl({"drain"})).exit, ExitCode(0));
  EXPECT_EQ(WaitFor(**counted), ExitCode(0)) << (*counted)->output();
  EXPECT_THAT((*counted)->output(), HasSubstr("new jobs are refused from now on"));
  cluster.server(0).Kill(SIGKILL);
  EXPECT_EQ(WaitFor(following), ExitCode(128)) << following.output();
  EXPECT_THAT(following.output(), HasSubstr(cluster.address(0)));
}

TEST_F(PsctlTest, EventsOfADeadServerAreMissingAndItIsNamed) {
  Start("");
  cluster_.server(1).Kill(SIGKILL);
  WaitFor(cluster_.server(1));
  const Finished events = At(0, {"events"});
  EXPECT_EQ(events.exit, ExitCode(128)) << events.output;
  EXPECT_THAT(events.output, HasSubstr("epoch 1 of 2 workers: worker-0, worker-1"));
  EXPECT_THAT(events.output, HasSubstr(absl::StrCat("server 1, ", cluster_.address(1))));
}

TEST_F(PsctlTest, AnErrorIsTheServersAndHasACode) {
  Start("");
  const auto expect = [](const Finished& finished, int code, const std::string& text) {
    EXPECT_EQ(finished.exit, ExitCode(code)) << finished.output;
    EXPECT_THAT(finished.output, HasSubstr(text));
  };
  expect(At(0, {"checkpoint", "--job=other"}), 1, "\"other\"");
  expect(At(1, {"evict", "worker-1", "--job=ctl"}), 1, "not the coordinator");
  expect(At(0, {"evict", "worker-9", "--job=ctl"}), 1, "worker-9");
  expect(At(0, {"waits", "--job=ctl", "--token=guessed"}), 1, "token");
  expect(At(0, {"waits"}), 2, "--job is missing");
  expect(At(0, {"evict", "--job=ctl"}), 2, "the name of the worker is missing");
  expect(At(0, {"dance"}), 2, "\"dance\" is not a command");
  expect(At(0, {"top", "-o", "yaml"}), 2, "there is no output \"yaml\"");
  expect(At(0, {"trace", "pause"}), 2, "\"pause\" is neither start nor stop");
  expect(At(0, {"set", "learning-rate", "--job=ctl"}), 2, "needs learning-rate-factor or");
  expect(At(0, {"status", "-f"}), 2, "status cannot follow");
  expect(At(0, {"status", "--intervall=1s"}), 2, "there is no flag \"--intervall=1s\"");
  expect(At(0, {"status", "--\x1b[2J"}), 2, "there is no flag \"--\\x1b[2J\"");
  expect(At(0, {"events", "--count", "many"}), 2, "--count: ");
  expect(At(0, {"status", "--interval=inf"}), 2, "--interval is inf; it must be from 1ms to 24h");
  expect(Psctl({"status", "--timeout=0s"}), 2, "--timeout is 0; it must be from 1ms to 24h");
  expect(At(0, {"status", "--nof"}), 0, "\"model\": ");
  expect(At(1, {"drain"}), 1, "not the coordinator");
  expect(At(0, {"drain", "--server_token=guessed"}), 1, "token");
  expect(Psctl({"status", "--server=127.0.0.1:1", "--timeout=300ms"}), 128, "127.0.0.1:1");
}

}  // namespace
}  // namespace syncgrads::testing
