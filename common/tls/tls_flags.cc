#include "common/tls/tls_flags.h"

#include <string>

#include "absl/flags/flag.h"

ABSL_FLAG(std::string, tls_ca, "",
          "PEM file with the certificates of the authorities that have signed the servers' "
          "certificates; if it is set, connections to servers are encrypted");
ABSL_FLAG(std::string, tls_certificate, "",
          "PEM file with this process's certificate, which its peers verify");
ABSL_FLAG(std::string, tls_key, "", "PEM file with the key of --tls_certificate");
ABSL_FLAG(std::string, tls_server_name, "",
          "the name that must be in the servers' certificates; default: the host in each address");

namespace syncgrads {

TlsOptions TlsFromFlags() {
  TlsOptions tls;
  tls.certificate = absl::GetFlag(FLAGS_tls_certificate);
  tls.key = absl::GetFlag(FLAGS_tls_key);
  tls.ca = absl::GetFlag(FLAGS_tls_ca);
  tls.server_name = absl::GetFlag(FLAGS_tls_server_name);
  return tls;
}

}  // namespace syncgrads
