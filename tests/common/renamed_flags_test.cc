#include "common/renamed_flags.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads {
namespace {

constexpr RenamedFlag kRenamed[] = {{"speed", "rate"}, {"colour", "color"}};

absl::Status Check(std::vector<std::string> command_line) {
  std::vector<char*> pointers;
  for (std::string& argument : command_line) pointers.push_back(argument.data());
  return CheckRenamedFlags(pointers, kRenamed);
}

TEST(RenamedFlagsTest, AnOldNameIsRefusedWithTheNewOne) {
  for (const char* flag : {"--speed=3", "--speed", "-speed=3", "-speed"}) {
    const absl::Status status = Check({"program", "--rate=1", flag, "3"});
    EXPECT_EQ(status, absl::InvalidArgumentError("--speed is now --rate")) << flag;
  }
  EXPECT_EQ(Check({"program", "--colour=red"}),
            absl::InvalidArgumentError("--colour is now --color"));
}

TEST(RenamedFlagsTest, OtherArgumentsAreAccepted) {
  EXPECT_THAT(Check({"program"}), IsOk());
  EXPECT_THAT(Check({"--speed", "--rate=3", "--speeds=3", "--speed_limit=3"}), IsOk());
  EXPECT_THAT(Check({"program", "speed", "--name=--speed", "--", "--speed=3"}), IsOk());
}

}  // namespace
}  // namespace syncgrads
