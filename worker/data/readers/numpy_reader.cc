#include "worker/data/readers/numpy_reader.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "worker/data/readers/labels.h"

namespace syncgrads {
namespace {

constexpr absl::string_view kMagic = "\x93NUMPY";
// The largest number of features of an array without rows. In an array with rows, the length of
// the file limits it.
constexpr uint64_t kMaxColumnsWithoutRows = 1 << 20;

// Returns the text after `'key':` in the header.
absl::StatusOr<absl::string_view> Find(absl::string_view header, absl::string_view key,
                                       const std::string& path) {
  const size_t at = header.find(absl::StrCat("'", key, "':"));
  if (at == absl::string_view::npos) {
    return absl::DataLossError(absl::StrCat(path, ": the header has no ", key));
  }
  return absl::StripLeadingAsciiWhitespace(header.substr(at + key.size() + 3));
}

absl::StatusOr<std::vector<uint64_t>> ParseShape(absl::string_view text, const std::string& path) {
  const size_t end = text.find(')');
  if (!absl::ConsumePrefix(&text, "(") || end == absl::string_view::npos) {
    return absl::DataLossError(absl::StrCat(path, ": the header has no shape"));
  }
  std::vector<uint64_t> shape;
  for (const absl::string_view part :
       absl::StrSplit(text.substr(0, end - 1), ',', absl::SkipWhitespace())) {
    uint64_t size;
    if (!absl::SimpleAtoi(part, &size)) {
      return absl::DataLossError(absl::StrCat(path, ": malformed dimension \"", part, "\""));
    }
    shape.push_back(size);
  }
  return shape;
}

template <typename T>
void Convert(absl::string_view bytes, std::vector<double>& numbers) {
  numbers.resize(bytes.size() / sizeof(T));
  for (size_t i = 0; i < numbers.size(); ++i) {
    T number;
    std::memcpy(&number, bytes.data() + i * sizeof(T), sizeof(T));
    numbers[i] = static_cast<double>(number);
  }
}

struct Format {
  size_t bytes;
  void (*convert)(absl::string_view, std::vector<double>&);
};

const Format* FormatOf(absl::string_view name) {
  static const auto& formats = *new std::map<absl::string_view, Format>{
      {"<f4", {4, Convert<float>}},    {"<f8", {8, Convert<double>}},
      {"|i1", {1, Convert<int8_t>}},   {"<i2", {2, Convert<int16_t>}},
      {"<i4", {4, Convert<int32_t>}},  {"<i8", {8, Convert<int64_t>}},
      {"|u1", {1, Convert<uint8_t>}},  {"<u2", {2, Convert<uint16_t>}},
      {"<u4", {4, Convert<uint32_t>}}, {"<u8", {8, Convert<uint64_t>}},
      {"|b1", {1, Convert<uint8_t>}},
  };
  const auto it = formats.find(name);
  return it == formats.end() ? nullptr : &it->second;
}

uint64_t LittleEndian(absl::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

}  // namespace

absl::StatusOr<NumpyArray> ParseNumpy(absl::string_view contents, const std::string& path) {
  if (!absl::ConsumePrefix(&contents, kMagic) || contents.size() < 4) {
    return absl::DataLossError(absl::StrCat(path, " is not a .npy file"));
  }
  const int version = contents[0];
  const size_t length_bytes = version == 1 ? 2 : 4;
  if (version < 1 || version > 3 || contents.size() < 2 + length_bytes) {
    return absl::DataLossError(
        absl::StrCat(path, " has .npy version ", version, ", must be 1 to 3"));
  }
  const uint64_t header_bytes = LittleEndian(contents.substr(2, length_bytes));
  contents.remove_prefix(2 + length_bytes);
  if (header_bytes > contents.size()) {
    return absl::DataLossError(absl::StrCat(path, ": the header has ", header_bytes,
                                            " bytes, but the rest of the file has ",
                                            contents.size()));
  }
  const absl::string_view header = contents.substr(0, header_bytes);
  contents.remove_prefix(header_bytes);

  SYNCGRADS_ASSIGN_OR_RETURN(absl::string_view type, Find(header, "descr", path));
  type = type.substr(0, type.find_first_of(",}"));
  absl::ConsumePrefix(&type, "'");
  absl::ConsumeSuffix(&type, "'");
  const Format* format = FormatOf(type);
  if (format == nullptr) {
    return absl::DataLossError(
        absl::StrCat(path, " has numbers of type \"", type, "\", which is not supported"));
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const absl::string_view fortran, Find(header, "fortran_order", path));
  if (!absl::StartsWith(fortran, "False")) {
    return absl::DataLossError(
        absl::StrCat(path, " is in Fortran order; save it with numpy.ascontiguousarray"));
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const absl::string_view shape, Find(header, "shape", path));
  NumpyArray array;
  SYNCGRADS_ASSIGN_OR_RETURN(array.shape, ParseShape(shape, path));
  uint64_t bytes = format->bytes;
  for (const uint64_t size : array.shape) {
    if (size != 0 && bytes > std::numeric_limits<uint64_t>::max() / size) {
      return absl::DataLossError(absl::StrCat(path, ": the shape has too many numbers"));
    }
    bytes *= size;
  }
  if (bytes != contents.size()) {
    return absl::DataLossError(
        absl::StrCat(path, " should have ", bytes, " bytes of numbers, but has ", contents.size()));
  }
  format->convert(contents, array.numbers);
  return array;
}

absl::StatusOr<Table> ReadNumpy(const Storage& storage, const std::string& feature_path,
                                const std::string& target_path, TargetKind target_kind) {
  constexpr size_t kAnySize = std::numeric_limits<size_t>::max();
  SYNCGRADS_ASSIGN_OR_RETURN(std::string contents,
                             ReadDecompressed(storage, feature_path, kAnySize));
  const std::string features = storage.NameOf(feature_path);
  SYNCGRADS_ASSIGN_OR_RETURN(NumpyArray array, ParseNumpy(contents, features));
  if (array.shape.size() < 2 || (array.shape[0] > 0 && array.numbers.empty())) {
    return absl::InvalidArgumentError(absl::StrCat(
        features, " has ", array.shape.size(),
        " dimensions; it needs rows in the first dimension and features in the others"));
  }
  Table table;
  table.rows = array.shape[0];
  uint64_t columns = 1;
  for (size_t i = 1; i < array.shape.size(); ++i) {
    // Without rows, the file has no numbers, whatever the other dimensions are.
    if (table.rows == 0 && columns > 0 && array.shape[i] > kMaxColumnsWithoutRows / columns) {
      return absl::DataLossError(absl::StrCat(
          features, " has 0 rows of shape (", absl::StrJoin(array.shape, ", "),
          "); without rows, a row may have at most ", kMaxColumnsWithoutRows, " features"));
    }
    columns *= array.shape[i];
  }
  for (uint64_t i = 0; i < columns; ++i) table.feature_names.push_back(absl::StrCat("x", i));
  table.features = std::move(array.numbers);
  for (size_t i = 0; i < table.features.size(); ++i) {
    if (std::isfinite(table.features[i])) continue;
    return absl::InvalidArgumentError(absl::StrCat(features, ": row ", i / columns, ", feature x",
                                                   i % columns, " is ", table.features[i],
                                                   ", which is not finite"));
  }
  if (target_kind == TargetKind::kNone) return table;

  SYNCGRADS_ASSIGN_OR_RETURN(contents, ReadDecompressed(storage, target_path, kAnySize));
  const std::string targets = storage.NameOf(target_path);
  SYNCGRADS_ASSIGN_OR_RETURN(const NumpyArray labels, ParseNumpy(contents, targets));
  if (labels.shape.size() != 1 || labels.shape[0] != table.rows) {
    return absl::InvalidArgumentError(
        absl::StrCat(targets, " has ", labels.numbers.size(), " numbers in ", labels.shape.size(),
                     " dimensions, but ", features, " has ", table.rows, " rows"));
  }
  std::vector<uint32_t> classes;
  for (size_t row = 0; row < labels.numbers.size(); ++row) {
    const double label = labels.numbers[row];
    const bool is_class =
        label >= 0 && label <= std::numeric_limits<uint32_t>::max() && label == std::floor(label);
    if (target_kind == TargetKind::kNumber ? std::isfinite(label) : is_class) {
      classes.push_back(is_class ? static_cast<uint32_t>(label) : 0);
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(targets, ": target ", row, " is ", label));
  }
  if (target_kind == TargetKind::kNumber) {
    table.target_name = "target";
    table.target_kind = target_kind;
    table.targets = labels.numbers;
  } else {
    SetLabels(
        classes, target_kind, [&](size_t row) { return absl::StrCat(targets, ": target ", row); },
        table);
  }
  return table;
}

}  // namespace syncgrads
