// Runs a program in C11 (worker.c), which uses client/c, as the ranks of a job with real servers.

#include <fstream>
#include <iterator>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"
#include "tests/testing/process/process.h"

namespace syncgrads::testing {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(4);
constexpr uint32_t kRanks = 2;

std::unique_ptr<Process> Start(const Cluster& cluster, const std::string& scenario, uint32_t rank,
                               uint32_t ranks = kRanks) {
  auto process = Process::Start(
      {.program = "tests/client/c/worker",
       .args = {scenario, cluster.coordinator(), "job", absl::StrCat(rank), absl::StrCat(ranks)}});
  EXPECT_TRUE(process.ok()) << process.status();
  return process.ok() ? *std::move(process) : nullptr;
}

void ExpectSuccess(Process& process) {
  const auto exit = process.Wait(kTimeout);
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(*exit, ExitCode(0)) << process.output();
}

void RunScenario(const std::string& scenario, int servers, uint32_t ranks = kRanks) {
  Cluster cluster(servers);
  std::vector<std::unique_ptr<Process>> workers;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    workers.push_back(Start(cluster, scenario, rank, ranks));
  }
  for (const std::unique_ptr<Process>& worker : workers) ExpectSuccess(*worker);
}

TEST(CTest, PushesSkipsAndWaits) { RunScenario("steps", 2); }
TEST(CTest, ErrorsHaveCodesAndMessages) { RunScenario("errors", 1, 1); }
TEST(CTest, TakesPartInCollectives) { RunScenario("collectives", 1); }
TEST(CTest, ReadsAndRestoresAnOptimizerOnTheServers) { RunScenario("optimizer", 2); }
TEST(CTest, LeavesItsHostProcessAsItWas) { RunScenario("host", 1); }

TEST(CTest, NewcomersGetTheStateOfAnElasticJob) {
  server::ServerOptions options;
  options.heartbeat_interval = absl::Milliseconds(50);
  Cluster cluster(1, options);
  std::vector<std::unique_ptr<Process>> workers;
  workers.push_back(Start(cluster, "elastic", 0));
  ASSERT_TRUE(workers[0]->WaitForLine("rank 0 has begun", kTimeout).ok());
  workers.push_back(Start(cluster, "elastic", 1));
  std::vector<std::string> results;
  for (const std::unique_ptr<Process>& worker : workers) {
    ExpectSuccess(*worker);
    const auto line = worker->WaitForLine(" steps", kTimeout);
    ASSERT_TRUE(line.ok()) << line.status();
    results.push_back(*line);
  }
  EXPECT_EQ(results[0], results[1]);
}

// The library lives beside other copies of its own libraries only as long as it exports nothing of
// them.
TEST(CTest, TheLibraryExportsTheDeclaredFunctionsOnly) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "sanitizers export symbols of their own";
#endif
  std::ifstream file("client/c/syncgrads.h");
  const std::string header((std::istreambuf_iterator<char>(file)), {});
  std::set<std::string> declared = {"SYNCGRADS_1"};
  const std::regex declaration("SG_API [^;(]*\\b(sg_[a-z_]+)\\(");
  for (std::sregex_iterator match(header.begin(), header.end(), declaration), end; match != end;
       ++match) {
    declared.insert(absl::StrCat((*match)[1].str(), "@@SYNCGRADS_1"));
  }
  EXPECT_GT(declared.size(), 40u);

  const auto listed = RunProgram(
      {.program = "nm",
       .args = {"-D", "--with-symbol-versions", "--defined-only", "client/c/libsyncgrads.so"}},
      kTimeout);
  ASSERT_TRUE(listed.ok()) << listed.status();
  std::set<std::string> exported;
  for (absl::string_view line : absl::StrSplit(listed->output, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    exported.insert(words.back());
  }
  EXPECT_EQ(exported, declared);
}

}  // namespace
}  // namespace syncgrads::testing
