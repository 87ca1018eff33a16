#include "common/rpc/peer_address.h"

#include <cstddef>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace syncgrads {
namespace {

// Returns the host in `peer`, with brackets around an IPv6 address; nullopt if there is none, as on
// a unix socket.
std::optional<std::string> HostIn(const std::string& peer) {
  if (!absl::StartsWith(peer, "ipv4:") && !absl::StartsWith(peer, "ipv6:")) return std::nullopt;
  const size_t begin = peer.find(':'), end = peer.rfind(':');
  if (end <= begin) return std::nullopt;
  return absl::StrReplaceAll(peer.substr(begin + 1, end - begin - 1), {{"%5B", "["}, {"%5D", "]"}});
}

}  // namespace

std::string AddressOfPeer(const std::string& peer) {
  if (absl::StartsWith(peer, "unix")) return "unix";
  return absl::StrReplaceAll(HostIn(peer).value_or(peer), {{"[", ""}, {"]", ""}});
}

std::string EndpointOfPeer(const std::string& peer) {
  std::optional<std::string> host = HostIn(peer);
  if (!host.has_value()) return AddressOfPeer(peer);
  const size_t zone = host->find('%');
  if (zone != std::string::npos) host = absl::StrCat(host->substr(0, zone), "]");
  return absl::StrCat(*host, peer.substr(peer.rfind(':')));
}

std::string HostOfPeer(const std::string& peer) { return HostIn(peer).value_or("127.0.0.1"); }

}  // namespace syncgrads
