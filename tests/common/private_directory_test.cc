// Directories that belong to other users, or that others may replace. This test needs root, which
// can give files to other users and become one, and must not run in a sandbox.

#include "common/private_directory.h"

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr unsigned kNobody = 65534;

class PrivateDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    if (chown(root_.c_str(), kNobody, kNobody) != 0 || chown(root_.c_str(), 0, 0) != 0) {
      GTEST_SKIP() << "only root can give files to other users: " << std::strerror(errno);
    }
    ASSERT_EQ(chmod(root_.c_str(), 0755), 0);
  }
  ~PrivateDirectoryTest() override { std::filesystem::remove_all(root_); }

  // Makes a directory with an owner, a group and a mode. Returns its path.
  std::string Make(const std::string& name, unsigned user, unsigned group, mode_t mode) const {
    const std::string path = absl::StrCat(root_, "/", name);
    std::filesystem::create_directory(path);
    EXPECT_EQ(chown(path.c_str(), user, group), 0);
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
  static unsigned ModeOf(const std::string& path) {
    struct stat status = {};
    EXPECT_EQ(stat(path.c_str(), &status), 0);
    return status.st_mode & 07777;
  }
  // Calls MakePrivateDirectory in a process of another user, which first calls `prepare` as root.
  // Returns the status as text.
  static std::string MadeByNobody(
      const std::string& path, const std::function<bool()>& prepare = [] { return true; }) {
    std::array<int, 2> result = {};
    EXPECT_EQ(pipe2(result.data(), O_CLOEXEC), 0);
    const pid_t child = fork();
    if (child == 0) {
      std::string text = absl::StrCat("cannot become another user: ", std::strerror(errno));
      if (prepare() && setgroups(0, nullptr) == 0 && setresgid(kNobody, kNobody, kNobody) == 0 &&
          setresuid(kNobody, kNobody, kNobody) == 0) {
        text = MakePrivateDirectory(path).ToString();
      }
      [[maybe_unused]] const ssize_t written = write(result[1], text.data(), text.size());
      _exit(0);
    }
    close(result[1]);
    char text[4096] = "";
    EXPECT_GT(read(result[0], text, sizeof(text) - 1), 0);
    close(result[0]);
    waitpid(child, nullptr, 0);
    return text;
  }

  std::string root_ = "/tmp/syncgrads-private-directory-XXXXXX";
};

TEST_F(PrivateDirectoryTest, IsMadeForThisUserOnly) {
  const std::string path = absl::StrCat(root_, "/a/b");
  ASSERT_THAT(MakePrivateDirectory(path), IsOk());
  ASSERT_EQ(chmod(path.c_str(), 0755), 0);
  EXPECT_THAT(MakePrivateDirectory(path), IsOk());
  EXPECT_EQ(ModeOf(path), 0700u);
}

TEST_F(PrivateDirectoryTest, OneThatOthersUseIsNeitherUsedNorChanged) {
  const std::string shared = Make("shared", 0, 0, 01777);
  for (const bool has_files : {false, true}) {
    if (has_files) std::filesystem::create_directory(shared + "/of-others");
    ExpectError(MakePrivateDirectory(shared), absl::StatusCode::kPermissionDenied,
                {shared, "mode 1777", shared + "/syncgrads", "chmod 0700"});
    EXPECT_EQ(ModeOf(shared), 01777u);
  }
  const std::string host = Make("host", 0, 0, 0755);
  Make("host/etc", 0, 0, 0700);
  ExpectError(MakePrivateDirectory(host), absl::StatusCode::kPermissionDenied,
              {host, "mode 0755", "not empty"});
  EXPECT_EQ(ModeOf(host), 0755u);
  // A volume of a container, whose group may write to it.
  const std::string volume = Make("volume", 0, 0, 02770);
  Make("volume/group-1", 0, 0, 0700);
  EXPECT_THAT(MakePrivateDirectory(volume), IsOk());
}

TEST_F(PrivateDirectoryTest, OfAnotherUserIsNotUsedWhereverItIs) {
  const std::string path = Make("state", kNobody, kNobody, 0777);
  ExpectError(MakePrivateDirectory(path), absl::StatusCode::kPermissionDenied,
              {path, "belongs to user 65534", "of user 0"});
  EXPECT_EQ(ModeOf(path), 0777u);
  EXPECT_THAT(MadeByNobody(Make("roots", 0, kNobody, 0770)), HasSubstr("belongs to user 0"));
}

TEST_F(PrivateDirectoryTest, OneThatAMemberOfAGroupHasMadeIsNotUsed) {
  Make("lab", 0, kNobody, 03775);
  Make("lab/theirs", kNobody, kNobody, 0755);
  for (const char* path : {"/lab/theirs", "/lab/theirs/below"}) {
    ExpectError(MakePrivateDirectory(root_ + path), absl::StatusCode::kPermissionDenied,
                {path, "belongs to user 65534", "of user 0"});
  }
}

TEST_F(PrivateDirectoryTest, OneThatOthersMayReplaceIsNotUsed) {
  for (const mode_t mode : {0777, 0775, 02775}) {
    // The directory that contains it belongs to a third user, or to root.
    for (const unsigned owner : {1234u, 0u}) {
      const std::string lab = Make("lab", owner, 4321, mode);
      const std::string state = Make("lab/state", kNobody, kNobody, 0700);
      EXPECT_THAT(MadeByNobody(state),
                  AllOf(HasSubstr("PERMISSION_DENIED"), HasSubstr(state),
                        HasSubstr("may replace \"state\""),
                        HasSubstr(absl::StrCat("owner ", owner, " and group 4321")),
                        HasSubstr("sticky bit")));
      Make("lab", owner, 4321, mode | S_ISVTX);
      EXPECT_EQ(MadeByNobody(state), "OK");
      std::filesystem::remove_all(lab);
    }
  }
}

TEST_F(PrivateDirectoryTest, InDirectoriesOfTheUsualKindsItIsUsed) {
  using Kind = std::tuple<unsigned, unsigned, mode_t>;
  for (const auto& [user, group, mode] :
       {Kind{0, 0, 0775}, Kind{0, 4321, 01777}, Kind{0, 4321, 03775}, Kind{1234, 1234, 0755},
        Kind{kNobody, kNobody, 0775}, Kind{kNobody, 4321, 02775}}) {
    const std::string above = Make("above", user, group, mode);
    const std::string state = Make("above/state", kNobody, kNobody, 0700);
    EXPECT_EQ(MadeByNobody(state), "OK") << user << " " << group << " " << mode;
    std::filesystem::remove_all(above);
  }
}

TEST_F(PrivateDirectoryTest, InAVolumeOfAContainerItIsUsed) {
  for (const char* options : {"mode=0777", "mode=2775,gid=65534"}) {
    const std::string volume = Make("volume", 0, 0, 0755);
    EXPECT_EQ(MadeByNobody(volume + "/state",
                           [&] {
                             return unshare(CLONE_NEWNS) == 0 &&
                                    mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) ==
                                        0 &&
                                    mount("none", volume.c_str(), "tmpfs", 0, options) == 0;
                           }),
              "OK")
        << options;
  }
}

}  // namespace
}  // namespace syncgrads
