#include "server/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/random_number.h"
#include "common/shm/region.h"
#include "gtest/gtest.h"

namespace syncgrads::server {
namespace {

// The socket of a service manager, which the environment of this process names.
class Manager {
 public:
  // `path`: a file, or an abstract socket that begins with @.
  explicit Manager(const std::string& path) : socket_(socket(AF_UNIX, SOCK_DGRAM, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    if (path[0] == '@') address.sun_path[0] = '\0';
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address),
                   static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size())),
              0);
    setenv("NOTIFY_SOCKET", path.c_str(), 1);
  }
  ~Manager() { unsetenv("NOTIFY_SOCKET"); }

  // Returns the next message; empty if there is none.
  std::string Next() {
    char message[100];
    const ssize_t bytes = recv(socket_.get(), message, sizeof(message), MSG_DONTWAIT);
    return bytes < 0 ? "" : std::string(message, static_cast<size_t>(bytes));
  }

 private:
  FileDescriptor socket_;
};

TEST(ServiceManagerTest, IsToldOverAFile) {
  std::string folder = "/tmp/notify-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  Manager manager(absl::StrCat(folder, "/socket"));
  NotifyServiceManager("READY=1");
  NotifyServiceManager("WATCHDOG=1");
  EXPECT_EQ(manager.Next(), "READY=1");
  EXPECT_EQ(manager.Next(), "WATCHDOG=1");
  EXPECT_EQ(manager.Next(), "");
}

TEST(ServiceManagerTest, IsToldOverAnAbstractSocket) {
  Manager manager(absl::StrCat("@syncgrads-notify-", DrawRandomNumber()));
  NotifyServiceManager("READY=1");
  EXPECT_EQ(manager.Next(), "READY=1");
}

TEST(ServiceManagerTest, ErrorsAreIgnored) {
  NotifyServiceManager("READY=1");
  for (const std::string& path :
       {std::string(), std::string("/none/there"), std::string(200, 'x')}) {
    setenv("NOTIFY_SOCKET", path.c_str(), 1);
    NotifyServiceManager("READY=1");
  }
  unsetenv("NOTIFY_SOCKET");
}

}  // namespace
}  // namespace syncgrads::server
