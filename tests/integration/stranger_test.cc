// The .proto files are sufficient to write a worker: a Python program that uses only them trains
// with two C++ workers.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

void RunStrangerBesideTwoWorkers(int servers) {
  Cluster cluster(servers, {"--exit_when_done"});
  const std::vector<std::string> job = {absl::StrCat("--coordinator=", cluster.coordinator()),
                                        "--job=mixed"};
  std::vector<std::unique_ptr<Process>> workers;
  for (const std::vector<std::string>& program :
       {std::vector<std::string>{"tests/integration/stranger_peer", "--rank=0"},
        {"tests/integration/stranger_peer", "--rank=1"},
        {"/usr/bin/python3", "tests/integration/stranger.py", "--stubs=tests/integration/stubs"}}) {
    ProcessOptions options = {.program = program[0], .args = {program.begin() + 1, program.end()}};
    options.args.insert(options.args.end(), job.begin(), job.end());
    auto process = Process::Start(options);
    ASSERT_TRUE(process.ok()) << process.status();
    workers.push_back(*std::move(process));
  }
  for (const std::unique_ptr<Process>& worker : workers) {
    EXPECT_EQ(WaitFor(*worker), ExitCode(0)) << worker->output();
  }
  for (int index = 0; index < servers; ++index) {
    EXPECT_EQ(WaitFor(cluster.server(index)), ExitCode(0)) << cluster.server(index).output();
  }
}

TEST(StrangerTest, TakesPartInAllReducesAndAverages) { RunStrangerBesideTwoWorkers(1); }

TEST(StrangerTest, FindsTheChunksOfSeveralServers) { RunStrangerBesideTwoWorkers(2); }

}  // namespace
}  // namespace syncgrads::testing
