#include "server/access/caller.h"

#include <grpcpp/security/auth_context.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/names.h"
#include "common/rpc/peer_address.h"

namespace syncgrads::server {

Caller CallerOf(const grpc::CallbackServerContext& context, std::string token) {
  Caller caller;
  caller.peer = AddressOfPeer(context.peer());
  caller.connection = EndpointOfPeer(context.peer());
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

}  // namespace syncgrads::server
