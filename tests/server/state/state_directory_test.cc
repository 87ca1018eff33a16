#include "server/state/state_directory.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads::server {
namespace {

class StateDirectoryTest : public ::testing::Test {
 protected:
  StateDirectoryTest() { std::filesystem::remove_all(path_); }
  ~StateDirectoryTest() override { std::filesystem::remove_all(path_); }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/state_directory_test/deep");
};

TEST_F(StateDirectoryTest, HasOneOwnerAtATime) {
  {
    const auto first = StateDirectory::Own(path_);
    ASSERT_THAT(first, IsOk());
    ExpectError(StateDirectory::Own(path_).status(), absl::StatusCode::kFailedPrecondition,
                {path_, absl::StrCat("process ", getpid()), "--state"});
  }
  EXPECT_THAT(StateDirectory::Own(path_), IsOk());
}

TEST_F(StateDirectoryTest, CountsStartsAndKeepsThePort) {
  for (uint64_t start : {1, 2, 3}) {
    const auto directory = StateDirectory::Own(path_);
    ASSERT_THAT(directory, IsOk());
    EXPECT_EQ((*directory)->start(), start);
    EXPECT_EQ((*directory)->last_port(), start == 1 ? 0 : 7000 + start - 1);
    ASSERT_THAT((*directory)->KeepPort(static_cast<uint16_t>(7000 + start)), IsOk());
  }
}

TEST_F(StateDirectoryTest, ADamagedPortDoesNotPreventAStart) {
  for (const std::string content : {"", "no record", "\x01"}) {
    std::filesystem::create_directories(path_);
    std::ofstream(path_ + "/server", std::ios::trunc) << content;
    const auto directory = StateDirectory::Own(path_);
    ASSERT_THAT(directory, IsOk());
    ExpectError((*directory)->damage(), absl::StatusCode::kDataLoss, {path_ + "/server"});
    EXPECT_EQ((*directory)->start(), 1u);
    EXPECT_EQ((*directory)->last_port(), 0);
    ASSERT_THAT((*directory)->KeepPort(7000), IsOk());
  }
  const auto directory = StateDirectory::Own(path_);
  ASSERT_THAT(directory, IsOk());
  EXPECT_THAT((*directory)->damage(), IsOk());
  EXPECT_EQ((*directory)->last_port(), 7000);
}

TEST_F(StateDirectoryTest, IsNobodyElsesToRead) {
  const auto directory = StateDirectory::Own(path_);
  EXPECT_EQ(std::filesystem::status(path_).permissions(), std::filesystem::perms::owner_all);
}

TEST_F(StateDirectoryTest, SetsAsideWhatIsNotToBeUsed) {
  const auto directory = StateDirectory::Own(path_);
  ASSERT_THAT((*directory)->KeepPort(7000), IsOk());
  std::ofstream((*directory)->plan_path()) << "plan";
  std::ofstream((*directory)->group_path(4)) << "results";
  ASSERT_THAT((*directory)->SetAside(), IsOk());
  EXPECT_FALSE(std::filesystem::exists((*directory)->plan_path()));
  EXPECT_FALSE(std::filesystem::exists((*directory)->group_path(4)));
  EXPECT_TRUE(std::filesystem::exists(path_ + "/unusable/plan"));
  EXPECT_TRUE(std::filesystem::exists(path_ + "/unusable/group-4"));
  EXPECT_TRUE(std::filesystem::exists(path_ + "/server"));
}

TEST_F(StateDirectoryTest, SaysWhenItCannotBeMade) {
  ExpectError(StateDirectory::Own("/proc/none/of/it").status(), absl::StatusCode::kUnavailable,
              {"/proc/none/of/it"});
}

}  // namespace
}  // namespace syncgrads::server
