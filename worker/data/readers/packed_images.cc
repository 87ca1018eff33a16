#include "worker/data/readers/packed_images.h"

#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "worker/data/readers/delimited.h"
#include "worker/data/readers/tar.h"

namespace syncgrads {
namespace {

constexpr uint64_t kMaxNames = 1'000'000;
// The largest number has this many digits.
constexpr size_t kMaxDigits = 20;
constexpr size_t kMaxClassBytes = 64;

// A name in an archive: "a/b.tar.cls" has the key "a/b" and the extension "tar.cls".
struct Parts {
  std::string key;
  std::string extension;
};

Parts Split(const std::string& name) {
  const size_t slash = name.rfind('/');
  const size_t dot = name.find('.', slash == std::string::npos ? 0 : slash);
  if (dot == std::string::npos) return {name, ""};
  return {name.substr(0, dot), absl::AsciiStrToLower(name.substr(dot + 1))};
}

absl::StatusOr<std::vector<PackedImage>> Scan(const Storage& storage, const std::string& path) {
  const std::string archive = storage.NameOf(path);
  const auto read = [&](uint64_t offset, size_t size) {
    return storage.ReadRange(path, offset, size);
  };
  TarReader reader(archive, read);
  std::vector<PackedImage> images;
  // The sample whose files are being read: its image, if it has been seen, and its class.
  std::string key;
  bool has_image = false;
  std::optional<uint32_t> label;
  TarMember member;
  while (true) {
    SYNCGRADS_ASSIGN_OR_RETURN(const bool more, reader.Next(member));
    if (!more) return images;
    const Parts parts = Split(member.name);
    if (parts.key != key) {
      key = parts.key;
      has_image = false;
      label.reset();
    }
    if (parts.extension == "jpg" || parts.extension == "jpeg") {
      has_image = true;
      images.push_back({member.name, label, member.offset, member.size});
    } else if (parts.extension == "cls") {
      SYNCGRADS_ASSIGN_OR_RETURN(const std::string text, reader.Contents(member, kMaxClassBytes));
      uint32_t number;
      if (!absl::SimpleAtoi(text, &number)) {
        return absl::InvalidArgumentError(absl::StrCat(
            archive, ": ", member.name, " is \"", absl::CHexEscape(text), "\", must be a number"));
      }
      label = number;
      if (has_image) images.back().label = label;
    }
  }
}

absl::StatusOr<std::vector<PackedImage>> ReadIndex(const std::string& text,
                                                   const std::string& path) {
  SYNCGRADS_ASSIGN_OR_RETURN(DelimitedReader reader, DelimitedReader::Create(text, path, ','));
  if (reader.header() != std::vector<std::string>{"name", "class", "offset", "size"}) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":1: the columns must be name, class, offset and size"));
  }
  std::vector<PackedImage> images;
  std::vector<std::string> cells;
  while (true) {
    SYNCGRADS_ASSIGN_OR_RETURN(const bool more, reader.NextRow(cells));
    if (!more) return images;
    PackedImage image;
    image.name = cells[0];
    uint32_t label = 0;
    const bool has_label = !cells[1].empty();
    if ((has_label && !absl::SimpleAtoi(cells[1], &label)) ||
        !absl::SimpleAtoi(cells[2], &image.offset) || !absl::SimpleAtoi(cells[3], &image.size)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", reader.line(), ": class, offset and size must be numbers"));
    }
    if (has_label) image.label = label;
    images.push_back(std::move(image));
  }
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandNames(const std::string& pattern) {
  const size_t open = pattern.find('{');
  const size_t close = pattern.find('}', open == std::string::npos ? 0 : open);
  if (open == std::string::npos || close == std::string::npos) {
    return std::vector<std::string>{pattern};
  }
  const std::string range = pattern.substr(open + 1, close - open - 1);
  const size_t dots = range.find("..");
  const std::string first = range.substr(0, dots);
  const std::string last = dots == std::string::npos ? "" : range.substr(dots + 2);
  uint64_t begin = 0, end = 0;
  if (!absl::SimpleAtoi(first, &begin) || !absl::SimpleAtoi(last, &end) || end < begin ||
      end - begin >= kMaxNames || first.size() > kMaxDigits) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"{", range, "}\" must be two numbers, such as {000..146}, at most ",
                     kMaxNames, " names"));
  }
  std::vector<std::string> names;
  for (uint64_t i = 0; i <= end - begin; ++i) {
    names.push_back(absl::StrCat(pattern.substr(0, open),
                                 absl::StrFormat("%0*d", static_cast<int>(first.size()), begin + i),
                                 pattern.substr(close + 1)));
  }
  return names;
}

absl::StatusOr<std::vector<PackedImage>> ListPacked(const Storage& storage,
                                                    const std::string& path) {
  const std::string index = path + ".csv";
  const absl::StatusOr<std::string> text = storage.Read(index, std::numeric_limits<size_t>::max());
  if (text.ok()) return ReadIndex(*text, storage.NameOf(index));
  return IsMissing(text.status()) ? Scan(storage, path) : text.status();
}

std::string IndexLine(const PackedImage& image) {
  const std::string label = image.label.has_value() ? absl::StrCat(*image.label) : "";
  return absl::StrCat(image.name, ",", label, ",", image.offset, ",", image.size, "\n");
}

}  // namespace syncgrads
