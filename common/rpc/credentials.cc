#include "common/rpc/credentials.h"

#include <grpc/grpc.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"

namespace syncgrads {
namespace {

using grpc::experimental::FileWatcherCertificateProvider;

unsigned RefreshSeconds(const TlsOptions& tls) {
  return static_cast<unsigned>(std::max<int64_t>(1, absl::ToInt64Seconds(tls.refresh)));
}

}  // namespace

// gRPC 1.51 has no setting for the least version. It uses this variable as the list of ciphers for
// TLS 1.2, while those of TLS 1.3 have a list of their own. The only cipher that it leaves needs a
// key that both sides know beforehand. There is none, so no handshake of TLS 1.2 succeeds.
void RequireTls13() {
  static const bool required = [] {
    return setenv("GRPC_SSL_CIPHER_SUITES", "PSK-AES256-GCM-SHA384", /*overwrite=*/1) == 0;
  }();
  (void)required;
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const TlsOptions& tls) {
  if (tls.empty()) return grpc::InsecureServerCredentials();
  RequireTls13();
  grpc::experimental::TlsServerCredentialsOptions options(
      tls.client_ca.empty() ? std::make_shared<FileWatcherCertificateProvider>(
                                  tls.key, tls.certificate, RefreshSeconds(tls))
                            : std::make_shared<FileWatcherCertificateProvider>(
                                  tls.key, tls.certificate, tls.client_ca, RefreshSeconds(tls)));
  options.watch_identity_key_cert_pairs();
  if (!tls.client_ca.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

ChannelSecurity::ChannelSecurity(const TlsOptions& tls, std::string token)
    : server_name_(tls.server_name), token_(std::move(token)) {
  if (tls.ca.empty()) return;
  grpc::experimental::TlsChannelCredentialsOptions options;
  if (tls.certificate.empty()) {
    options.set_certificate_provider(
        std::make_shared<FileWatcherCertificateProvider>(tls.ca, RefreshSeconds(tls)));
  } else {
    options.set_certificate_provider(std::make_shared<FileWatcherCertificateProvider>(
        tls.key, tls.certificate, tls.ca, RefreshSeconds(tls)));
    options.watch_identity_key_cert_pairs();
  }
  options.watch_root_certs();
  tls_ = grpc::experimental::TlsCredentials(options);
}

void ChannelSecurity::Authorize(grpc::ClientContext& context) const {
  if (!token_.empty()) context.AddMetadata("authorization", "Bearer " + token_);
}

std::shared_ptr<grpc::Channel> ChannelSecurity::Connect(const std::string& address,
                                                        grpc::ChannelArguments arguments) const {
  const bool is_local =
      absl::StartsWith(address, "unix:") || absl::StartsWith(address, "unix-abstract:");
  if (tls_ == nullptr || is_local) {
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }
  if (!server_name_.empty()) arguments.SetSslTargetNameOverride(server_name_);
  return grpc::CreateCustomChannel(address, tls_, arguments);
}

}  // namespace syncgrads
