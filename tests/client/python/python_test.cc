// Runs the tests of the Python package, which are Python programs, with servers in this process.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"
#include "tests/testing/process/process.h"

namespace syncgrads::testing {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(4);

void RunRanks(const std::string& program, const std::string& server, int ranks) {
  std::vector<std::unique_ptr<Process>> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    auto process =
        Process::Start({.program = "/usr/bin/python3",
                        .args = {absl::StrCat("tests/client/python/", program)},
                        .environment = {{"PYTHONPATH", "client/python"},
                                        {"PYTHONDONTWRITEBYTECODE", "1"},
                                        {"SYNCGRADS_LIBRARY", "client/c/libsyncgrads.so"},
                                        {"SYNCGRADS_SERVER", server},
                                        {"RANK", absl::StrCat(rank)},
                                        {"WORLD_SIZE", absl::StrCat(ranks)}}});
    ASSERT_TRUE(process.ok()) << process.status();
    processes.push_back(*std::move(process));
  }
  for (const std::unique_ptr<Process>& process : processes) {
    const auto exit = process->Wait(kTimeout);
    ASSERT_TRUE(exit.ok()) << exit.status();
    EXPECT_EQ(*exit, ExitCode(0)) << process->output();
  }
}

TEST(PythonTest, UnitTestsPass) { RunRanks("unit_test.py", "", 1); }

TEST(PythonTest, TwoRanksPass) {
  Cluster cluster(2);
  RunRanks("ranks_test.py", cluster.coordinator(), 2);
}

}  // namespace
}  // namespace syncgrads::testing
