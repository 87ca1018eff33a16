// Rows of numbers to train on.

#ifndef SYNCGRADS_WORKER_DATA_TABLE_H_
#define SYNCGRADS_WORKER_DATA_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "worker/data/image_source.h"

namespace syncgrads {

// What a target column holds.
enum class TargetKind {
  kNone,    // it is not read
  kNumber,  // finite numbers
  kClass,   // names of classes
};

// A value of a target column.
struct ClassName {
  std::string name;
  // The place where it is first met: "PATH:LINE".
  std::string place;
};

// Rows of features and, unless the target's kind is kNone, a target each.
struct Table {
  std::vector<std::string> feature_names;
  std::string target_name;
  TargetKind target_kind = TargetKind::kNone;
  // Row-major.
  std::vector<double> features;
  // If it is set, rows are images instead: row i is image first_image + i.
  std::shared_ptr<const ImageSource> images;
  size_t first_image = 0;
  // Numbers, or positions in `classes`.
  std::vector<double> targets;
  // Of the column that the loss is divided by, if there is one.
  std::vector<double> weights;
  // Sorted by name; of all rows that the table was cut from.
  std::vector<ClassName> classes;
  // What people call the classes, by number, where the source says.
  std::vector<std::string> class_descriptions;
  size_t rows = 0;

  absl::Span<const double> FeaturesOf(size_t row) const {
    return absl::MakeConstSpan(features).subspan(row * feature_names.size(), feature_names.size());
  }

  // Rows from `begin` to below `end`.
  Table Slice(size_t begin, size_t end) const;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_TABLE_H_
