#include "worker/job/across_workers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace syncgrads {
namespace {

using Layers = google::protobuf::RepeatedPtrField<v1::LayerSpec>;

bool AnyOf(const Layers& layers) {
  return std::any_of(layers.begin(), layers.end(), [](const v1::LayerSpec& layer) {
    return layer.batch_norm().across_workers() || AnyOf(layer.residual().body()) ||
           AnyOf(layer.residual().shortcut());
  });
}

}  // namespace

bool LooksAcrossWorkers(const v1::ModelSpec& model) {
  return model.named().batch_norm_across_workers() || AnyOf(model.layers());
}

absl::Status CheckAcrossWorkers(const v1::JobFile& file, const Field& root) {
  if (!LooksAcrossWorkers(file.model())) return absl::OkStatus();
  const auto refuse = [](const Field& field, absl::string_view why) {
    return field.Error(
        absl::StrCat(why, ", but batch_norm.across_workers needs all workers in each step"));
  };
  const auto kind = file.consistency().kind_case();
  if (kind != v1::Consistency::KIND_NOT_SET && kind != v1::Consistency::kSync) {
    return refuse(root.Member("consistency"), "is not sync");
  }
  if (file.has_elastic()) return refuse(root.Member("elastic"), "is given");
  if (file.micro_batches() > 1) {
    return refuse(root.Member("micro_batches"), absl::StrCat("is ", file.micro_batches()));
  }
  return absl::OkStatus();
}

}  // namespace syncgrads
