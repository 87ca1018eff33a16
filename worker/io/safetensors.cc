#include "worker/io/safetensors.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/base/file.h"
#include "worker/base/string_list.h"

namespace syncgrads {
namespace {

using nlohmann::json;

constexpr size_t kLengthBytes = 8;
// An upper bound of the header of any model. A damaged length is usually larger.
constexpr uint64_t kMaxHeaderBytes = 100 << 20;
constexpr const char* kMetadata = "__metadata__";

// A tensor's entry in the header.
struct Entry {
  TensorSpec spec;
  uint64_t begin = 0;
  uint64_t end = 0;
};

std::string FormatName(DType dtype) { return absl::AsciiStrToUpper(NameOf(dtype)); }

std::optional<DType> DTypeFromFormat(const std::string& name) {
  for (const DType dtype : kAllDTypes) {
    if (FormatName(dtype) == name) return dtype;
  }
  return std::nullopt;
}

// Returns nullopt if the product of the shape and the element's size exceeds 63 bits.
std::optional<uint64_t> BytesOf(const TensorSpec& spec) {
  uint64_t bytes = SizeOf(spec.dtype);
  for (const int64_t axis : spec.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(axis), &bytes)) return std::nullopt;
  }
  if (bytes > uint64_t{std::numeric_limits<int64_t>::max()}) return std::nullopt;
  return bytes;
}

absl::Status Damaged(const std::string& path, absl::string_view problem) {
  return absl::DataLossError(absl::StrCat(path, ": ", problem));
}

absl::StatusOr<Entry> ParseEntry(const std::string& path, const std::string& name,
                                 const json& value) {
  const auto damaged = [&](absl::string_view problem) {
    return Damaged(path, absl::StrCat("tensor \"", name, "\" ", problem));
  };
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets")) {
    return damaged("does not have dtype, shape and data_offsets");
  }
  Entry entry;
  entry.spec.name = name;
  const json& dtype = value["dtype"];
  const std::optional<DType> known =
      dtype.is_string() ? DTypeFromFormat(dtype.get<std::string>()) : std::nullopt;
  if (!known.has_value()) {
    // A value that is not a string is not printed: it may be nested so deeply that the recursion
    // would exceed the stack.
    return damaged(
        absl::StrCat("has unknown dtype ", dtype.is_string() ? dtype.dump() : dtype.type_name()));
  }
  entry.spec.dtype = *known;
  if (!value["shape"].is_array()) return damaged("has a shape that is not a list");
  for (const json& axis : value["shape"]) {
    if (!axis.is_number_unsigned() ||
        axis.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return damaged("has a shape that is not a list of whole numbers");
    }
    entry.spec.shape.push_back(axis.get<int64_t>());
  }
  const json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned() || offsets[0] > offsets[1]) {
    return damaged("has data_offsets that are not a valid range");
  }
  entry.begin = offsets[0].get<uint64_t>();
  entry.end = offsets[1].get<uint64_t>();
  const std::optional<uint64_t> bytes = BytesOf(entry.spec);
  if (!bytes.has_value() || *bytes != entry.end - entry.begin) {
    return damaged(absl::StrCat("has ", entry.end - entry.begin, " bytes, but its shape ",
                                value["shape"].dump(), " of ", FormatName(entry.spec.dtype),
                                " needs ", bytes.has_value() ? absl::StrCat(*bytes) : "too many"));
  }
  return entry;
}

}  // namespace

std::string SafetensorsHeader(absl::Span<const StoredTensor> tensors,
                              const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  uint64_t offset = 0;
  for (const StoredTensor& tensor : tensors) {
    const uint64_t end = offset + tensor.bytes.size();
    header[tensor.spec.name] = {{"dtype", FormatName(tensor.spec.dtype)},
                                {"shape", tensor.spec.shape},
                                {"data_offsets", {offset, end}}};
    offset = end;
  }
  // Names and metadata may come from data; bytes that are not UTF-8 are replaced.
  std::string text = header.dump(-1, ' ', false, json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return EncodeNumber(text.size()) + text;
}

absl::Status WriteSafetensors(const std::string& path, absl::Span<const StoredTensor> tensors,
                              const std::map<std::string, std::string>& metadata) {
  const std::string header = SafetensorsHeader(tensors, metadata);
  std::vector<absl::string_view> pieces = {header};
  for (const StoredTensor& tensor : tensors) pieces.push_back(tensor.bytes);
  return WriteFileAtomically(path, pieces);
}

absl::StatusOr<Safetensors> Safetensors::Parse(std::string contents, const std::string& path) {
  if (contents.size() < kLengthBytes) {
    return Damaged(path, absl::StrCat("has ", contents.size(), " bytes, too few for a header"));
  }
  const uint64_t header_bytes = DecodeNumber(contents);
  const uint64_t rest = contents.size() - kLengthBytes;
  if (header_bytes > rest || header_bytes > kMaxHeaderBytes) {
    return Damaged(path, absl::StrCat("its header should have ", header_bytes, " bytes, but ", rest,
                                      " follow"));
  }
  const absl::string_view text(contents.data() + kLengthBytes, header_bytes);
  const json header = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return Damaged(path, "its header is not a JSON object");

  Safetensors file;
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadata) {
      if (!value.is_object()) return Damaged(path, "__metadata__ is not an object");
      for (const auto& [key, text_value] : value.items()) {
        if (!text_value.is_string()) {
          return Damaged(path, absl::StrCat("__metadata__ \"", key, "\" is not a string"));
        }
        file.metadata_[key] = text_value.get<std::string>();
      }
      continue;
    }
    SYNCGRADS_ASSIGN_OR_RETURN(Entry entry, ParseEntry(path, name, value));
    entries.push_back(std::move(entry));
  }

  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (Entry& entry : entries) {
    if (entry.begin != covered) {
      return Damaged(path, absl::StrCat("tensor \"", entry.spec.name, "\" begins at ", entry.begin,
                                        ", but the previous tensor ends at ", covered));
    }
    covered = entry.end;
    file.begins_.push_back(kLengthBytes + header_bytes + entry.begin);
    file.specs_.push_back(std::move(entry.spec));
  }
  if (covered != rest - header_bytes) {
    return Damaged(path, absl::StrCat("its tensors should have ", covered, " bytes, but ",
                                      rest - header_bytes, " follow the header"));
  }
  file.path_ = path;
  file.contents_ = std::move(contents);
  return file;
}

absl::StatusOr<Safetensors> Safetensors::Read(const std::string& path) {
  SYNCGRADS_ASSIGN_OR_RETURN(std::string contents,
                             ReadRegularFile(path, std::numeric_limits<size_t>::max()));
  return Parse(std::move(contents), path);
}

absl::StatusOr<absl::string_view> Safetensors::Find(const TensorSpec& expected) const {
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (specs_[i].name != expected.name) continue;
    if (specs_[i] != expected) {
      return absl::InvalidArgumentError(absl::StrCat(path_, ": tensor \"", expected.name, "\" is ",
                                                     ToString(specs_[i]), ", but the model's is ",
                                                     ToString(expected)));
    }
    return absl::string_view(contents_.data() + begins_[i], expected.bytes());
  }
  return absl::NotFoundError(absl::StrCat(path_, " has no tensor \"", expected.name, "\""));
}

}  // namespace syncgrads
