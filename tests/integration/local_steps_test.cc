// The digits example with local steps, compared to the same example that synchronises every step.
// All connections pass through a proxy that counts their bytes.

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fault/tcp_proxy.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kWorkers = 2;

// The lines that worker 0 prints at the end, and the bytes that all workers have sent and received.
struct Summary {
  double accuracy = -1;
  uint64_t steps = 0, rounds = 0, bytes = 0;
};

// Writes the job file `example` of the digits example, with `from` replaced by `to`, to the test's
// temporary folder and returns its path.
std::string WriteDigitsJob(const std::string& example, const std::string& from,
                           const std::string& to) {
  const std::string folder = std::filesystem::absolute("examples/digits").string();
  std::string text = ReadFileOrDie(absl::StrCat(folder, "/", example));
  EXPECT_THAT(text, HasSubstr(from));
  text = absl::StrReplaceAll(
      text, {{from, to}, {"digits.csv.gz", absl::StrCat(folder, "/digits.csv.gz")}});
  return WriteTemporaryFile("digits.job", text);
}

Summary RunJob(const std::string& what, const std::string& job, int seed = 1) {
  auto proxy = fault::TcpProxy::Start([](uint16_t) { return 0; });
  if (!proxy.ok()) {
    ADD_FAILURE() << proxy.status();
    return {};
  }
  const std::string address = absl::StrCat("127.0.0.1:", (*proxy)->port());
  Cluster cluster(
      1, {"--shared_memory=false", "--unix_socket=false", absl::StrCat("--advertise=", address)});
  const std::string listens = cluster.coordinator();
  (*proxy)->SetUpstream(static_cast<uint16_t>(std::stoi(listens.substr(listens.rfind(':') + 1))));
  std::vector<std::unique_ptr<Process>> workers;
  for (int rank = 0; rank < kWorkers; ++rank) {
    workers.push_back(cluster.StartWorker(
        job, rank, kWorkers, {absl::StrCat("--server=", address), absl::StrCat("--seed=", seed)}));
  }
  for (const auto& worker : workers) {
    EXPECT_EQ(WaitFor(*worker), ExitCode(0)) << worker->output();
  }
  const std::string output = workers[0]->output();
  EXPECT_THAT(output, HasSubstr("the 2 replicas are bit-identical"));
  std::smatch made, accuracy;
  EXPECT_TRUE(std::regex_search(output, made, std::regex("made (\\d+) steps in (\\d+) rounds")));
  EXPECT_TRUE(std::regex_search(output, accuracy, std::regex("held out: .*accuracy ([0-9.]+) ")));
  if (made.empty() || accuracy.empty()) return {};
  const Summary summary = {std::stod(accuracy[1]), std::stoull(made[1]), std::stoull(made[2]),
                           (*proxy)->passed_bytes()};
  std::printf("%s: accuracy %.4f after %ju steps in %ju rounds, %.1f MB sent and received\n",
              what.c_str(), summary.accuracy, static_cast<uintmax_t>(summary.steps),
              static_cast<uintmax_t>(summary.rounds), static_cast<double>(summary.bytes) / 1e6);
  return summary;
}

// Returns the mean accuracy over seeds: with one of them, an outer optimizer that is worse may be
// better on some processor.
double AccuracyWith(const std::string& outer) {
  constexpr int kSeeds = 4;
  const std::string job =
      WriteDigitsJob("local_steps.job", "nesterov { learning_rate: 0.7 momentum: 0.5 }", outer);
  double sum = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) sum += RunJob(outer, job, seed).accuracy;
  return sum / kSeeds;
}

TEST(LocalStepsTest, DigitsAreReadAsWellWithAnEighthOfTheRoundsAndOfTheBytes) {
  const Summary sync = RunJob("sync {}", "examples/digits/digits.job");
  const Summary local = RunJob("local_steps.job", "examples/digits/local_steps.job");
  EXPECT_EQ(sync.rounds, sync.steps);
  EXPECT_EQ(local.steps, sync.steps);
  EXPECT_EQ(local.rounds, (sync.rounds + 7) / 8);
  EXPECT_GE(local.accuracy, sync.accuracy - 0.01);
  // In addition to the rounds, the initial parameters are broadcast once, and workers send control
  // messages.
  const auto round = static_cast<double>(sync.bytes) / static_cast<double>(sync.rounds);
  EXPECT_LE(static_cast<double>(local.bytes), static_cast<double>(sync.bytes) / 8 + 3 * round);
}

// Checks what docs/consistency.md states about other outer optimizers.
TEST(LocalStepsTest, ShortCyclesBearAnAverageButNotTheUsualMomentum) {
  const double average = AccuracyWith("average {}");
  EXPECT_GE(average, 0.97);
  EXPECT_LT(AccuracyWith("nesterov { learning_rate: 0.7 momentum: 0.9 }"), average - 0.01);
}

}  // namespace
}  // namespace syncgrads::testing
