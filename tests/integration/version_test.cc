// Tests of what every program prints for --version and --help.

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/process/process.h"

namespace syncgrads::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

struct Program {
  std::string path;
  std::string name;
  std::string flag;  // a flag of its own
};

class VersionTest : public ::testing::TestWithParam<Program> {
 protected:
  static Finished Run(const std::string& flag) {
    const auto finished =
        RunProgram({.program = GetParam().path, .args = {flag}}, absl::Minutes(2));
    EXPECT_TRUE(finished.ok()) << finished.status();
    return finished.value_or(Finished{});
  }
};

TEST_P(VersionTest, PrintsOneLine) {
  const Finished finished = Run("--version");
  EXPECT_EQ(finished.exit, ExitCode(0));
  EXPECT_THAT(finished.output,
              MatchesRegex(absl::StrCat(GetParam().name,
                                        " [0-9.]+, commit [0-9a-z-]+, CUDA (no|[0-9.]+), "
                                        "gRPC [0-9.]+\n")));
}

TEST_P(VersionTest, HelpListsItsFlagsAndNoOthers) {
  const std::string output = Run("--help").output;
  EXPECT_THAT(output, HasSubstr(absl::StrCat("--", GetParam().flag, " (")));
  EXPECT_THAT(output, Not(HasSubstr("--flagfile")));
  EXPECT_THAT(output, ContainsRegex("Exit codes.*:\n  0    "));
}

INSTANTIATE_TEST_SUITE_P(Programs, VersionTest,
                         ::testing::Values(Program{"server/ps-server", "ps-server", "lease"},
                                           Program{"worker/ps-worker", "ps-worker", "job"},
                                           Program{"worker/launch/ps-launch", "ps-launch", "grace"},
                                           Program{"worker/pack/ps-pack", "ps-pack", "folder"},
                                           Program{"client/psctl/psctl", "psctl", "server"}),
                         [](const auto& info) {
                           return info.param.name.substr(info.param.name.find('-') + 1);
                         });

}  // namespace
}  // namespace syncgrads::testing
