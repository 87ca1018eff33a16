// Tables of numbers to train on.

#ifndef SYNCGRADS_WORKER_DATA_READERS_TABLE_H_
#define SYNCGRADS_WORKER_DATA_READERS_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "worker/data/images/image_source.h"

namespace syncgrads {

// The contents of a target column.
enum class TargetKind {
  kNone,    // the column is not read
  kNumber,  // finite numbers
  kClass,   // names of classes
};

// A class: a value of the target column.
struct ClassName {
  std::string name;
  // The place where it occurs first: "PATH:LINE".
  std::string place;
};

// Rows of features. Each has targets, usually one, unless target_kind is kNone.
struct Table {
  std::vector<std::string> feature_names;
  std::string target_name;
  TargetKind target_kind = TargetKind::kNone;
  // In row-major order.
  std::vector<double> features;
  // If set, rows are images instead of features: row i is image ImageOf(i).
  std::shared_ptr<const ImageSource> images;
  // The image of each row; empty: row i is image i.
  std::vector<size_t> image_numbers;
  // Numbers, or indices in `classes`: targets_per_row for each row, row after row.
  std::vector<double> targets;
  // More than 1 only if target_kind is kNumber.
  size_t targets_per_row = 1;
  // The values of the weight column; empty if there is none.
  std::vector<double> weights;
  // Sorted by name. A part of a table keeps all classes of the table.
  std::vector<ClassName> classes;
  // The display names of the classes, by class number; empty if the source has none.
  std::vector<std::string> class_descriptions;
  size_t rows = 0;

  absl::Span<const double> FeaturesOf(size_t row) const {
    return absl::MakeConstSpan(features).subspan(row * feature_names.size(), feature_names.size());
  }

  absl::Span<const double> TargetsOf(size_t row) const {
    return absl::MakeConstSpan(targets).subspan(row * targets_per_row, targets_per_row);
  }

  size_t ImageOf(size_t row) const { return image_numbers.empty() ? row : image_numbers[row]; }

  // The given rows, in this order.
  Table Select(absl::Span<const size_t> selected) const;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_READERS_TABLE_H_
