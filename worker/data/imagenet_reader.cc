#include "worker/data/imagenet_reader.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "worker/data/delimited.h"
#include "worker/data/jpeg_images.h"
#include "worker/data/labels.h"

namespace syncgrads {
namespace {

constexpr size_t kAnySize = std::numeric_limits<size_t>::max();
// An object has a class and the four sides of its box.
constexpr size_t kPartsOfAnObject = 5;
constexpr uint32_t kSmallestSide = 256;
constexpr uint32_t kSize = 224;

// Returns the class number of each WordNet id. Appends the classes' names to `descriptions`.
absl::StatusOr<std::map<std::string, uint32_t>> ReadMapping(
    const Storage& storage, const std::string& file, std::vector<std::string>& descriptions) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string text, storage.Read(file, kAnySize));
  const std::string path = storage.NameOf(file);
  std::map<std::string, uint32_t> classes;
  uint32_t line = 0;
  for (const absl::string_view entry : absl::StrSplit(text, '\n', absl::SkipWhitespace())) {
    const std::string wnid(entry.substr(0, entry.find_first_of(" \t\r")));
    if (!classes.emplace(wnid, line).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", line + 1, ": ", wnid, " is listed twice"));
    }
    descriptions.emplace_back(absl::StripAsciiWhitespace(entry.substr(wnid.size())));
    ++line;
  }
  return classes;
}

absl::StatusOr<size_t> ColumnOf(const DelimitedReader& reader, const std::string& name) {
  const auto it = std::find(reader.header().begin(), reader.header().end(), name);
  if (it != reader.header().end()) return it - reader.header().begin();
  return absl::InvalidArgumentError(
      absl::StrCat(reader.path(), ":1: there is no column \"", name, "\""));
}

// Returns the WordNet id of all objects of an image; nullopt if they differ.
absl::StatusOr<std::optional<std::string>> WnidOf(const DelimitedReader& reader,
                                                  const std::string& objects) {
  const std::vector<std::string> parts = absl::StrSplit(objects, ' ', absl::SkipWhitespace());
  if (parts.empty() || parts.size() % kPartsOfAnObject != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(reader.path(), ":", reader.line(), ": column \"PredictionString\" has ",
                     parts.size(), " parts, must be a multiple of ", kPartsOfAnObject));
  }
  for (size_t i = kPartsOfAnObject; i < parts.size(); i += kPartsOfAnObject) {
    if (parts[i] != parts[0]) return std::optional<std::string>();
  }
  return std::optional<std::string>(parts[0]);
}

}  // namespace

absl::StatusOr<Table> ReadImageNet(const std::shared_ptr<const Storage>& storage,
                                   const v1::ImageNetSource& spec, TargetKind target_kind) {
  const std::string& path = spec.path();
  const bool validation = spec.part() == v1::ImageNetSource::VALIDATION;
  const std::string mapping = absl::StrCat(path, "/LOC_synset_mapping.txt");
  const std::string mapping_path = storage->NameOf(mapping);
  std::vector<std::string> descriptions;
  SYNCGRADS_ASSIGN_OR_RETURN(const auto classes, ReadMapping(*storage, mapping, descriptions));
  const std::set<std::string> wanted(spec.classes().begin(), spec.classes().end());
  for (const std::string& wnid : wanted) {
    if (classes.contains(wnid)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "data.imagenet.classes has \"", wnid, "\", which ", mapping_path, " does not contain"));
  }
  const std::string solution =
      absl::StrCat(path, "/LOC_", validation ? "val" : "train", "_solution.csv");
  const std::string table_path = storage->NameOf(solution);
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string text, storage->Read(solution, kAnySize));
  SYNCGRADS_ASSIGN_OR_RETURN(DelimitedReader reader,
                             DelimitedReader::Create(text, table_path, ','));
  SYNCGRADS_ASSIGN_OR_RETURN(const size_t id, ColumnOf(reader, "ImageId"));
  SYNCGRADS_ASSIGN_OR_RETURN(const size_t objects, ColumnOf(reader, "PredictionString"));

  std::vector<std::string> files;
  std::vector<uint32_t> labels;
  std::vector<size_t> lines;
  std::vector<std::string> cells;
  while (true) {
    SYNCGRADS_ASSIGN_OR_RETURN(const bool more, reader.NextRow(cells));
    if (!more) break;
    SYNCGRADS_ASSIGN_OR_RETURN(const std::optional<std::string> wnid,
                               WnidOf(reader, cells[objects]));
    if (!wnid.has_value()) continue;
    const auto it = classes.find(*wnid);
    if (it == classes.end()) {
      return absl::InvalidArgumentError(absl::StrCat(table_path, ":", reader.line(), ": class \"",
                                                     *wnid, "\" is not in ", mapping_path));
    }
    if (!wanted.empty() && !wanted.contains(*wnid)) continue;
    files.push_back(validation ? absl::StrCat(path, "/ILSVRC/Data/CLS-LOC/val/", cells[id], ".JPEG")
                               : absl::StrCat(path, "/ILSVRC/Data/CLS-LOC/train/", *wnid, "/",
                                              cells[id], ".JPEG"));
    labels.push_back(it->second);
    lines.push_back(reader.line());
  }
  Table table;
  table.rows = files.size();
  table.class_descriptions = std::move(descriptions);
  table.images = std::make_shared<JpegImages>(
      storage, std::move(files), spec.smallest_side() == 0 ? kSmallestSide : spec.smallest_side(),
      spec.size() == 0 ? kSize : spec.size());
  if (target_kind != TargetKind::kNone) {
    SetLabels(
        labels, target_kind, [&](size_t row) { return absl::StrCat(table_path, ":", lines[row]); },
        table);
  }
  return table;
}

}  // namespace syncgrads
