#include "common/net/congestion_control.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace syncgrads {
namespace {

bool Set(int socket, const std::string& name) {
  return setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                    static_cast<socklen_t>(name.size())) == 0;
}

std::string Available() {
  std::ifstream file("/proc/sys/net/ipv4/tcp_available_congestion_control");
  std::string names;
  std::getline(file, names);
  return names;
}

}  // namespace

absl::Status CheckCongestionControl(const std::string& name) {
  if (name.empty()) return absl::OkStatus();
  const int trial = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool set = trial >= 0 && Set(trial, name);
  const int error = errno;
  if (trial >= 0) close(trial);
  if (set) return absl::OkStatus();
  if (error == EPERM) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the kernel does not let user ", geteuid(), " choose the congestion control \"", name,
        "\": see /proc/sys/net/ipv4/tcp_allowed_congestion_control"));
  }
  return absl::InvalidArgumentError(absl::StrCat("congestion control \"", name,
                                                 "\": ", std::strerror(error), "; the kernel has ",
                                                 Available()));
}

void SetCongestionControl(int socket, const std::string& name) {
  if (!name.empty()) Set(socket, name);
}

}  // namespace syncgrads
