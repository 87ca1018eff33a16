#include "common/http/http_tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/names.h"
#include "common/regular_file.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

absl::Status Unusable(const std::string& path, absl::string_view reason) {
  return absl::FailedPreconditionError(absl::StrCat(path, ": ", reason));
}

absl::StatusOr<std::string> Read(const std::string& path) {
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  if (!file.ok()) return Unusable(path, file.status().message());
  absl::StatusOr<std::string> text = file->Read(kMaxTlsFileBytes);
  if (!text.ok()) return Unusable(path, text.status().message());
  return text;
}

// `text` must outlive the result.
Bio MemoryOf(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free);
}

// Without it, OpenSSL would ask for the passphrase of an encrypted file on the terminal.
int NoPassphrase(char*, int, int, void*) { return -1; }

// The first certificate of the file is the server's; the others are its chain.
absl::Status UseCertificate(const std::string& path, SSL_CTX& context) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string text, Read(path));
  const Bio bio = MemoryOf(text);
  const Certificate own(PEM_read_bio_X509_AUX(bio.get(), nullptr, &NoPassphrase, nullptr),
                        &X509_free);
  if (own == nullptr) return Unusable(path, "it has no certificate in PEM format");
  if (SSL_CTX_use_certificate(&context, own.get()) != 1) {
    return Unusable(path, "its certificate cannot be used");
  }
  while (true) {
    Certificate next(PEM_read_bio_X509(bio.get(), nullptr, &NoPassphrase, nullptr), &X509_free);
    if (next == nullptr) break;
    if (SSL_CTX_add0_chain_cert(&context, next.get()) != 1) {
      return Unusable(path, "a certificate of its chain cannot be used");
    }
    next.release();  // the context owns it
  }
  const unsigned long end = ERR_peek_last_error();
  if (ERR_GET_LIB(end) == ERR_LIB_PEM && ERR_GET_REASON(end) == PEM_R_NO_START_LINE) {
    return absl::OkStatus();
  }
  return Unusable(path, "a certificate of its chain is malformed");
}

absl::Status UseKey(const std::string& path, const std::string& certificate, SSL_CTX& context) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string text, Read(path));
  const Bio bio = MemoryOf(text);
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, &NoPassphrase, nullptr),
                &EVP_PKEY_free);
  if (key == nullptr) return Unusable(path, "it has no unencrypted key in PEM format");
  // The first call accepts a key of another type than the certificate's.
  if (SSL_CTX_use_PrivateKey(&context, key.get()) == 1 &&
      SSL_CTX_check_private_key(&context) == 1) {
    return absl::OkStatus();
  }
  return Unusable(path, absl::StrCat("it is not the key of the certificate in ", certificate));
}

// Adds the certificates and the revocation lists of a file.
absl::Status AddAuthorities(const std::string& path, X509_STORE& store) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string text, Read(path));
  const Bio bio = MemoryOf(text);
  const auto free_all = [](STACK_OF(X509_INFO) * all) {
    sk_X509_INFO_pop_free(all, X509_INFO_free);
  };
  const std::unique_ptr<STACK_OF(X509_INFO), decltype(free_all)> entries(
      PEM_X509_INFO_read_bio(bio.get(), nullptr, &NoPassphrase, nullptr), free_all);
  bool has_authority = false;
  for (int i = 0; entries != nullptr && i < sk_X509_INFO_num(entries.get()); ++i) {
    const X509_INFO& entry = *sk_X509_INFO_value(entries.get(), i);
    if ((entry.x509 != nullptr && X509_STORE_add_cert(&store, entry.x509) != 1) ||
        (entry.crl != nullptr && X509_STORE_add_crl(&store, entry.crl) != 1)) {
      return Unusable(path, "one of its certificates cannot be used");
    }
    has_authority = has_authority || entry.x509 != nullptr;
  }
  if (has_authority) return absl::OkStatus();
  return Unusable(path, "it has no certificates in PEM format");
}

}  // namespace

