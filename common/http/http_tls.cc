#include "common/http/http_tls.h"

#include <openssl/err.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <utility>

#include "common/names.h"

namespace syncgrads {
namespace {

// Reads the files for one connection. Called in the handshake, before the certificate is sent.
int LoadFiles(SSL* connection, void* options) {
  const TlsOptions& tls = *static_cast<const TlsOptions*>(options);
  const bool has_own = SSL_use_certificate_chain_file(connection, tls.certificate.c_str()) == 1 &&
                       SSL_use_PrivateKey_file(connection, tls.key.c_str(), SSL_FILETYPE_PEM) == 1;
  bool has_ca = true;
  if (!tls.client_ca.empty()) {
    const std::unique_ptr<X509_STORE, decltype(&X509_STORE_free)> store(X509_STORE_new(),
                                                                        &X509_STORE_free);
    has_ca = store != nullptr && X509_STORE_load_file(store.get(), tls.client_ca.c_str()) == 1 &&
             SSL_set1_verify_cert_store(connection, store.get()) == 1;
  }
  ERR_clear_error();
  return has_own && has_ca ? 1 : 0;
}

}  // namespace

void SetUpTls(SSL_CTX& context, const TlsOptions& tls) {
  SSL_CTX_set_min_proto_version(&context, TLS1_3_VERSION);
  // A session that is resumed would not be verified again.
  SSL_CTX_set_session_cache_mode(&context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(&context, 0);
  SSL_CTX_set_cert_cb(&context, &LoadFiles, const_cast<TlsOptions*>(&tls));
  if (!tls.client_ca.empty()) SSL_CTX_set_verify(&context, SSL_VERIFY_PEER, nullptr);
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
