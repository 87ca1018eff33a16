#include "worker/job/check_data.h"

#include <cmath>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/data/readers/packed_images.h"
#include "worker/data/shards.h"
#include "worker/job/check_values.h"

namespace syncgrads {
namespace {

// The largest side, and the largest number of channels, of an image.
constexpr uint32_t kMaxImage = 1 << 14;
// The most rows that are generated. Their numbers alone are 32 GiB.
constexpr uint64_t kMostGeneratedRows = uint64_t{1} << 32;

absl::Status CheckJoinedTables(const v1::TableSource& table, const Field& field) {
  std::set<std::string> files;
  for (int i = 0; i < table.tables_size(); ++i) {
    const std::string& file = table.tables(i).file();
    const Field member = field.Member("tables", i).Member("file");
    if (file.empty()) return member.Error("is missing: the table's file");
    if (!files.insert(file).second) {
      return member.Error(absl::StrCat("\"", file, "\" is listed twice"));
    }
  }
  if (!files.empty() && !table.file().empty()) {
    return field.Member("file").Error(
        absl::StrCat("is \"", table.file(), "\", but tables are given too: give only one of them"));
  }
  if (table.master_table().empty() || files.contains(table.master_table())) {
    return absl::OkStatus();
  }
  return field.Member("master_table")
      .Error(absl::StrCat("\"", table.master_table(), "\" is not among the tables' files"));
}

absl::Status CheckTable(const v1::TableSource& table, const Field& field) {
  if (table.path().empty()) return field.Member("path").Error("is missing: the table's file");
  if (table.delimiter().size() > 1) {
    return field.Member("delimiter")
        .Error(absl::StrCat("\"", table.delimiter(), "\" has ", table.delimiter().size(),
                            " bytes, must have one"));
  }
  if (table.delimiter() == "\"" || table.delimiter() == "\n" || table.delimiter() == "\r") {
    return field.Member("delimiter").Error("a quote or the end of a line cannot be a delimiter");
  }
  if (absl::StrContains(table.file(), '/')) {
    return field.Member("file").Error(absl::StrCat(
        "\"", table.file(), "\" is a path, must be the name of a file in each shard directory"));
  }
  return CheckJoinedTables(table, field);
}

absl::Status CheckColumns(const v1::DataSpec& data, const Field& field) {
  std::set<std::string> seen;
  for (int i = 0; i < data.features_size(); ++i) {
    const Field feature = field.Member("features", i);
    const std::string& name = data.features(i);
    if (name.empty()) return feature.Error("is empty");
    if (name == data.target()) {
      return feature.Error(absl::StrCat("\"", name, "\" is the target"));
    }
    if (!seen.insert(name).second) {
      return feature.Error(absl::StrCat("\"", name, "\" is named twice"));
    }
  }
  if (data.more_targets_size() > 0 && !data.has_table() && !data.has_custom()) {
    return field.Member("more_targets", 0).Error("is given, but the source has one target only");
  }
  seen.insert(data.target());
  seen.insert(data.weight_column());
  for (int i = 0; i < data.more_targets_size(); ++i) {
    if (seen.insert(data.more_targets(i)).second) continue;
    return field.Member("more_targets", i)
        .Error(absl::StrCat("\"", data.more_targets(i),
                            "\" is empty, or a feature, the weight or a target already"));
  }
  return absl::OkStatus();
}

absl::Status CheckPath(const std::string& path, const Field& field, absl::string_view name) {
  return path.empty() ? field.Member(name).Error("is missing: the path of a file")
                      : absl::OkStatus();
}

// `known`: the source determines the size of its images.
absl::Status CheckImage(const v1::ImageSpec& image, bool known, const Field& field) {
  const bool given = image.channels() != 0 || image.height() != 0 || image.width() != 0;
  if (known && given) {
    return field.Error("has a size, but the source determines the size of its images");
  }
  if (!known) {
    SYNCGRADS_RETURN_IF_ERROR(CheckCount(field, "channels", image.channels(), kMaxImage));
    SYNCGRADS_RETURN_IF_ERROR(CheckCount(field, "height", image.height(), kMaxImage));
    SYNCGRADS_RETURN_IF_ERROR(CheckCount(field, "width", image.width(), kMaxImage));
  }
  const auto check_length = [&](const char* name, int length) {
    if (length <= 1 || known || static_cast<uint32_t>(length) == image.channels()) {
      return absl::OkStatus();
    }
    return field.Member(name, 0).Error(
        absl::StrCat("is one of ", length, " numbers, but there are ", image.channels(),
                     " channels: give no number, one, or one per channel"));
  };
  SYNCGRADS_RETURN_IF_ERROR(check_length("mean", image.mean_size()));
  SYNCGRADS_RETURN_IF_ERROR(check_length("std", image.std_size()));
  for (int i = 0; i < image.mean_size(); ++i) {
    if (std::isfinite(image.mean(i))) continue;
    return field.Member("mean", i).Error(absl::StrCat("is ", image.mean(i), ", must be finite"));
  }
  for (int i = 0; i < image.std_size(); ++i) {
    if (std::isfinite(image.std(i)) && image.std(i) > 0) continue;
    return field.Member("std", i).Error(
        absl::StrCat("is ", image.std(i), ", must be a positive finite number"));
  }
  return absl::OkStatus();
}

// `known` as in CheckImage. `channels` is the number of channels of the source's images.
absl::Status CheckAugmentation(const v1::Augmentation& augmentation, bool known, int channels,
                               const Field& field) {
  if (!known) {
    return field.Error(
        "is given, but only the images of the sources idx, cifar10 and imagenet can be changed");
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckFraction(field, "mirror", augmentation.mirror()));
  SYNCGRADS_RETURN_IF_ERROR(CheckFraction(field, "brightness", augmentation.brightness()));
  SYNCGRADS_RETURN_IF_ERROR(CheckFraction(field, "contrast", augmentation.contrast()));
  SYNCGRADS_RETURN_IF_ERROR(CheckFraction(field, "saturation", augmentation.saturation()));
  if (augmentation.shift() > kMaxImage) {
    return field.Member("shift").Error(
        absl::StrCat("is ", augmentation.shift(), ", must be at most ", kMaxImage));
  }
  if (augmentation.saturation() != 0 && channels != 3) {
    return field.Member("saturation")
        .Error(absl::StrCat("is ", augmentation.saturation(), ", but the images have ", channels,
                            " channel; grey images have no saturation"));
  }
  return absl::OkStatus();
}

absl::Status CheckImageNet(const v1::ImageNetSource& imagenet, const Field& field) {
  if (imagenet.path().empty())
    return field.Member("path").Error("is missing: the path of a directory");
  constexpr uint32_t kUsualSide = 256, kUsualSize = 224;
  const uint32_t side = imagenet.smallest_side() == 0 ? kUsualSide : imagenet.smallest_side();
  const uint32_t size = imagenet.size() == 0 ? kUsualSize : imagenet.size();
  if (side > kMaxImage) {
    return field.Member("smallest_side")
        .Error(absl::StrCat("is ", side, ", must be at most ", kMaxImage));
  }
  if (size > side) {
    return field.Member("size").Error(
        absl::StrCat("is ", size, ", which is more than smallest_side, ", side));
  }
  SYNCGRADS_RETURN_IF_ERROR(
      CheckEnum(field, "training_crop", imagenet.training_crop(),
                v1::ImageNetSource::TrainingCrop_IsValid(imagenet.training_crop())));
  if (imagenet.min_area() != 0 && imagenet.training_crop() != v1::ImageNetSource::RANDOM_RESIZED) {
    return field.Member("min_area").Error("is given, but training_crop is not RANDOM_RESIZED");
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckFraction(field, "min_area", imagenet.min_area()));
  SYNCGRADS_RETURN_IF_ERROR(
      CheckEnum(field, "part", imagenet.part(), v1::ImageNetSource::Part_IsValid(imagenet.part())));
  if (imagenet.tars_size() > 0 && imagenet.part() != v1::ImageNetSource::TRAIN) {
    return field.Member("part").Error("is given, but the images are those of tars");
  }
  for (const std::string& tar : imagenet.tars()) {
    const absl::Status names = ExpandNames(tar).status();
    if (!names.ok()) return field.Member("tars").Error(names.message());
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckThreads(field, "readers", imagenet.readers()));
  return CheckEnum(field, "damaged", imagenet.damaged(),
                   v1::ImageNetSource::Damaged_IsValid(imagenet.damaged()));
}

}  // namespace

absl::Status CheckData(const v1::DataSpec& data, const Field& field) {
  switch (data.source_case()) {
    case v1::DataSpec::kTable:
      SYNCGRADS_RETURN_IF_ERROR(CheckTable(data.table(), field.Member("table")));
      if (data.target().empty()) {
        return field.Member("target").Error("is missing: the column to predict");
      }
      break;
    case v1::DataSpec::kGenerated:
      if (data.generated().rows() == 0) {
        return field.Member("generated")
            .Member("rows")
            .Error("is 0 or missing, must be at least 1");
      }
      if (data.generated().rows() > kMostGeneratedRows) {
        return field.Member("generated")
            .Member("rows")
            .Error(absl::StrCat("is ", data.generated().rows(), ", must be at most ",
                                kMostGeneratedRows));
      }
      break;
    case v1::DataSpec::kNumpy:
      SYNCGRADS_RETURN_IF_ERROR(
          CheckPath(data.numpy().features(), field.Member("numpy"), "features"));
      SYNCGRADS_RETURN_IF_ERROR(
          CheckPath(data.numpy().targets(), field.Member("numpy"), "targets"));
      break;
    case v1::DataSpec::kIdx:
      SYNCGRADS_RETURN_IF_ERROR(CheckPath(data.idx().images(), field.Member("idx"), "images"));
      SYNCGRADS_RETURN_IF_ERROR(CheckPath(data.idx().labels(), field.Member("idx"), "labels"));
      break;
    case v1::DataSpec::kCifar10:
      if (data.cifar10().files().empty()) return field.Member("cifar10").Error("has no files");
      break;
    case v1::DataSpec::kImagenet:
      SYNCGRADS_RETURN_IF_ERROR(CheckImageNet(data.imagenet(), field.Member("imagenet")));
      break;
    case v1::DataSpec::kCustom:
      if (data.custom().kind().empty()) {
        return field.Member("custom").Member("kind").Error("is missing: the name of a reader");
      }
      break;
    case v1::DataSpec::SOURCE_NOT_SET:
      return field.Error(
          "has no source: give table, generated, or another source listed in proto/job.proto");
  }
  if (!data.features().empty() && !data.has_table() && !data.has_generated() &&
      !data.has_custom()) {
    return field.Member("features", 0).Error("is given, but the source has no named columns");
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckColumns(data, field));
  if (data.has_image()) {
    const bool is_image = data.has_idx() || data.has_cifar10() || data.has_imagenet();
    const Field image = field.Member("image");
    SYNCGRADS_RETURN_IF_ERROR(CheckImage(data.image(), is_image, image));
    if (data.image().has_augmentation()) {
      SYNCGRADS_RETURN_IF_ERROR(CheckAugmentation(data.image().augmentation(), is_image,
                                                  data.has_idx() ? 1 : 3,
                                                  image.Member("augmentation")));
    }
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckEnum(field, "partition", data.partition(),
                                      v1::DataSpec::Partition_IsValid(data.partition())));
  if (data.partition() == v1::DataSpec::ALL && data.mode() == v1::DataSpec::DYNAMIC) {
    return field.Member("partition")
        .Error("is ALL, but with mode DYNAMIC each row is assigned to one worker");
  }
  const std::set<std::string> names(data.class_names().begin(), data.class_names().end());
  if (names.size() != static_cast<size_t>(data.class_names_size())) {
    return field.Member("class_names").Error("has a name twice");
  }
  if (names.contains("")) return field.Member("class_names").Error("has an empty name");
  if (data.shards() > kMostShards) {
    return field.Member("shards").Error(
        absl::StrCat("is ", data.shards(), ", must be at most ", kMostShards));
  }
  if (data.validation_every() == 1) {
    return field.Member("validation_every")
        .Error(
            "is 1, which leaves no row to train on; must be 0 (no rows are held out) or at least "
            "2");
  }
  SYNCGRADS_RETURN_IF_ERROR(
      CheckEnum(field, "order", data.order(), v1::DataSpec::Order_IsValid(data.order())));
  return CheckEnum(field, "split", data.split(), v1::DataSpec::Split_IsValid(data.split()));
}

}  // namespace syncgrads
