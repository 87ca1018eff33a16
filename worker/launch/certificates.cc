#include "worker/launch/certificates.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/tls/certificate_authority.h"

namespace syncgrads {

absl::StatusOr<TlsFlags> MakeCertificates(const std::string& folder) {
  const CertificateAuthority authority("ps-launch");
  SYNCGRADS_RETURN_IF_ERROR(WriteSecretFile(folder + "/ca.pem", authority.certificate()));
  const auto make =
      [&](const std::string& role,
          std::vector<std::string> names) -> absl::StatusOr<std::vector<std::string>> {
    names.push_back(absl::StrCat("URI:syncgrads:", role));
    SYNCGRADS_ASSIGN_OR_RETURN(const IssuedCertificate issued, authority.Issue(names));
    const std::string prefix = absl::StrCat(folder, "/", role);
    SYNCGRADS_RETURN_IF_ERROR(issued.Write(prefix));
    return std::vector<std::string>{absl::StrCat("--tls_ca=", folder, "/ca.pem"),
                                    absl::StrCat("--tls_certificate=", prefix, ".pem"),
                                    absl::StrCat("--tls_key=", prefix, ".key")};
  };
  TlsFlags flags;
  SYNCGRADS_ASSIGN_OR_RETURN(flags.server, make("server", {"IP:127.0.0.1", "DNS:localhost"}));
  flags.server.push_back(absl::StrCat("--tls_client_ca=", folder, "/ca.pem"));
  SYNCGRADS_ASSIGN_OR_RETURN(flags.worker, make("worker", {}));
  SYNCGRADS_ASSIGN_OR_RETURN(flags.operate, make("operator", {}));
  return flags;
}

}  // namespace syncgrads
