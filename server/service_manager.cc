#include "server/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "common/shm/region.h"

namespace syncgrads::server {

void NotifyServiceManager(absl::string_view state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr) return;
  const size_t length = std::strlen(path);
  sockaddr_un address = {};
  if (length == 0 || length >= sizeof(address.sun_path)) return;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path, length);
  // An abstract socket is written with @ in place of the first byte.
  if (path[0] == '@') address.sun_path[0] = '\0';
  const FileDescriptor sender(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!sender.valid()) return;
  [[maybe_unused]] const ssize_t sent =
      sendto(sender.get(), state.data(), state.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
             reinterpret_cast<const sockaddr*>(&address),
             static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length));
}

}  // namespace syncgrads::server
