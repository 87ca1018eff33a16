// A certificate authority that lives as long as this object: for one ps-launch, and for tests.

#ifndef SYNCGRADS_COMMON_TLS_CERTIFICATE_AUTHORITY_H_
#define SYNCGRADS_COMMON_TLS_CERTIFICATE_AUTHORITY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace syncgrads {

// Writes a file that only this user may read. A file that exists is replaced by renaming another
// one over it.
//
// Errors:
//   Unavailable  the file cannot be written
absl::Status WriteSecretFile(const std::string& path, const std::string& text);

// A certificate and its key, in PEM format.
struct IssuedCertificate {
  std::string certificate;
  std::string key;

  // Writes PREFIX.pem and PREFIX.key with WriteSecretFile.
  absl::Status Write(const std::string& prefix) const;
};

// The keys are on the curve P-256. The authority's own key is never written. Thread-compatible.
class CertificateAuthority {
 public:
  // `name` is its common name.
  explicit CertificateAuthority(const std::string& name);
  ~CertificateAuthority();
  CertificateAuthority(const CertificateAuthority&) = delete;
  CertificateAuthority& operator=(const CertificateAuthority&) = delete;

  // The authority's certificate, in PEM format.
  const std::string& certificate() const { return certificate_; }

  // Issues a certificate for `names`, each with its kind: "DNS:localhost", "IP:127.0.0.1" or
  // "URI:syncgrads:worker". It is valid from an hour before `now` until `lifetime` after `now`.
  //
  // Errors:
  //   InvalidArgument  a name is malformed
  absl::StatusOr<IssuedCertificate> Issue(const std::vector<std::string>& names,
                                          absl::Duration lifetime = absl::Hours(24 * 365)) const;

 private:
  struct Own;
  const std::unique_ptr<Own> own_;
  std::string certificate_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_TLS_CERTIFICATE_AUTHORITY_H_
