#include "worker/data/table.h"

namespace syncgrads {

Table Table::Slice(size_t begin, size_t end) const {
  Table slice;
  slice.feature_names = feature_names;
  slice.target_name = target_name;
  slice.target_kind = target_kind;
  slice.classes = classes;
  slice.class_descriptions = class_descriptions;
  slice.rows = end - begin;
  slice.images = images;
  slice.first_image = first_image + begin;
  const size_t columns = feature_names.size();
  slice.features.assign(features.begin() + begin * columns, features.begin() + end * columns);
  if (target_kind != TargetKind::kNone) {
    slice.targets.assign(targets.begin() + begin, targets.begin() + end);
  }
  if (!weights.empty()) slice.weights.assign(weights.begin() + begin, weights.begin() + end);
  return slice;
}

}  // namespace syncgrads
