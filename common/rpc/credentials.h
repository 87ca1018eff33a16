// gRPC's credentials for both sides of a connection: TLS 1.3, or plain text.

#ifndef SYNCGRADS_COMMON_RPC_CREDENTIALS_H_
#define SYNCGRADS_COMMON_RPC_CREDENTIALS_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <memory>
#include <string>

#include "common/tls/tls_options.h"

namespace syncgrads {

// Disables TLS 1.2 for all connections of gRPC in this process, also for those that it makes. For
// programs, before they start threads and use TLS: it sets an environment variable of gRPC, so no
// other thread may read the environment at the same time, and other users of gRPC in the process,
// and processes that it starts, get the same setting.
void RequireTls13();

// Returns the credentials of a server: plain text if `tls` is empty, which otherwise must have
// passed CheckTls. A server with a client CA ends a connection whose peer has no certificate of
// that CA.
//
// The first call with TLS calls RequireTls13.
std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const TlsOptions& tls);

// How a process connects to servers. The servers of this project accept TLS 1.3 only; a process
// that is to refuse older versions from any server calls RequireTls13 first. Copies share the
// files' watcher. Thread-safe.
class ChannelSecurity {
 public:
  // Plain text.
  ChannelSecurity() = default;
  // Plain text if `tls` has no CA. Otherwise it must have passed CheckTls. `token` is for calls
  // that have no token in their request; empty: none.
  explicit ChannelSecurity(const TlsOptions& tls, std::string token = "");

  bool is_encrypted() const { return tls_ != nullptr; }

  // Adds the token to a call, as "authorization: Bearer TOKEN".
  void Authorize(grpc::ClientContext& context) const;

  // Returns a channel to `address`. A unix socket does not leave this host: its channels are plain
  // text in any case.
  std::shared_ptr<grpc::Channel> Connect(const std::string& address,
                                         grpc::ChannelArguments arguments) const;

 private:
  std::shared_ptr<grpc::ChannelCredentials> tls_;  // null: plain text
  std::string server_name_;
  std::string token_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_RPC_CREDENTIALS_H_
