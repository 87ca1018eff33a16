#include "worker/data/readers/imagenet_reader.h"

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
#include "worker/data/images/jpeg_images.h"
#include "worker/data/readers/delimited.h"
#include "worker/data/readers/labels.h"
#include "worker/data/readers/packed_images.h"

namespace syncgrads {
namespace {

constexpr size_t kAnySize = std::numeric_limits<size_t>::max();
// An object has a class and the four sides of its box.
constexpr size_t kPartsOfAnObject = 5;
constexpr uint32_t kSmallestSide = 256;
constexpr uint32_t kSize = 224;
constexpr double kMinArea = 0.08;

JpegCrops CropsOf(const v1::ImageNetSource& spec) {
  JpegCrops crops;
  crops.smallest_side = spec.smallest_side() == 0 ? kSmallestSide : spec.smallest_side();
  crops.size = spec.size() == 0 ? kSize : spec.size();
  crops.training = spec.training_crop();
  crops.min_area = spec.min_area() == 0 ? kMinArea : spec.min_area();
  return crops;
}

// The name of the file that lists the images of a part.
absl::string_view ListOf(v1::ImageNetSource::Part part) {
  switch (part) {
    case v1::ImageNetSource::VALIDATION:
      return "LOC_val_solution.csv";
    case v1::ImageNetSource::TEST:
      return "LOC_sample_submission.csv";
    default:
      return "LOC_train_solution.csv";
  }
}

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

// Checks that the mapping has the classes of `spec`.
absl::Status CheckClasses(const v1::ImageNetSource& spec,
                          const std::map<std::string, uint32_t>& classes,
                          const std::string& mapping_path) {
  for (const std::string& wnid : spec.classes()) {
    if (classes.contains(wnid)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "data.imagenet.classes has \"", wnid, "\", which ", mapping_path, " does not contain"));
  }
  return absl::OkStatus();
}

std::string MappingOf(const v1::ImageNetSource& spec) {
  return absl::StrCat(spec.path(), "/LOC_synset_mapping.txt");
}

// Reads the rows of images in archives.
absl::StatusOr<Table> ReadTars(const std::shared_ptr<const Storage>& storage,
                               const v1::ImageNetSource& spec, TargetKind target_kind) {
  Table table;
  std::set<uint32_t> wanted;
  const std::string mapping = MappingOf(spec);
  const auto classes = ReadMapping(*storage, mapping, table.class_descriptions);
  if (classes.ok()) {
    SYNCGRADS_RETURN_IF_ERROR(CheckClasses(spec, *classes, storage->NameOf(mapping)));
    for (const std::string& wnid : spec.classes()) wanted.insert(classes->at(wnid));
  } else if (spec.classes_size() > 0 || !IsMissing(classes.status())) {
    // The names of classes are not needed otherwise.
    return classes.status();
  }
  std::vector<std::string> files;
  std::vector<ImagePlace> places;
  std::vector<uint32_t> labels;
  for (const std::string& pattern : spec.tars()) {
    SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> names, ExpandNames(pattern));
    for (const std::string& name : names) {
      const std::string file = absl::StrCat(spec.path(), "/", name);
      SYNCGRADS_ASSIGN_OR_RETURN(std::vector<PackedImage> images, ListPacked(*storage, file));
      for (PackedImage& image : images) {
        if (!image.label.has_value() && (target_kind != TargetKind::kNone || !wanted.empty())) {
          return absl::InvalidArgumentError(absl::StrCat(storage->NameOf(file), ": ", image.name,
                                                         " has no class: there is no file .cls "
                                                         "beside it"));
        }
        if (!wanted.empty() && !wanted.contains(*image.label)) continue;
        if (image.label.has_value()) labels.push_back(*image.label);
        places.push_back(
            {std::move(image.name), static_cast<uint32_t>(files.size()), image.offset, image.size});
      }
      files.push_back(file);
    }
  }
  table.rows = places.size();
  const auto images =
      std::make_shared<JpegImages>(storage, std::move(files), std::move(places), CropsOf(spec));
  table.images = images;
  if (target_kind != TargetKind::kNone) {
    SetLabels(
        labels, target_kind, [&](size_t row) { return images->NameOf(row); }, table);
  }
  return table;
}

}  // namespace

