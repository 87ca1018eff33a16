#include "common/http/http_tls.h"

#include <openssl/err.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <utility>

#include "common/names.h"

namespace syncgrads {
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
    if (!LoadLocked()) {
      own_ = nullptr;
      return false;
    }
    versions_ = now;
  }
  STACK_OF(X509)* chain = nullptr;
  return SSL_CTX_get0_chain_certs(own_.get(), &chain) == 1 &&
         SSL_use_cert_and_key(connection, SSL_CTX_get0_certificate(own_.get()),
                              SSL_CTX_get0_privatekey(own_.get()), chain, /*override=*/1) == 1 &&
         (store_ == nullptr || SSL_set1_verify_cert_store(connection, store_.get()) == 1);
}

bool TlsFiles::LoadLocked() {
  own_ = TlsContext(SSL_CTX_new(TLS_server_method()));
  store_ = nullptr;
  // The key is checked against the certificate.
  if (own_ == nullptr ||
      SSL_CTX_use_certificate_chain_file(own_.get(), tls_.certificate.c_str()) != 1 ||
      SSL_CTX_use_PrivateKey_file(own_.get(), tls_.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return false;
  }
  if (tls_.client_ca.empty()) return true;
  store_.reset(X509_STORE_new());
  return store_ != nullptr && X509_STORE_load_file(store_.get(), tls_.client_ca.c_str()) == 1;
}

TlsFiles::Versions TlsFiles::VersionsNow() const {
  const std::string* const paths[] = {&tls_.certificate, &tls_.key, &tls_.client_ca};
  Versions versions;
  for (size_t i = 0; i < versions.size(); ++i) {
    struct stat status = {};
    // A file that is missing has the version of no file.
    if (stat(paths[i]->c_str(), &status) == 0) versions[i] = FileVersion(status);
  }
  return versions;
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
