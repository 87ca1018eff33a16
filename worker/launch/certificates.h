// The certificates of ps-launch --tls.

#ifndef SYNCGRADS_WORKER_LAUNCH_CERTIFICATES_H_
#define SYNCGRADS_WORKER_LAUNCH_CERTIFICATES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace syncgrads {

// The flags with which programs use the certificates.
struct TlsFlags {
  std::vector<std::string> server;
  std::vector<std::string> worker;
  std::vector<std::string> operate;  // for psctl
};

// Makes a certificate authority, which ends with this call, and writes certificates for servers,
// workers and an operator to `folder`.
//
// Errors:
//   Unavailable  a file cannot be written
absl::StatusOr<TlsFlags> MakeCertificates(const std::string& folder);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_LAUNCH_CERTIFICATES_H_
