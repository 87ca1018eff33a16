// Copies of TLS files, in memory, for gRPC.
//
// gRPC reads changed files again, but uses them whatever they contain: while the key is not that of
// the certificate, because only one of two files has been replaced, or while a file is malformed,
// it refuses all new connections. So it is given copies, which are replaced by files that can be
// used: certificate and key at once, and after them those of the authorities.

#ifndef SYNCGRADS_COMMON_TLS_TLS_COPIES_H_
#define SYNCGRADS_COMMON_TLS_TLS_COPIES_H_

#include <array>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/file_version.h"
#include "common/mutex.h"
#include "common/tls/tls_options.h"

namespace syncgrads {

// Thread-safe.
class TlsCopies {
 public:
  // Copies the files that `tls` names, which must have passed CheckTls for `side`. A thread looks
  // at them every `tls.refresh`, and copies them again when they have changed. It calls `warn` when
  // changed files cannot be used, once for each change, with a text that names the file, and tries
  // again: it may have been the lack of descriptors, which changes no file.
  TlsCopies(TlsOptions tls, TlsSide side, std::function<void(const std::string&)> warn);
  // The copies have no content from then on. Their paths never become those of other files.
  ~TlsCopies();
  TlsCopies(const TlsCopies&) = delete;
  TlsCopies& operator=(const TlsCopies&) = delete;

  // The same options with the paths of the copies. If they could not be made at first, for example
  // because there was no descriptor left, or if there is no /proc, those of the files themselves.
  const TlsOptions& options() const { return options_; }

 private:
  // The versions of the certificate, the key, the CA and the client CA.
  using Versions = std::array<FileVersion, 4>;

  absl::Status Copy();
  void Watch();
  Versions VersionsNow() const;

  const TlsOptions files_;
  const TlsSide side_;
  const std::function<void(const std::string&)> warn_;
  // Used by the constructor, then by the thread, then by the destructor: descriptors of files in
  // memory. Certificate and key are one file, so that both are replaced at once.
  int pair_ = -1;
  int ca_ = -1;
  int client_ca_ = -1;
  Versions copied_;  // the versions that were copied last
  Versions warned_;  // those that `warn_` was called about last
  TlsOptions options_;

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_TLS_TLS_COPIES_H_
