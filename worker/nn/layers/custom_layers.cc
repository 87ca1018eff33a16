#include "worker/nn/layers/custom_layers.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace syncgrads {

template <>
const std::map<std::string, CustomLayers::Factory<float>>& CustomLayers::FactoriesOf<float>()
    const {
  return floats_;
}

template <>
const std::map<std::string, CustomLayers::Factory<double>>& CustomLayers::FactoriesOf<double>()
    const {
  return doubles_;
}

template <typename T>
absl::StatusOr<std::unique_ptr<Layer<T>>> CustomLayers::Create(const std::string& kind,
                                                               const CustomLayerOptions& options,
                                                               Device<T>& device) const {
  const auto& factories = FactoriesOf<T>();
  const auto it = factories.find(kind);
  if (it != factories.end()) return it->second(options, device);
  const std::string known = absl::StrJoin(
      factories, ", ", [](std::string* out, const auto& one) { out->append(one.first); });
  return absl::InvalidArgumentError(
      absl::StrCat("layer \"", options.name, "\": unknown custom layer \"", kind, "\"; ",
                   known.empty() ? "this program has no custom layers"
                                 : absl::StrCat("this program has ", known)));
}

const CustomLayers& NoCustomLayers() {
  static const auto& none = *new CustomLayers();
  return none;
}

template absl::StatusOr<std::unique_ptr<Layer<float>>> CustomLayers::Create(
    const std::string&, const CustomLayerOptions&, Device<float>&) const;
template absl::StatusOr<std::unique_ptr<Layer<double>>> CustomLayers::Create(
    const std::string&, const CustomLayerOptions&, Device<double>&) const;

}  // namespace syncgrads
