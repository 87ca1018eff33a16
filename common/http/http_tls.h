// TLS for the HTTP server. Used by http_server.cc only.

#ifndef SYNCGRADS_COMMON_HTTP_HTTP_TLS_H_
#define SYNCGRADS_COMMON_HTTP_HTTP_TLS_H_

#include <openssl/ssl.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/file_version.h"
#include "common/http/http_connection.h"
#include "common/mutex.h"
#include "common/tls/tls_options.h"

namespace syncgrads {

// The certificate, the key and the client CA of a server. Thread-safe.
class TlsFiles {
 public:
  // `tls` must outlive this object. `warn` is called when changed files cannot be used, once for
  // each change, with a text that names the file and the reason. It is called in the handshake with
  // a lock held: it must only queue or write the text. It may be null.
  explicit TlsFiles(const TlsOptions& tls, std::function<void(const std::string&)> warn = nullptr)
      : tls_(tls), warn_(std::move(warn)) {}

  // Sets TLS 1.3 up in `context`, which must not outlive this object. At each handshake, the files
  // are looked at, and read if one of them has changed. If they cannot be used, those that were
  // used last stay in use, and the files are read again at the next handshake. Only regular files
  // are read. Peers may have a certificate if there is a client CA: one that is expired, or that
  // another CA has signed, ends the handshake.
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
  // Reads the files, and uses them from then on.
  //
  // Errors (the message names the file; what was used before stays):
  //   FailedPrecondition  a file cannot be read or is malformed, or the key is not that of the
  //                       certificate
  //   ResourceExhausted   there is no memory for TLS
  absl::Status LoadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Warns of `error`, unless it has warned of the versions `now`.
  void WarnLocked(const absl::Status& error, const Versions& now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Versions VersionsNow() const;

  const TlsOptions& tls_;
  const std::function<void(const std::string&)> warn_;
  Mutex mutex_;
  // Holds the certificate, its chain and its key. Null until the files could be used.
  TlsContext own_ ABSL_GUARDED_BY(mutex_);
  // Null without a client CA.
  std::unique_ptr<X509_STORE, StoreDeleter> store_ ABSL_GUARDED_BY(mutex_);
  // The versions that are loaded.
  Versions versions_ ABSL_GUARDED_BY(mutex_) = {};
  // The versions that `warn_` was called about last.
  std::optional<Versions> warned_ ABSL_GUARDED_BY(mutex_);
};

// Returns the DNS names, URIs and e-mail addresses in the peer's certificate, which has been
// verified, without those that have control characters; empty if the peer has none. `connection`
// may be null.
std::vector<std::string> NamesOfPeer(const SSL* connection);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_HTTP_HTTP_TLS_H_
