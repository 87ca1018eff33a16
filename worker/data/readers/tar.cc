// A header is a block of 512 bytes with fixed fields: name (at 0, 100 bytes), size (124, 12),
// checksum (148, 8), type (156), magic (257, 6), prefix of the name (345, 155). Numbers are octal
// text, or big-endian after a first byte 0x80. The archive ends with two blocks of zeros.

#include "worker/data/readers/tar.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

constexpr size_t kNameBytes = 100;
constexpr size_t kSizeAt = 124, kSizeBytes = 12;
constexpr size_t kSumAt = 148, kSumBytes = 8;
constexpr size_t kTypeAt = 156;
constexpr size_t kMagicAt = 257;
constexpr size_t kPrefixAt = 345, kPrefixBytes = 155;
// Limits on headers that precede a member's own, and on a member.
constexpr uint64_t kMaxExtraBytes = uint64_t{1} << 20;
constexpr uint64_t kMaxMemberBytes = uint64_t{1} << 50;
// Small members that follow each other are read at once.
constexpr size_t kWindowBytes = 4096;

// The text of a field, which ends at a zero byte.
absl::string_view TextOf(absl::string_view field) { return field.substr(0, field.find('\0')); }

std::optional<uint64_t> NumberOf(absl::string_view field) {
  uint64_t number = 0;
  if (!field.empty() && static_cast<unsigned char>(field[0]) == 0x80) {
    for (const char byte : field.substr(1)) {
      if (number >> 56 != 0) return std::nullopt;
      number = number << 8 | static_cast<unsigned char>(byte);
    }
    return number;
  }
  const absl::string_view digits = TextOf(field);
  for (const char digit : digits) {
    if (digit == ' ') continue;
    if (digit < '0' || digit > '7' || number >> 60 != 0) return std::nullopt;
    number = number << 3 | static_cast<uint64_t>(digit - '0');
  }
  return number;
}

// The sum of a header's bytes, where those of the checksum count as spaces.
uint64_t SumOf(absl::string_view header) {
  uint64_t sum = 0;
  for (size_t i = 0; i < header.size(); ++i) {
    const bool is_sum = i >= kSumAt && i < kSumAt + kSumBytes;
    sum += is_sum ? ' ' : static_cast<unsigned char>(header[i]);
  }
  return sum;
}

std::string NameOf(absl::string_view header) {
  const absl::string_view name = TextOf(header.substr(0, kNameBytes));
  // GNU's format has other fields in the place of the prefix.
  if (header.substr(kMagicAt, 6) != absl::string_view("ustar\0", 6)) return std::string(name);
  const absl::string_view prefix = TextOf(header.substr(kPrefixAt, kPrefixBytes));
  return prefix.empty() ? std::string(name) : absl::StrCat(prefix, "/", name);
}

}  // namespace

absl::Status TarReader::Damaged(absl::string_view what) const {
  return absl::DataLossError(absl::StrCat(path_, ": byte ", at_, ": ", what));
}

absl::StatusOr<absl::string_view> TarReader::BytesAt(uint64_t offset, size_t size) {
  const bool has = offset >= window_begin_ && offset - window_begin_ <= window_.size() &&
                   size <= window_.size() - (offset - window_begin_);
  if (!has) {
    SYNCGRADS_ASSIGN_OR_RETURN(window_, read_(offset, std::max(size, kWindowBytes)));
    window_begin_ = offset;
  }
  if (window_.size() < size) {
    return Damaged("the archive is cut short, it has no end marker");
  }
  return absl::string_view(window_).substr(offset - window_begin_, size);
}

absl::Status TarReader::ReadPax(absl::string_view records) {
  while (!records.empty()) {
    // "LENGTH KEY=VALUE\n", where LENGTH counts the whole record.
    const size_t space = records.find(' ');
    uint64_t length = 0;
    if (space == absl::string_view::npos || !absl::SimpleAtoi(records.substr(0, space), &length) ||
        length <= space + 1 || length > records.size() || records[length - 1] != '\n') {
      return Damaged("malformed pax record");
    }
    const absl::string_view record = records.substr(space + 1, length - space - 2);
    records.remove_prefix(length);
    const size_t equals = record.find('=');
    if (equals == absl::string_view::npos) return Damaged("malformed pax record");
    const absl::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
    uint64_t number = 0;
    if (key == "path") {
      long_name_ = std::string(value);
    } else if (key == "size") {
      if (!absl::SimpleAtoi(value, &number)) return Damaged("malformed size in a pax record");
      long_size_ = number;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> TarReader::Next(TarMember& member) {
  while (true) {
    SYNCGRADS_ASSIGN_OR_RETURN(const absl::string_view header, BytesAt(at_, kTarBlock));
    if (header.find_first_not_of('\0') == absl::string_view::npos) return false;
    if (NumberOf(header.substr(kSumAt, kSumBytes)) != SumOf(header)) {
      return Damaged("the checksum of a header is wrong");
    }
    const std::optional<uint64_t> own_size = NumberOf(header.substr(kSizeAt, kSizeBytes));
    const char type = header[kTypeAt];
    const bool is_extra = type == 'L' || type == 'K' || type == 'x' || type == 'g';
    const uint64_t size = is_extra ? own_size.value_or(kMaxMemberBytes)
                                   : long_size_.value_or(own_size.value_or(~0ull));
    if (size >= (is_extra ? kMaxExtraBytes : kMaxMemberBytes)) {
      return Damaged("malformed size in a header");
    }
    const uint64_t contents = at_ + kTarBlock;
    if (!is_extra) {
      member.name = long_name_.empty() ? NameOf(header) : std::move(long_name_);
      member.offset = contents;
      member.size = size;
      long_name_.clear();
      long_size_.reset();
      at_ = contents + size + TarPadding(size);
      // '0' and, in old archives, '\0'; '7' is a contiguous file.
      if (type == '0' || type == '\0' || type == '7') return true;
      continue;
    }
    if (type == 'L' || type == 'x') {
      SYNCGRADS_ASSIGN_OR_RETURN(const absl::string_view bytes,
                                 BytesAt(contents, static_cast<size_t>(size)));
      if (type == 'L') {
        long_name_ = std::string(TextOf(bytes));
      } else {
        SYNCGRADS_RETURN_IF_ERROR(ReadPax(bytes));
      }
    }
    at_ = contents + size + TarPadding(size);
  }
}

absl::StatusOr<std::string> TarReader::Contents(const TarMember& member, size_t max_bytes) {
  if (member.size > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": ", member.name, " has ", member.size,
                                                   " bytes, but at most ", max_bytes,
                                                   " are allowed"));
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const absl::string_view bytes,
                             BytesAt(member.offset, static_cast<size_t>(member.size)));
  return std::string(bytes);
}

std::string TarHeader(absl::string_view name, uint64_t size, char type) {
  std::string header(kTarBlock, '\0');
  const auto put = [&](size_t at, absl::string_view text) {
    header.replace(at, text.size(), text.data(), text.size());
  };
  put(0, name.substr(0, kNameBytes));
  put(100, "0000644");  // mode
  put(108, "0000000");  // owner
  put(116, "0000000");  // group
  put(kSizeAt, absl::StrFormat("%011o", size));
  put(136, "00000000000");  // time
  header[kTypeAt] = type;
  put(kMagicAt, "ustar");
  put(kMagicAt + 6, "00");  // version
  put(kSumAt, absl::StrFormat("%06o", SumOf(header)));
  put(kSumAt + 7, " ");
  return header;
}

}  // namespace syncgrads
