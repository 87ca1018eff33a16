#include "common/secret.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/names.h"

namespace syncgrads {
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
