#include "worker/data/readers/table.h"

namespace syncgrads {

Table Table::Select(absl::Span<const size_t> selected) const {
  Table part;
  part.feature_names = feature_names;
  part.target_name = target_name;
  part.target_kind = target_kind;
  part.targets_per_row = targets_per_row;
  part.classes = classes;
  part.class_descriptions = class_descriptions;
  part.rows = selected.size();
  part.images = images;
  if (images == nullptr) part.features.reserve(selected.size() * feature_names.size());
  for (const size_t row : selected) {
    if (images != nullptr) {
      part.image_numbers.push_back(ImageOf(row));
    } else {
      const absl::Span<const double> numbers = FeaturesOf(row);
      part.features.insert(part.features.end(), numbers.begin(), numbers.end());
    }
    if (target_kind != TargetKind::kNone) {
      const absl::Span<const double> own = TargetsOf(row);
      part.targets.insert(part.targets.end(), own.begin(), own.end());
    }
    if (!weights.empty()) part.weights.push_back(weights[row]);
  }
  return part;
}

}  // namespace syncgrads
