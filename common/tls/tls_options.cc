#include "common/tls/tls_options.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/regular_file.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

absl::StatusOr<std::string> Read(absl::string_view flag, const std::string& path) {
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  absl::StatusOr<std::string> text = file.ok() ? file->Read(kMaxTlsFileBytes) : file.status();
  if (text.ok() && text->empty()) text = absl::FailedPreconditionError("it is empty");
  if (text.ok()) return text;
  const std::string what = absl::StrCat(flag, "=", path, ": ", text.status().message());
  if (absl::IsNotFound(text.status())) return absl::NotFoundError(what);
  if (absl::IsPermissionDenied(text.status())) return absl::PermissionDeniedError(what);
  return absl::InvalidArgumentError(what);
}

Bio MemoryOf(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free);
}

absl::StatusOr<Certificate> ReadCertificate(absl::string_view flag, const std::string& path) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string text, Read(flag, path));
  const Bio bio = MemoryOf(text);
  Certificate certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr), &X509_free);
  ERR_clear_error();
  if (certificate != nullptr) return certificate;
  return absl::InvalidArgumentError(
      absl::StrCat(flag, "=", path, ": it has no certificate in PEM format"));
}

absl::Status CheckPair(const TlsOptions& options) {
  SYNCGRADS_ASSIGN_OR_RETURN(const Certificate certificate,
                             ReadCertificate("--tls_certificate", options.certificate));
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string text, Read("--tls_key", options.key));
  const Bio bio = MemoryOf(text);
  // Without a callback, OpenSSL would ask for the passphrase of an encrypted key on the terminal.
  const auto no_passphrase = [](char*, int, int, void*) { return -1; };
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr),
                &EVP_PKEY_free);
  const bool belongs = key != nullptr && X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (key == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls_key=", options.key, ": it has no unencrypted key in PEM format"));
  }
  if (belongs) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the key in --tls_key=", options.key,
                   " is not that of the certificate in --tls_certificate=", options.certificate));
}

}  // namespace

absl::Status CheckTls(const TlsOptions& options, TlsSide side) {
  if (options.empty()) return absl::OkStatus();
  if (options.certificate.empty() != options.key.empty()) {
    return absl::InvalidArgumentError("--tls_certificate and --tls_key need each other");
  }
  if (side != TlsSide::kConnects && options.certificate.empty()) {
    return absl::InvalidArgumentError(
        "for TLS, --tls_certificate and --tls_key are needed too: this process accepts "
        "connections");
  }
  if (side != TlsSide::kListens && options.ca.empty()) {
    return absl::InvalidArgumentError(
        "for TLS, --tls_ca is needed too: it verifies the servers that are connected to");
  }
  if (!options.certificate.empty()) SYNCGRADS_RETURN_IF_ERROR(CheckPair(options));
  for (const auto& [flag, path] :
       {std::pair{"--tls_ca", &options.ca}, std::pair{"--tls_client_ca", &options.client_ca}}) {
    if (!path->empty()) SYNCGRADS_RETURN_IF_ERROR(ReadCertificate(flag, *path).status());
  }
  return absl::OkStatus();
}

}  // namespace syncgrads
