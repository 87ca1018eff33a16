#include "common/net/peer_user.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/time.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/file_descriptor.h"

namespace syncgrads {
namespace {

// An answer that does not come would block the caller's thread.
constexpr timeval kPatience = {1, 0};

struct Request {
  nlmsghdr header;
  inet_diag_req_v2 socket;
};

// Writes an address and a port as sock_diag reads them, in network byte order.
void Write(const sockaddr_storage& address, __be32* bytes, __be16& port) {
  if (address.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address);
    std::memcpy(bytes, &in.sin_addr, sizeof(in.sin_addr));
    port = in.sin_port;
  } else {
    const auto& in6 = reinterpret_cast<const sockaddr_in6&>(address);
    std::memcpy(bytes, &in6.sin6_addr, sizeof(in6.sin6_addr));
    port = in6.sin6_port;
  }
}

absl::Status Failed(const char* what) {
  return absl::UnavailableError(absl::StrCat(
      "cannot ask the kernel for the user of a connection: ", what, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<unsigned> UserOfTcpPeer(const sockaddr_storage& peer, const sockaddr_storage& own) {
  Request request = {};
  request.header.nlmsg_len = sizeof(request);
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.socket.sdiag_family = static_cast<uint8_t>(peer.ss_family);
  request.socket.sdiag_protocol = IPPROTO_TCP;
  request.socket.idiag_states = ~uint32_t{0};
  // The kernel is asked for the peer's socket, so the peer is the source.
  Write(peer, request.socket.id.idiag_src, request.socket.id.idiag_sport);
  Write(own, request.socket.id.idiag_dst, request.socket.id.idiag_dport);
  request.socket.id.idiag_cookie[0] = request.socket.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;

  const FileDescriptor netlink(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!netlink.valid()) return Failed("socket");
  setsockopt(netlink.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  if (send(netlink.get(), &request, sizeof(request), 0) != sizeof(request)) return Failed("send");
  alignas(nlmsghdr) char answer[4096];
  const ssize_t length = recv(netlink.get(), answer, sizeof(answer), 0);
  if (length < static_cast<ssize_t>(sizeof(nlmsghdr))) return Failed("recv");
  nlmsghdr header;
  std::memcpy(&header, answer, sizeof(header));
  if (header.nlmsg_type == SOCK_DIAG_BY_FAMILY &&
      length >= static_cast<ssize_t>(NLMSG_LENGTH(sizeof(inet_diag_msg)))) {
    inet_diag_msg found;
    std::memcpy(&found, answer + NLMSG_HDRLEN, sizeof(found));
    // The peer has closed its socket, which belongs to no process any more: the kernel then names
    // root.
    if (found.idiag_inode == 0) return absl::NotFoundError("the peer has closed the connection");
    return found.idiag_uid;
  }
  if (header.nlmsg_type == NLMSG_ERROR &&
      length >= static_cast<ssize_t>(NLMSG_LENGTH(sizeof(nlmsgerr)))) {
    nlmsgerr error;
    std::memcpy(&error, answer + NLMSG_HDRLEN, sizeof(error));
    errno = -error.error;
    if (errno == ENOENT) return absl::NotFoundError("no socket has these addresses");
    return Failed("sock_diag");
  }
  return absl::UnavailableError("the kernel's answer about the user of a connection is malformed");
}

}  // namespace syncgrads