absl::StatusOr<ImageNetList> ListImageNet(const Storage& storage, const v1::ImageNetSource& spec) {
  const std::string& path = spec.path();
  const std::string mapping = MappingOf(spec);
  const std::string mapping_path = storage.NameOf(mapping);
  ImageNetList list;
  SYNCGRADS_ASSIGN_OR_RETURN(const auto classes, ReadMapping(storage, mapping, list.descriptions));
  list.wnids.resize(classes.size());
  for (const auto& [wnid, number] : classes) list.wnids[number] = wnid;
  SYNCGRADS_RETURN_IF_ERROR(CheckClasses(spec, classes, mapping_path));
  const std::set<std::string> wanted(spec.classes().begin(), spec.classes().end());
  const std::string table = absl::StrCat(path, "/", ListOf(spec.part()));
  list.table_path = storage.NameOf(table);
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string text, storage.Read(table, kAnySize));
  SYNCGRADS_ASSIGN_OR_RETURN(DelimitedReader reader,
                             DelimitedReader::Create(text, list.table_path, ','));
  SYNCGRADS_ASSIGN_OR_RETURN(const size_t id, ColumnOf(reader, "ImageId"));
  SYNCGRADS_ASSIGN_OR_RETURN(const size_t objects, ColumnOf(reader, "PredictionString"));
  std::vector<std::string> cells;
  while (true) {
    SYNCGRADS_ASSIGN_OR_RETURN(const bool more, reader.NextRow(cells));
    if (!more) return list;
    if (spec.part() == v1::ImageNetSource::TEST) {
      list.files.push_back(absl::StrCat(path, "/ILSVRC/Data/CLS-LOC/test/", cells[id], ".JPEG"));
      continue;
    }
    SYNCGRADS_ASSIGN_OR_RETURN(const std::optional<std::string> wnid,
                               WnidOf(reader, cells[objects]));
    if (!wnid.has_value()) continue;
    const auto it = classes.find(*wnid);
    if (it == classes.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          list.table_path, ":", reader.line(), ": class \"", *wnid, "\" is not in ", mapping_path));
    }
    if (!wanted.empty() && !wanted.contains(*wnid)) continue;
    list.files.push_back(absl::StrCat(
        path, "/ILSVRC/Data/CLS-LOC/",
        spec.part() == v1::ImageNetSource::VALIDATION ? "val" : absl::StrCat("train/", *wnid), "/",
        cells[id], ".JPEG"));
    list.labels.push_back(it->second);
    list.lines.push_back(reader.line());
  }
}

absl::StatusOr<Table> ReadImageNet(const std::shared_ptr<const Storage>& storage,
                                   const v1::ImageNetSource& spec, TargetKind target_kind) {
  if (spec.tars_size() > 0) return ReadTars(storage, spec, target_kind);
  if (spec.part() == v1::ImageNetSource::TEST && target_kind != TargetKind::kNone) {
    return absl::FailedPreconditionError(
        "data.imagenet.part is TEST, whose images have no classes: they can only be predicted");
  }
  SYNCGRADS_ASSIGN_OR_RETURN(ImageNetList list, ListImageNet(*storage, spec));
  Table table;
  table.rows = list.files.size();
  table.class_descriptions = std::move(list.descriptions);
  table.images = std::make_shared<JpegImages>(storage, std::move(list.files), CropsOf(spec));
  if (target_kind != TargetKind::kNone) {
    SetLabels(
        list.labels, target_kind,
        [&](size_t row) { return absl::StrCat(list.table_path, ":", list.lines[row]); }, table);
  }
  return table;
}

}  // namespace syncgrads
