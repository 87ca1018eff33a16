// Tests of ps-server as a daemon: how it exits, and the standard gRPC services that it offers
// beside its own.

#include <signal.h>
#include <sys/resource.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;

Finished Probe(const std::vector<std::string>& args) {
  std::vector<std::string> all = {"tests/integration/probe.py"};
  all.insert(all.end(), args.begin(), args.end());
  const auto run = RunProgram({.program = "/usr/bin/python3", .args = all}, kLongEnough);
  EXPECT_TRUE(run.ok()) << run.status();
  return run.value_or(Finished{});
}

TEST(ServerTest, PicksAPortAndSaysIt) {
  Cluster cluster(1);
  EXPECT_THAT(cluster.server(0).output(), HasSubstr("ps-server 0 listening on 127.0.0.1:"));
  EXPECT_NE(cluster.coordinator(), "127.0.0.1:0");
}

TEST(ServerTest, ASignalEndsAnIdleServerWithCode0) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    Cluster cluster(2);
    for (int index : {1, 0}) {
      cluster.server(index).Kill(signal);
      EXPECT_EQ(WaitFor(cluster.server(index)), ExitCode(0)) << cluster.server(index).output();
    }
  }
}

TEST(ServerTest, ASignalEndsAServerWithTheCodeThatItWasGiven) {
  Cluster cluster(1, {"--stopped_exit_code=143"});
  cluster.server(0).Kill(SIGTERM);
  EXPECT_EQ(WaitFor(cluster.server(0)), ExitCode(143)) << cluster.server(0).output();
}

TEST(ServerTest, SigtermEndsAServerThatServesWithCode0) {
  Cluster cluster(1);
  const auto worker =
      cluster.StartWorker(WriteLongJob("served", 300000), 0, 1, {"--log_every=100"});
  ASSERT_TRUE(worker->WaitForLine("/300000", kLongEnough).ok()) << worker->output();
  cluster.server(0).Kill(SIGTERM);
  EXPECT_EQ(WaitFor(cluster.server(0)), ExitCode(0)) << cluster.server(0).output();
}

TEST(ServerTest, ExitsWhenDone) {
  Cluster cluster(2, {"--exit_when_done"});
  TrainOn(cluster, WriteLongJob("short", 10), 2);
  for (int index : {0, 1}) {
    EXPECT_EQ(WaitFor(cluster.server(index)), ExitCode(0)) << cluster.server(index).output();
  }
}

TEST(ServerTest, StaysWithoutThatFlagAndServesTheNextJob) {
  Cluster cluster(1);
  TrainOn(cluster, WriteLongJob("first", 10), 1);
  TrainOn(cluster, WriteLongJob("second", 10), 2);
  TrainOn(cluster, WriteLongJob("first", 10), 1);
}

TEST(ServerTest, AnswersHealthChecks) {
  Cluster cluster(1);
  const Finished health = Probe({"health", cluster.coordinator()});
  EXPECT_EQ(health.exit, ExitCode(0)) << health.output;
  EXPECT_EQ(health.output, "SERVING\n");
}

TEST(ServerTest, DescribesItsServicesByReflectionIfAsked) {
  Cluster cluster(1, {"--reflection"});
  const Finished services = Probe({"services", cluster.coordinator()});
  EXPECT_EQ(services.exit, ExitCode(0)) << services.output;
  for (const char* service : {"syncgrads.v1.Control", "syncgrads.v1.Data", "syncgrads.v1.Admin",
                              "grpc.health.v1.Health"}) {
    EXPECT_THAT(services.output, HasSubstr(service));
  }
  Cluster other(1);
  EXPECT_THAT(Probe({"services", other.coordinator()}).output, HasSubstr("UNIMPLEMENTED"));
}

TEST(ServerTest, RefusesAnotherProtocolVersionAndNamesBoth) {
  Cluster cluster(1);
  const Finished refusal = Probe({"version", cluster.coordinator(), "7"});
  EXPECT_THAT(refusal.output, HasSubstr("FAILED_PRECONDITION"));
  EXPECT_THAT(refusal.output, HasSubstr("uses protocol version 7, this server uses 2"));
  TrainOn(cluster, WriteLongJob("afterwards", 10), 1);
}

TEST(ServerTest, RefusesAGroupThatIsLargerThanAFileMayBeAndItsOtherJobsContinue) {
  Cluster cluster(1);
  const auto worker = cluster.StartWorker(WriteLongJob("other", 4000), 0, 1, {"--log_every=20"});
  ASSERT_TRUE(worker->WaitForLine("/4000", kLongEnough).ok()) << worker->output();
  const rlimit limit = {8 << 20, 8 << 20};
  ASSERT_EQ(prlimit(cluster.server(0).pid(), RLIMIT_FSIZE, &limit, nullptr), 0);
  const auto large =
      RunProgram({.program = "tests/fault/visitor",
                  .args = {absl::StrCat("--server=", cluster.coordinator()), "--bytes=67108864"}},
                 kLongEnough);
  ASSERT_TRUE(large.ok()) << large.status();
  // The visitor's exit code for RESOURCE_EXHAUSTED.
  EXPECT_EQ(large->exit, ExitCode(10)) << large->output;
  EXPECT_THAT(large->output, HasSubstr("File too large"));
  EXPECT_EQ(WaitFor(*worker), ExitCode(0)) << worker->output();
  TrainOn(cluster, WriteLongJob("afterwards", 10), 1);
}

TEST(ServerTest, RefusesAPortInUse) {
  Cluster cluster(1);
  const std::string port = cluster.coordinator().substr(cluster.coordinator().rfind(':') + 1);
  const auto second =
      RunProgram({.program = "server/ps-server",
                  .args = {"--bind=127.0.0.1", "--state=none", absl::StrCat("--port=", port)}},
                 kLongEnough);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE(second->exit, ExitCode(0)) << second->output;
  EXPECT_THAT(second->output, HasSubstr(port));
}

}  // namespace
}  // namespace syncgrads::testing
