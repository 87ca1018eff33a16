#include "common/secret.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/names.h"

namespace syncgrads {
namespace {

constexpr size_t kSecretBytes = 16;
constexpr absl::string_view kPrefix = "sha256:";

std::string DigestOf(absl::string_view salt, absl::string_view secret) {
  const std::string text = absl::StrCat(salt, secret);
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest), sizeof(digest)));
}

bool IsHex(absl::string_view text, size_t size) {
  return text.size() == size &&
         absl::c_all_of(text, [](char c) { return absl::ascii_isxdigit(c); });
}

}  // namespace

std::string HashSecret(absl::string_view secret) { return HashSecret(secret, DrawSecret()); }

std::string HashSecret(absl::string_view secret, absl::string_view salt) {
  return secret.empty() ? "" : absl::StrCat(kPrefix, salt, ":", DigestOf(salt, secret));
}

bool IsSecretHash(absl::string_view hash) {
  if (!absl::ConsumePrefix(&hash, kPrefix)) return false;
  const size_t salt = 2 * kSecretBytes;
  return hash.size() > salt && hash[salt] == ':' && IsHex(hash.substr(0, salt), salt) &&
         IsHex(hash.substr(salt + 1), size_t{2} * SHA256_DIGEST_LENGTH);
}

bool MatchesHash(absl::string_view hash, absl::string_view secret) {
  return ShownSecret(secret).Matches(hash);
}

bool ShownSecret::Matches(absl::string_view hash) {
  if (!IsSecretHash(hash)) return EqualSecrets(hash, secret_);
  const absl::string_view salt = hash.substr(kPrefix.size(), 2 * kSecretBytes);
  const absl::string_view digest = hash.substr(kPrefix.size() + salt.size() + 1);
  if (salt != salt_) {
    salt_ = std::string(salt);
    digest_ = DigestOf(salt, secret_);
  }
  return EqualSecrets(absl::AsciiStrToLower(digest), digest_);
}

bool EqualSecrets(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string DrawSecret() {
  unsigned char bytes[kSecretBytes];
  // It fails only if the system has no source of random numbers.
  if (RAND_bytes(bytes, sizeof(bytes)) != 1) std::abort();
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes), sizeof(bytes)));
}

absl::StatusOr<std::string> ReadSecret(const SecretSource& source) {
  if (source.file.empty()) {
    if (!source.value.empty() || source.environment == nullptr) return source.value;
    return std::string(source.environment);
  }
  if (!source.value.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", source.name, " and --", source.name, "_file are both set"));
  }
  const std::string what = absl::StrCat("--", source.name, "_file=", source.file, ": ");
  std::ifstream file(source.file, std::ios::binary);
  const int error = errno;
  if (!file) {
    const std::string why = absl::StrCat(what, std::strerror(error));
    if (error == ENOENT) return absl::NotFoundError(why);
    return absl::PermissionDeniedError(why);
  }
  // One byte more than a token may have, and a line end.
  std::string text(kMaxTokenBytes + 2, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  std::string secret = text.substr(0, text.find('\n'));
  absl::StripTrailingAsciiWhitespace(&secret);
  if (secret.empty()) return absl::InvalidArgumentError(what + "its first line is empty");
  if (secret.size() > kMaxTokenBytes) {
    return absl::InvalidArgumentError(absl::StrCat(what, "its first line is longer than ",
                                                   kMaxTokenBytes, " bytes, the maximum"));
  }
  return secret;
}

}  // namespace syncgrads