void TlsFiles::SetUp(SSL_CTX& context) {
  SSL_CTX_set_min_proto_version(&context, TLS1_3_VERSION);
  // A session that is resumed would not be verified again.
  SSL_CTX_set_session_cache_mode(&context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(&context, 0);
  SSL_CTX_set_cert_cb(&context, &Use, this);
  if (!tls_.client_ca.empty()) SSL_CTX_set_verify(&context, SSL_VERIFY_PEER, nullptr);
}

int TlsFiles::Use(SSL* connection, void* files) {
  const bool is_used = static_cast<TlsFiles*>(files)->UseIn(connection);
  ERR_clear_error();
  return is_used ? 1 : 0;
}

bool TlsFiles::UseIn(SSL* connection) {
  MutexLock lock(mutex_);
  // Taken before the files are read: if one changes meanwhile, it is read again at the next
  // handshake.
  const Versions now = VersionsNow();
  if (own_ == nullptr || now != versions_) {
    // After an error, the files are read again at the next handshake: it may have been the lack of
    // descriptors, for example, which does not change the files.
    const absl::Status loaded = LoadLocked();
    if (loaded.ok()) {
      versions_ = now;
    } else {
      WarnLocked(loaded, now);
    }
    if (own_ == nullptr) return false;
  }
  STACK_OF(X509)* chain = nullptr;
  return SSL_CTX_get0_chain_certs(own_.get(), &chain) == 1 &&
         SSL_use_cert_and_key(connection, SSL_CTX_get0_certificate(own_.get()),
                              SSL_CTX_get0_privatekey(own_.get()), chain, /*override=*/1) == 1 &&
         (store_ == nullptr || SSL_set1_verify_cert_store(connection, store_.get()) == 1);
}

absl::Status TlsFiles::LoadLocked() {
  TlsContext own(SSL_CTX_new(TLS_server_method()));
  if (own == nullptr) return absl::ResourceExhaustedError("there is no memory for TLS");
  SYNCGRADS_RETURN_IF_ERROR(UseCertificate(tls_.certificate, *own));
  SYNCGRADS_RETURN_IF_ERROR(UseKey(tls_.key, tls_.certificate, *own));
  std::unique_ptr<X509_STORE, StoreDeleter> store;
  if (!tls_.client_ca.empty()) {
    store.reset(X509_STORE_new());
    if (store == nullptr) return absl::ResourceExhaustedError("there is no memory for TLS");
    SYNCGRADS_RETURN_IF_ERROR(AddAuthorities(tls_.client_ca, *store));
  }
  own_ = std::move(own);
  store_ = std::move(store);
  return absl::OkStatus();
}

void TlsFiles::WarnLocked(const absl::Status& error, const Versions& now) {
  if (warn_ == nullptr || now == warned_) return;
  warned_ = now;
  warn_(absl::StrCat(error.message(), own_ == nullptr
                                          ? "; HTTPS connections fail until the file is mended"
                                          : "; the files that were read before stay in use"));
}

TlsFiles::Versions TlsFiles::VersionsNow() const {
  return {FileVersion::At(tls_.certificate), FileVersion::At(tls_.key),
          FileVersion::At(tls_.client_ca)};
}

std::vector<std::string> NamesOfPeer(const SSL* connection) {
  std::vector<std::string> names;
  if (connection == nullptr) return names;
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(
      SSL_get1_peer_certificate(connection), &X509_free);
  if (certificate == nullptr) return names;
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> alternatives(
      static_cast<GENERAL_NAMES*>(
          X509_get_ext_d2i(certificate.get(), NID_subject_alt_name, nullptr, nullptr)),
      &GENERAL_NAMES_free);
  for (int i = 0; alternatives != nullptr && i < sk_GENERAL_NAME_num(alternatives.get()); ++i) {
    int kind = 0;
    const void* value =
        GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(alternatives.get(), i), &kind);
    if (kind != GEN_DNS && kind != GEN_URI && kind != GEN_EMAIL) continue;
    const auto* text = static_cast<const ASN1_STRING*>(value);
    std::string name(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                     static_cast<size_t>(ASN1_STRING_length(text)));
    // A name with control characters is not what it looks like.
    if (IsPrintable(name)) names.push_back(std::move(name));
  }
  return names;
}

}  // namespace syncgrads
