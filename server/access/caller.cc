#include "server/access/caller.h"

#include <grpcpp/security/auth_context.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/names.h"

namespace syncgrads::server {
namespace {

// Returns the host in gRPC's name of a peer, such as "ipv4:10.0.0.1:5000" or "ipv6:%5B::1%5D:5000",
// with brackets around an IPv6 address; nullopt if the peer has none, as on a unix socket.
std::optional<std::string> HostIn(const std::string& peer) {
  if (!absl::StartsWith(peer, "ipv4:") && !absl::StartsWith(peer, "ipv6:")) return std::nullopt;
  const size_t begin = peer.find(':'), end = peer.rfind(':');
  if (end <= begin) return std::nullopt;
  return absl::StrReplaceAll(peer.substr(begin + 1, end - begin - 1), {{"%5B", "["}, {"%5D", "]"}});
}

std::string AddressOf(const std::string& peer) {
  if (absl::StartsWith(peer, "unix")) return "unix";
  return absl::StrReplaceAll(HostIn(peer).value_or(peer), {{"[", ""}, {"]", ""}});
}

}  // namespace

Caller CallerOf(const grpc::CallbackServerContext& context, std::string token) {
  Caller caller;
  caller.peer = AddressOf(context.peer());
  caller.token = std::move(token);
  if (caller.token.empty()) {
    const auto& metadata = context.client_metadata();
    const auto found = metadata.find("authorization");
    if (found != metadata.end()) {
      absl::string_view value(found->second.data(), found->second.size());
      if (absl::ConsumePrefix(&value, "Bearer ")) caller.token = std::string(value);
    }
  }
  const std::shared_ptr<const grpc::AuthContext> authenticated = context.auth_context();
  if (authenticated == nullptr || !authenticated->IsPeerAuthenticated()) return caller;
  for (const grpc::string_ref& name :
       authenticated->FindPropertyValues("x509_subject_alternative_name")) {
    // A name with control characters is not what it looks like.
    const absl::string_view text(name.data(), name.size());
    if (IsPrintable(text)) caller.names.emplace_back(text);
  }
  return caller;
}

std::string HostOfPeer(const std::string& peer) { return HostIn(peer).value_or("127.0.0.1"); }

}  // namespace syncgrads::server
