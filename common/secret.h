// Secrets: where programs read them, and how they are kept and compared.

#ifndef SYNCGRADS_COMMON_SECRET_H_
#define SYNCGRADS_COMMON_SECRET_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace syncgrads {

// Returns "sha256:SALT:DIGEST" with a random salt: DIGEST is SHA-256 of SALT and the secret, both
// in hexadecimal digits. Those who keep or receive this text can recognise the secret, but cannot
// use the text in its place. The hash of an empty secret is empty.
std::string HashSecret(absl::string_view secret);
// The same with a salt that DrawSecret has returned: many secrets that are kept together may share
// one, so that a secret is recognised with one digest (ShownSecret).
std::string HashSecret(absl::string_view secret, absl::string_view salt);

// Returns whether `hash` has the form that HashSecret returns.
bool IsSecretHash(absl::string_view hash);

// Returns whether `hash` is that of `secret`. Takes the same time wherever the secret differs. A
// text of another form is compared with the secret itself.
bool MatchesHash(absl::string_view hash, absl::string_view secret);

// A secret that is compared with many hashes.
class ShownSecret {
 public:
  // `secret` must outlive this object.
  explicit ShownSecret(absl::string_view secret) : secret_(secret) {}

  // MatchesHash. Hashes with the salt of the one before cost no digest.
  bool Matches(absl::string_view hash);

 private:
  const absl::string_view secret_;
  std::string salt_;
  // Of `salt_` and the secret.
  std::string digest_;
};

// Returns whether two secrets are equal. The time depends on their lengths only.
bool EqualSecrets(absl::string_view a, absl::string_view b);

// Draws 128 random bits, as 32 hexadecimal digits.
std::string DrawSecret();

// Where a program finds a secret. Other users can read the command line of a process, so that
// `value` is for tests and for machines without other users.
struct SecretSource {
  // The name of the flags, without the dashes: "token" stands for --token and --token_file.
  absl::string_view name;
  std::string value;
  std::string file;
  // The value of the environment variable; null if it is not set.
  const char* environment = nullptr;
};

// Returns the first line of `file`, without white space at its end; or else `value`; or else
// `environment`; or else "".
//
// Errors:
//   InvalidArgument   both `value` and `file` are set; or the file's first line is empty, or longer
//                     than kMaxTokenBytes
//   NotFound          the file does not exist
//   PermissionDenied  the file may not be read
absl::StatusOr<std::string> ReadSecret(const SecretSource& source);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_SECRET_H_
