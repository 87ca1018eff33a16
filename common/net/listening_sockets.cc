#include "common/net/listening_sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/net/congestion_control.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

// The backlog of listen(). The kernel reduces it to net.core.somaxconn.
constexpr int kBacklog = 4096;

// Attempts to find a free port, if the port is 0 and there are several addresses: the port that
// the kernel picks for the first address may be in use on another.
constexpr int kPortTries = 10;

struct Address {
  sockaddr_storage storage = {};
  socklen_t length = 0;

  int family() const { return storage.ss_family; }
  void SetPort(uint16_t port) {
    // IPv4 and IPv6 addresses have the port at the same offset.
    reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
  }
};
static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));

Address AnyAddress(int family) {
  Address any;
  any.storage.ss_family = static_cast<sa_family_t>(family);
  any.length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  return any;
}

bool IsAny(const Address& address) {
  if (address.family() == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr.s_addr == INADDR_ANY;
  }
  return IN6_IS_ADDR_UNSPECIFIED(
      &reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr);
}

absl::Status Unavailable(const ListenOptions& options, absl::string_view why) {
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", options.bind, ":", options.port, ": ", why));
}

absl::StatusOr<std::vector<Address>> Resolve(const ListenOptions& options) {
  std::string host = options.bind;
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* first = nullptr;
  const int error = getaddrinfo(host.c_str(), "0", &hints, &first);
  if (error != 0) return Unavailable(options, gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(first, &freeaddrinfo);
  std::vector<Address> addresses;
  for (const addrinfo* one = first; one != nullptr; one = one->ai_next) {
    Address address;
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.length = one->ai_addrlen;
    // If the machine has IPv6, one socket accepts IPv4 and IPv6 connections; otherwise the second
    // address is used.
    if (IsAny(address)) return std::vector<Address>{AnyAddress(AF_INET6), AnyAddress(AF_INET)};
    addresses.push_back(address);
  }
  return addresses;
}

void Set(const FileDescriptor& socket, int level, int option, int value) {
  setsockopt(socket.get(), level, option, &value, sizeof(value));
}

// Returns a socket that listens on `address`; on failure an invalid one, with errno set.
FileDescriptor ListenOn(const Address& address, const ListenOptions& options) {
  FileDescriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return socket;
  if (address.family() == AF_INET6) {
    Set(socket, IPPROTO_IPV6, IPV6_V6ONLY, IsAny(address) ? 0 : 1);
  }
  Set(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  // Accepted connections inherit these.
  Set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT,
      static_cast<int>(absl::ToInt64Milliseconds(options.user_timeout)));
  if (!options.congestion_control.empty()) {
    SetCongestionControl(socket.get(), options.congestion_control);
  }
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) !=
          0 ||
      listen(socket.get(), kBacklog) != 0) {
    return FileDescriptor();
  }
  return socket;
}

uint16_t PortOf(const FileDescriptor& socket) {
  Address address;
  address.length = sizeof(address.storage);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
}

}  // namespace

absl::StatusOr<ListeningSockets> ListenTcp(const ListenOptions& options) {
  SYNCGRADS_ASSIGN_OR_RETURN(std::vector<Address> addresses, Resolve(options));
  const bool any = IsAny(addresses.front());
  int error = EADDRNOTAVAIL;
  for (int tries = options.port == 0 ? kPortTries : 1; tries > 0; --tries) {
    ListeningSockets listening;
    listening.port = options.port;
    bool taken = false;
    for (Address& address : addresses) {
      address.SetPort(listening.port);
      FileDescriptor socket = ListenOn(address, options);
      if (!socket.valid()) {
        error = errno;
        // Other errors are ignored if another address works: a machine without IPv6 may still
        // have IPv6 addresses in its hosts file.
        taken |= error == EADDRINUSE && !any;
        continue;
      }
      listening.port = PortOf(socket);
      listening.sockets.push_back(std::move(socket));
      if (any) break;
    }
    if (!taken && !listening.sockets.empty()) return listening;
    error = taken ? EADDRINUSE : error;
  }
  return Unavailable(options, std::strerror(error));
}

absl::StatusOr<FileDescriptor> ListenUnix(const std::string& name) {
  const auto refused = [&name](absl::string_view why) {
    return absl::UnavailableError(absl::StrCat("cannot listen on @", name, ": ", why));
  };
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof(address.sun_path)) return refused("the name is too long");
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (!socket.valid() ||
      bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(socket.get(), kBacklog) != 0) {
    return refused(std::strerror(errno));
  }
  return socket;
}

}  // namespace syncgrads
