#include "worker/base/string_list.h"

#include <cstddef>

#include "absl/strings/str_cat.h"

namespace syncgrads {
namespace {
constexpr size_t kNumberBytes = 8;
}  // namespace

std::string EncodeStrings(absl::Span<const std::string> strings) {
  std::string bytes;
  for (const std::string& text : strings) {
    absl::StrAppend(&bytes, EncodeNumber(text.size()), text);
  }
  return bytes;
}

absl::StatusOr<std::vector<std::string>> DecodeStrings(absl::string_view bytes) {
  std::vector<std::string> strings;
  while (!bytes.empty()) {
    if (bytes.size() < kNumberBytes) return absl::DataLossError("truncated list of strings");
    const uint64_t length = DecodeNumber(bytes);
    bytes.remove_prefix(kNumberBytes);
    if (length > bytes.size()) {
      return absl::DataLossError(absl::StrCat("malformed list of strings: the next string has ",
                                              length, " bytes, but ", bytes.size(),
                                              " bytes are left"));
    }
    strings.emplace_back(bytes.substr(0, length));
    bytes.remove_prefix(length);
  }
  return strings;
}

std::string EncodeNumber(uint64_t number) {
  std::string bytes;
  for (size_t i = 0; i < kNumberBytes; ++i) bytes.push_back(static_cast<char>(number >> (8 * i)));
  return bytes;
}

uint64_t DecodeNumber(absl::string_view bytes) {
  uint64_t number = 0;
  for (size_t i = 0; i < kNumberBytes; ++i) {
    number |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  return number;
}

}  // namespace syncgrads
