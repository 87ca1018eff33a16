#include "common/tls/certificate_authority.h"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

constexpr absl::Duration kAuthorityLifetime = absl::Hours(24 * 365 * 10);
constexpr long kHour = 3600;

// OpenSSL's functions that make keys and certificates fail only without memory or random numbers.
void Require(bool done) {
  if (!done) std::abort();
}

Key NewKey() {
  Key key(EVP_EC_gen("P-256"), &EVP_PKEY_free);
  Require(key != nullptr);
  return key;
}

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

std::string PemOf(X509& certificate) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()), &BIO_free);
  Require(PEM_write_bio_X509(bio.get(), &certificate) == 1);
  return TextOf(bio.get());
}

std::string PemOf(EVP_PKEY& key) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()), &BIO_free);
  Require(PEM_write_bio_PrivateKey(bio.get(), &key, nullptr, nullptr, 0, nullptr, nullptr) == 1);
  return TextOf(bio.get());
}

// Returns a certificate without extensions, not signed yet.
Certificate NewCertificate(EVP_PKEY& key, const std::string& name, absl::Duration lifetime) {
  Certificate certificate(X509_new(), &X509_free);
  Require(certificate != nullptr);
  X509_set_version(certificate.get(), X509_VERSION_3);
  const std::unique_ptr<BIGNUM, decltype(&BN_free)> serial(BN_new(), &BN_free);
  Require(BN_rand(serial.get(), 127, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1);
  BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(certificate.get()));
  // A clock that is a little behind must not make the certificate invalid.
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -kHour);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()),
                  static_cast<long>(absl::ToInt64Seconds(lifetime)));
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_pubkey(certificate.get(), &key);
  return certificate;
}

bool Extend(X509& certificate, X509& issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, &issuer, &certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
  ERR_clear_error();
  if (extension == nullptr) return false;
  X509_add_ext(&certificate, extension, -1);
  X509_EXTENSION_free(extension);
  return true;
}

}  // namespace

absl::Status WriteSecretFile(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  const int file =
      open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  bool written = file >= 0;
  for (size_t done = 0; written && done < text.size();) {
    const ssize_t more = write(file, text.data() + done, text.size() - done);
    if (more < 0 && errno == EINTR) continue;
    written = more > 0;
    done += written ? static_cast<size_t>(more) : 0;
  }
  const int error = errno;
  if (file >= 0) close(file);
  if (written && rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot write ", path, ": ", std::strerror(written ? errno : error)));
}

absl::Status IssuedCertificate::Write(const std::string& prefix) const {
  SYNCGRADS_RETURN_IF_ERROR(WriteSecretFile(prefix + ".key", key));
  return WriteSecretFile(prefix + ".pem", certificate);
}

struct CertificateAuthority::Own {
  Key key = NewKey();
  Certificate certificate{nullptr, &X509_free};
};

CertificateAuthority::CertificateAuthority(const std::string& name)
    : own_(std::make_unique<Own>()) {
  own_->certificate = NewCertificate(*own_->key, name, kAuthorityLifetime);
  X509& certificate = *own_->certificate;
  X509_set_issuer_name(&certificate, X509_get_subject_name(&certificate));
  Require(Extend(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE"));
  Require(Extend(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign"));
  Require(Extend(certificate, certificate, NID_subject_key_identifier, "hash"));
  Require(X509_sign(&certificate, own_->key.get(), EVP_sha256()) > 0);
  certificate_ = PemOf(certificate);
}

CertificateAuthority::~CertificateAuthority() = default;

absl::StatusOr<IssuedCertificate> CertificateAuthority::Issue(const std::vector<std::string>& names,
                                                              absl::Duration lifetime) const {
  const Key key = NewKey();
  const Certificate certificate = NewCertificate(*key, "syncgrads", lifetime);
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(own_->certificate.get()));
  const std::string list = absl::StrJoin(names, ",");
  if (!Extend(*certificate, *own_->certificate, NID_subject_alt_name, list)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", list, "\" is no list of names such as DNS:localhost,IP:127.0.0.1"));
  }
  Require(Extend(*certificate, *own_->certificate, NID_basic_constraints, "critical,CA:FALSE"));
  Require(Extend(*certificate, *own_->certificate, NID_ext_key_usage, "serverAuth,clientAuth"));
  Require(Extend(*certificate, *own_->certificate, NID_authority_key_identifier, "keyid"));
  Require(X509_sign(certificate.get(), own_->key.get(), EVP_sha256()) > 0);
  return IssuedCertificate{PemOf(*certificate), PemOf(*key)};
}

}  // namespace syncgrads
