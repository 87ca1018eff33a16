// Another user of the host listens at the name of a server's unix socket. This test needs root,
// which can become another user, and must not run in a sandbox.

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/shm/fd_socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/misled.h"
#include "tests/testing/other_user.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Listens at an abstract address until `end` is readable. Returns what was received.
std::string Listen(const std::string& name, int end) {
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address),
           static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())) != 0 ||
      listen(listener, 64) != 0) {
    return "cannot listen";
  }
  std::string received;
  std::vector<pollfd> polled = {{end, 0, 0}, {listener, POLLIN, 0}};
  while (poll(polled.data(), polled.size(), -1) > 0 && polled[0].revents == 0) {
    for (size_t i = 2; i < polled.size(); ++i) {
      char buffer[4096];
      const ssize_t count =
          polled[i].revents != 0 ? recv(polled[i].fd, buffer, sizeof(buffer), 0) : 0;
      if (count > 0) absl::StrAppend(&received, count, " bytes; ");
      if (polled[i].revents != 0 && count <= 0) polled[i].fd = -1;
    }
    if (polled[1].revents != 0) {
      polled.push_back({accept4(listener, nullptr, nullptr, SOCK_CLOEXEC), POLLIN, 0});
    }
  }
  return received;
}

TEST(OtherUserSocketTest, ReceivesNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  if (OtherUser self([](int) { return std::string(); }); !self.Result().empty()) {
    GTEST_SKIP() << "there is one user only in this sandbox";
  }
  const std::string name = absl::StrCat("syncgrads-other-", std::random_device()());
  OtherUser other([&](int end) { return Listen(name, end); });
  ASSERT_TRUE(WaitUntil([&] { return !absl::IsUnavailable(ConnectToOwnStream(name).status()); }));
  const absl::Status refused = ConnectToOwnStream(name).status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;

  const Misled server(name);
  EXPECT_THAT(PushTo(server, 1),
              ElementsAre(AllOf(HasSubstr("payloads go over TCP: "), HasSubstr(name),
                                HasSubstr("belongs to user 65534, this process is of user 0"))));
  EXPECT_THAT(other.Result(), IsEmpty());
}

}  // namespace
}  // namespace syncgrads::testing
