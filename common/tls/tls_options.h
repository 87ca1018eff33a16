// The files with which a process encrypts its connections and proves who it is.

#ifndef SYNCGRADS_COMMON_TLS_TLS_OPTIONS_H_
#define SYNCGRADS_COMMON_TLS_TLS_OPTIONS_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace syncgrads {

// Paths of PEM files. A file that changes is read again; connections that are open stay open.
// Replace a file by renaming another one over it, so that no half of it is read.
struct TlsOptions {
  // This process's certificate, followed by the intermediate ones, and its private key. A listening
  // process needs them; a connecting process needs them if its peer demands a certificate.
  std::string certificate;
  std::string key;
  // Connecting processes only: the certificates of the authorities that may have signed the peer's
  // certificate. Connections are encrypted only if this is set.
  std::string ca;
  // Listening processes only: the same for peers. If it is set, every peer must have a certificate.
  std::string client_ca;
  // Connecting processes only: the name that must be in the peer's certificate. Empty: the host of
  // the address that is connected to.
  std::string server_name;
  // How often the files are looked at. At least a second.
  absl::Duration refresh = absl::Seconds(10);

  bool empty() const {
    return certificate.empty() && key.empty() && ca.empty() && client_ca.empty();
  }
};

// The maximum size of a file. That of all public authorities has less than 1 MiB.
inline constexpr size_t kMaxTlsFileBytes = size_t{16} << 20;

// Which side of a connection the options are for.
enum class TlsSide { kListens, kConnects, kBoth };

// What the files contain, in PEM format; empty for files that the options do not name. The
// certificate and the key are without anything else that their files may contain.
struct TlsTexts {
  std::string certificate;
  std::string key;
  std::string ca;
  std::string client_ca;
};

// Reads the files, and checks that they contain certificates or a key, and that the certificate
// belongs to the key and is valid now. Empty options are valid.
//
// Errors (the message names the flag, such as --tls_key, and the file):
//   InvalidArgument  a file is missing among the options, is malformed, too large or no regular
//                    file, or does not belong to another one; or the certificate has expired, or
//                    is not valid yet
//   NotFound         a file does not exist
//   PermissionDenied a file may not be read
//   ResourceExhausted  there is no memory for their contents
absl::StatusOr<TlsTexts> ReadTls(const TlsOptions& options, TlsSide side);

// Checks what ReadTls checks.
absl::Status CheckTls(const TlsOptions& options, TlsSide side);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_TLS_TLS_OPTIONS_H_
