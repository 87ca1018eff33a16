// TLS for the HTTP server. Used by http_server.cc only.

#ifndef SYNCGRADS_COMMON_HTTP_HTTP_TLS_H_
#define SYNCGRADS_COMMON_HTTP_HTTP_TLS_H_

#include <openssl/ssl.h>

#include <string>
#include <vector>

#include "common/tls/tls_options.h"

namespace syncgrads {

// Sets TLS 1.3 up in `context`. The files are read at each handshake. Peers may have a certificate
// if there is a client CA: one that is expired, or that another CA has signed, ends the handshake.
// `tls` must outlive `context`.
void SetUpTls(SSL_CTX& context, const TlsOptions& tls);

// Returns the DNS names, URIs and e-mail addresses in the peer's certificate, which has been
// verified, without those that have control characters; empty if the peer has none. `connection`
// may be null.
std::vector<std::string> NamesOfPeer(const SSL* connection);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_HTTP_HTTP_TLS_H_
