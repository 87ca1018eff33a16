#include "server/state/state_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
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

TEST_F(StateDirectoryTest, HasTheSizeOfItsFilesAndOfItsFileSystem) {
  const auto directory = StateDirectory::Own(path_);
  ASSERT_THAT(directory, IsOk());
  const uint64_t before = (*directory)->bytes();
  std::filesystem::create_directories(path_ + "/unusable");
  std::ofstream((*directory)->group_path(3)) << std::string(5000, 'x');
  std::ofstream(path_ + "/unusable/plan") << std::string(300, 'x');
  EXPECT_EQ((*directory)->bytes(), before + 5300);
  EXPECT_GE((*directory)->file_system_bytes(), (*directory)->room());
  EXPECT_GT((*directory)->file_system_bytes(), 0u);
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
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
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

// A directory in which everybody may create files, as in /dev/shm, and what another user has made
// in it.
class OtherUserTest : public StateDirectoryTest {
 protected:
  static constexpr uid_t kOther = 12345;

  OtherUserTest() {
    std::filesystem::create_directories(path_);
    EXPECT_EQ(chmod(path_.c_str(), 01777), 0);
    std::filesystem::create_directory(victim_);
    std::filesystem::permissions(victim_, std::filesystem::perms(0755));
    std::ofstream(victim_ + "/lock") << "precious";
  }
  void SetUp() override {
    const std::string probe = path_ + "/probe";
    std::ofstream(probe) << "probe";
    if (chown(probe.c_str(), kOther, kOther) != 0) {
      GTEST_SKIP() << "this process cannot act for another user";
    }
  }
  void ExpectRefused(const std::string& state) {
    ExpectError(StateDirectory::Own(state).status(), absl::StatusCode::kPermissionDenied,
                {state, "user 12345", absl::StrCat("user ", geteuid())});
    std::ifstream lock(victim_ + "/lock");
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(lock), {}), "precious");
    EXPECT_EQ(std::filesystem::status(victim_).permissions(), std::filesystem::perms(0755));
  }

  // A directory of this user, which the other user wants to have changed.
  const std::string victim_ = path_ + "/victim";
};

TEST_F(OtherUserTest, DirectoriesOfAnotherUserAreNotUsed) {
  const std::string made = path_ + "/syncgrads-0";
  std::filesystem::create_directory(made);
  ASSERT_EQ(chown(made.c_str(), kOther, kOther), 0);
  ExpectRefused(made);
  ExpectRefused(made + "/server-0");
}

TEST_F(OtherUserTest, LinksOfAnotherUserAreNotFollowed) {
  const std::string link = path_ + "/syncgrads-0";
  std::filesystem::create_directory_symlink(victim_, link);
  ASSERT_EQ(lchown(link.c_str(), kOther, kOther), 0);
  ExpectRefused(link);
  ExpectRefused(link + "/server-0");
  EXPECT_FALSE(std::filesystem::exists(victim_ + "/server-0"));
}

TEST_F(OtherUserTest, LinksOfThisUserAreFollowed) {
  std::filesystem::create_directory_symlink("victim/../here", path_ + "/link");
  std::filesystem::create_directory(path_ + "/here");
  ASSERT_THAT(StateDirectory::Own(path_ + "/link/./server-0"), IsOk());
  EXPECT_EQ(std::filesystem::status(path_ + "/here/server-0").permissions(),
            std::filesystem::perms::owner_all);
  std::filesystem::create_directory_symlink(path_ + "/here", path_ + "/absolute");
  EXPECT_THAT(StateDirectory::Own(path_ + "/absolute/server-1"), IsOk());
  std::filesystem::create_directory_symlink("round", path_ + "/round");
  ExpectError(StateDirectory::Own(path_ + "/round").status(), absl::StatusCode::kUnavailable,
              {path_ + "/round", "symbolic links"});
}

TEST_F(StateDirectoryTest, FilesThatAreLinksAreNotOpened) {
  std::filesystem::create_directories(path_);
  const std::string target = path_ + "/target";
  std::ofstream(target) << "precious";
  for (const std::string name : {"/lock", "/server.new"}) {
    std::filesystem::create_symlink(target, path_ + name);
    const auto directory = StateDirectory::Own(path_);
    EXPECT_FALSE(directory.ok() && (*directory)->KeepPort(7000).ok()) << name;
    std::filesystem::remove(path_ + name);
    EXPECT_EQ(std::filesystem::file_size(target), 8u) << name;
  }
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

TEST_F(StateDirectoryTest, SetsAsideTheGroupsOfOneJob) {
  const auto directory = StateDirectory::Own(path_);
  const std::string moved[] = {"/group-4", "/group-4.further/0.2", "/group-40"};
  const std::string kept[] = {"/plan", "/group-5", "/group-5.further/0.4", "/group-44"};
  for (const std::string group : {"/group-4", "/group-5"}) {
    std::filesystem::create_directory(path_ + group + ".further");
  }
  for (const std::string& file : moved) std::ofstream(path_ + file) << "moved";
  for (const std::string& file : kept) std::ofstream(path_ + file) << "kept";
  // Group 7 is missing. The second call finds nothing.
  for (int call = 1; call <= 2; ++call) {
    ASSERT_THAT((*directory)->SetAside({4, 7, 40}), IsOk());
    for (const std::string& file : moved) {
      EXPECT_FALSE(std::filesystem::exists(path_ + file)) << file;
      EXPECT_TRUE(std::filesystem::exists(path_ + "/unusable" + file)) << file;
    }
    for (const std::string& file : kept) {
      EXPECT_TRUE(std::filesystem::exists(path_ + file)) << file;
    }
  }
}

TEST_F(StateDirectoryTest, RemovesAllOfItsGroups) {
  const auto directory = StateDirectory::Own(path_);
  std::ofstream((*directory)->plan_path()) << "plan";
  std::ofstream((*directory)->group_path(4)) << "results";
  std::filesystem::create_directory((*directory)->group_path(4) + ".further");
  std::ofstream((*directory)->group_path(4) + ".further/0.1") << "results";
  (*directory)->RemoveGroups();
  EXPECT_FALSE(std::filesystem::exists((*directory)->group_path(4)));
  EXPECT_FALSE(std::filesystem::exists((*directory)->group_path(4) + ".further"));
  EXPECT_TRUE(std::filesystem::exists((*directory)->plan_path()));
}

TEST_F(StateDirectoryTest, SaysWhenItCannotBeMade) {
  ExpectError(StateDirectory::Own("/proc/none/of/it").status(), absl::StatusCode::kUnavailable,
              {"/proc/none/of/it"});
}

}  // namespace
}  // namespace syncgrads::server
