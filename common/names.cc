#include "common/names.h"

#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"

namespace syncgrads {
namespace {

// Number of bytes of a refused name that the error quotes.
constexpr size_t kQuotedBytes = 64;

// Whether the character changes the direction in which a text is shown, so that a reader sees its
// parts in another order: Unicode's property Bidi_Control.
bool IsDirectionControl(uint32_t code) {
  return code == 0x61c || code == 0x200e || code == 0x200f || (code >= 0x202a && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

// Returns the length in bytes of the printable character at the beginning of the text; nullopt if
// the text does not begin with one. The ranges of valid UTF-8 are those of RFC 3629.
std::optional<size_t> PrintableCharacter(absl::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) {
    if (first < 0x20 || first == 0x7f) return std::nullopt;
    return 1;
  }
  const size_t length = first < 0xc2   ? 0
                        : first < 0xe0 ? 2
                        : first < 0xf0 ? 3
                        : first < 0xf5 ? 4
                                       : 0;
  if (length == 0 || text.size() < length) return std::nullopt;
  uint32_t code = first & (0xff >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return std::nullopt;
    code = code << 6 | (byte(i) & 0x3f);
  }
  const uint32_t least = length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;
  const bool is_valid = code >= least && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
  if (!is_valid || code < 0xa0 || code == 0x2028 || code == 0x2029) return std::nullopt;
  if (IsDirectionControl(code)) return std::nullopt;
  return length;
}

}  // namespace

bool IsPrintable(absl::string_view text) {
  // Fast path: almost all names are ASCII.
  const char* const end = text.data() + text.size();
  const char* at = text.data();
  while (at != end && *at >= 0x20 && *at < 0x7f) ++at;
  text.remove_prefix(at - text.data());
  while (!text.empty()) {
    const std::optional<size_t> length = PrintableCharacter(text);
    if (!length.has_value()) return false;
    text.remove_prefix(*length);
  }
  return true;
}

std::string Printable(absl::string_view text, size_t most) {
  const bool is_cut = text.size() > most;
  std::string out;
  for (text = text.substr(0, most); !text.empty();) {
    const std::optional<size_t> length = PrintableCharacter(text);
    if (length.has_value()) {
      absl::StrAppend(&out, text.substr(0, *length));
    } else {
      absl::StrAppend(&out, "\\x", absl::Hex(static_cast<uint8_t>(text[0]), absl::kZeroPad2));
    }
    text.remove_prefix(length.value_or(1));
  }
  if (is_cut) absl::StrAppend(&out, "...");
  return out;
}

absl::Status CheckName(absl::string_view what, absl::string_view name, size_t most) {
  if (name.size() > most) {
    return absl::InvalidArgumentError(absl::StrCat(what, " has ", name.size(), " bytes, at most ",
                                                   most, " are allowed; it begins with \"",
                                                   Printable(name.substr(0, kQuotedBytes)), "\""));
  }
  if (IsPrintable(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is not printable UTF-8: \"", Printable(name, kQuotedBytes), "\""));
}

}  // namespace syncgrads
