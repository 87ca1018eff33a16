#include "common/tls/tls_options.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>
#include <utility>
#include <vector>

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

// Returns the certificates of `text`, the text of a file; at least one.
absl::StatusOr<std::vector<Certificate>> CertificatesIn(absl::string_view flag,
                                                        const std::string& path,
                                                        const std::string& text) {
  const Bio bio = MemoryOf(text);
  std::vector<Certificate> certificates;
  while (X509* next = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(next, &X509_free);
  }
  const unsigned long end = ERR_peek_last_error();
  ERR_clear_error();
  if (certificates.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, "=", path, ": it has no certificate in PEM format"));
  }
  if (ERR_GET_LIB(end) == ERR_LIB_PEM && ERR_GET_REASON(end) == PEM_R_NO_START_LINE) {
    return certificates;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(flag, "=", path, ": what follows its first certificate is malformed"));
}

std::string TextIn(const Bio& bio) {
  char* data = nullptr;
  const long length = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<size_t>(length)};
}

// Returns the text of a time in a certificate, such as "Nov 30 09:00:00 2026 GMT".
std::string TextOf(const ASN1_TIME* time) {
  const Bio bio(BIO_new(BIO_s_mem()), &BIO_free);
  if (bio == nullptr || ASN1_TIME_print(bio.get(), time) != 1) return "an unknown time";
  return TextIn(bio);
}

// Peers refuse a certificate that has expired while the connection is made, without a reason that
// could be read here.
absl::Status CheckTime(const std::string& path, const X509& certificate) {
  const ASN1_TIME* const begin = X509_get0_notBefore(&certificate);
  const ASN1_TIME* const end = X509_get0_notAfter(&certificate);
  const auto invalid = [&path](absl::string_view verb, const ASN1_TIME* time) {
    return absl::InvalidArgumentError(absl::StrCat("--tls_certificate=", path,
                                                   ": by this host's clock, its first certificate ",
                                                   verb, " valid on ", TextOf(time)));
  };
  if (X509_cmp_current_time(end) < 0) return invalid("ceased to be", end);
  if (X509_cmp_current_time(begin) > 0) return invalid("becomes", begin);
  return absl::OkStatus();
}

// Leaves nothing but the certificates and the key in `texts`.
absl::Status CheckPair(const TlsOptions& options, TlsTexts& texts) {
  SYNCGRADS_ASSIGN_OR_RETURN(
      const std::vector<Certificate> certificates,
      CertificatesIn("--tls_certificate", options.certificate, texts.certificate));
  const Bio bio = MemoryOf(texts.key);
  // Without a callback, OpenSSL would ask for the passphrase of an encrypted key on the terminal.
  const auto no_passphrase = [](char*, int, int, void*) { return -1; };
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr),
                &EVP_PKEY_free);
  const bool belongs =
      key != nullptr && X509_check_private_key(certificates.front().get(), key.get()) == 1;
  ERR_clear_error();
  if (key == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls_key=", options.key, ": it has no unencrypted key in PEM format"));
  }
  if (!belongs) {
    return absl::InvalidArgumentError(
        absl::StrCat("the key in --tls_key=", options.key,
                     " is not that of the certificate in --tls_certificate=", options.certificate));
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckTime(options.certificate, *certificates.front()));
  const Bio chain(BIO_new(BIO_s_mem()), &BIO_free), own(BIO_new(BIO_s_mem()), &BIO_free);
  bool is_written =
      PEM_write_bio_PrivateKey(own.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1;
  for (const Certificate& one : certificates) {
    is_written = is_written && PEM_write_bio_X509(chain.get(), one.get()) == 1;
  }
  if (!is_written) return absl::ResourceExhaustedError("there is no memory for the TLS files");
  texts.certificate = TextIn(chain);
  texts.key = TextIn(own);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TlsTexts> ReadTls(const TlsOptions& options, TlsSide side) {
  TlsTexts texts;
  if (options.empty()) return texts;
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
  struct File {
    absl::string_view flag;
    const std::string& path;
    std::string& text;
  };
  const File certificate = {"--tls_certificate", options.certificate, texts.certificate};
  const File key = {"--tls_key", options.key, texts.key};
  const File ca = {"--tls_ca", options.ca, texts.ca};
  const File client_ca = {"--tls_client_ca", options.client_ca, texts.client_ca};
  for (const File& file : {certificate, key, ca, client_ca}) {
    if (file.path.empty()) continue;
    SYNCGRADS_ASSIGN_OR_RETURN(file.text, Read(file.flag, file.path));
  }
  if (!options.certificate.empty()) SYNCGRADS_RETURN_IF_ERROR(CheckPair(options, texts));
  for (const File& file : {ca, client_ca}) {
    if (file.path.empty()) continue;
    SYNCGRADS_RETURN_IF_ERROR(CertificatesIn(file.flag, file.path, file.text).status());
  }
  return texts;
}

absl::Status CheckTls(const TlsOptions& options, TlsSide side) {
  return ReadTls(options, side).status();
}

}  // namespace syncgrads
