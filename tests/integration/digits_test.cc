// Runs the digits example as its README describes.

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;

// Returns the accuracy on the validation set that worker 0 printed; -1 if there is none.
double HeldOutAccuracy(const std::string& output) {
  const size_t line = output.find("held out: ");
  const size_t begin = output.find("accuracy ", line);
  if (line == std::string::npos || begin == std::string::npos) return -1;
  double accuracy = -1;
  const std::string text = output.substr(begin + 9, 6);
  return absl::SimpleAtod(text, &accuracy) ? accuracy : -1;
}

TEST(DigitsTest, TwoWorkersLearnToReadDigitsThatTheyHaveNotSeenWithAnySeed) {
  for (const int seed : {1, 2, 3}) {
    const auto run = RunProgram(
        {.program = "worker/launch/ps-launch",
         .args = {"--job=examples/digits/digits.job", "--server_program=server/ps-server",
                  "--worker_program=worker/ps-worker", "--", absl::StrCat("--seed=", seed)}},
        kLongEnough);
    ASSERT_TRUE(run.ok()) << run.status();
    ASSERT_EQ(run->exit, ExitCode(0)) << run->output;
    EXPECT_GE(HeldOutAccuracy(run->output), 0.97) << "seed " << seed << "\n" << run->output;
    EXPECT_THAT(run->output, HasSubstr("the 2 replicas are bit-identical"));
  }
}

}  // namespace
}  // namespace syncgrads::testing
