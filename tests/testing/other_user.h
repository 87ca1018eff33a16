// A process of another user of the host.

#ifndef SYNCGRADS_TESTS_TESTING_OTHER_USER_H_
#define SYNCGRADS_TESTS_TESTING_OTHER_USER_H_

#include <fcntl.h>
#include <grp.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace syncgrads::testing {

inline constexpr uid_t kNobody = 65534;

// A process of the user nobody. It runs `attempts`, which returns what succeeded and should not
// have. Only root can become another user, and not in a sandbox that has one user; the result is
// then the reason. Make it before other threads are started.
class OtherUser {
 public:
  // `attempts` receives a descriptor that becomes readable when the process should end.
  explicit OtherUser(const std::function<std::string(int)>& attempts) {
    EXPECT_EQ(pipe2(result_.data(), O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(end_.data(), O_CLOEXEC), 0);
    child_ = fork();
    if (child_ == 0) {
      close(end_[1]);
      std::string result;
      if (setgroups(0, nullptr) != 0 || setresgid(kNobody, kNobody, kNobody) != 0 ||
          setresuid(kNobody, kNobody, kNobody) != 0) {
        result = absl::StrCat("setresuid: ", std::strerror(errno));
      } else {
        result = attempts(end_[0]);
      }
      [[maybe_unused]] const ssize_t written = write(result_[1], result.data(), result.size());
      _exit(0);
    }
    close(result_[1]);
    close(end_[0]);
  }
  ~OtherUser() {
    if (!ended_) Result();
  }

  // Ends the process, and returns the result of the attempts.
  std::string Result() {
    ended_ = true;
    close(end_[1]);
    std::string result;
    char buffer[4096];
    ssize_t count = 0;
    while ((count = read(result_[0], buffer, sizeof(buffer))) > 0) {
      result.append(buffer, static_cast<size_t>(count));
    }
    close(result_[0]);
    waitpid(child_, nullptr, 0);
    return result;
  }

 private:
  std::array<int, 2> result_ = {}, end_ = {};
  pid_t child_ = -1;
  bool ended_ = false;
};

}  // namespace syncgrads::testing

#endif  // SYNCGRADS_TESTS_TESTING_OTHER_USER_H_
