// TLS for the HTTP server. Used by http_server.cc only.

#ifndef SYNCGRADS_COMMON_HTTP_HTTP_TLS_H_
#define SYNCGRADS_COMMON_HTTP_HTTP_TLS_H_

#include <openssl/ssl.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/file_version.h"
#include "common/http/http_connection.h"
#include "common/mutex.h"
#include "common/tls/tls_options.h"

namespace syncgrads {

// The certificate, the key and the client CA of a server. Thread-safe.
class TlsFiles {
 public:
  // `tls` must outlive this object.
  explicit TlsFiles(const TlsOptions& tls) : tls_(tls) {}

  // Sets TLS 1.3 up in `context`, which must not outlive this object. At each handshake, the files
  // are looked at, and read if one of them has changed. Peers may have a certificate if there is a
  // client CA: one that is expired, or that another CA has signed, ends the handshake.
  void SetUp(SSL_CTX& context);

 private:
  // The versions of the certificate, the key and the client CA, in this order.
  using Versions = std::array<FileVersion, 3>;
  struct StoreDeleter {
    void operator()(X509_STORE* store) const { X509_STORE_free(store); }
  };

  // Called in the handshake, before the certificate is sent. Returns 1, or 0 after an error.
  static int Use(SSL* connection, void* files);
  bool UseIn(SSL* connection) ABSL_LOCKS_EXCLUDED(mutex_);
  // Reads the files. Returns false if they cannot be used.
  bool LoadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Versions VersionsNow() const;

  const TlsOptions& tls_;
  Mutex mutex_;
  // Holds the certificate, its chain and its key. Null if the files could not be used.
  TlsContext own_ ABSL_GUARDED_BY(mutex_);
  // Null without a client CA.
  std::unique_ptr<X509_STORE, StoreDeleter> store_ ABSL_GUARDED_BY(mutex_);
  // The versions that are loaded.
  Versions versions_ ABSL_GUARDED_BY(mutex_) = {};
};

// Returns the DNS names, URIs and e-mail addresses in the peer's certificate, which has been
// verified, without those that have control characters; empty if the peer has none. `connection`
// may be null.
std::vector<std::string> NamesOfPeer(const SSL* connection);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_HTTP_HTTP_TLS_H_
