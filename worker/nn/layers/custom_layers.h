// Layers that a program registers in addition to the built-in layers of job files.

#ifndef SYNCGRADS_WORKER_NN_LAYERS_CUSTOM_LAYERS_H_
#define SYNCGRADS_WORKER_NN_LAYERS_CUSTOM_LAYERS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/nn/layers/layer.h"

namespace syncgrads {

// The options of a custom layer in a job file.
struct CustomLayerOptions {
  std::string name;
  Shape input;
  std::map<std::string, double> settings;
};

// The registered layer kinds. All kinds must be added before several threads use the object;
// after that it is thread-safe.
class CustomLayers {
 public:
  template <typename T>
  using Factory = std::function<absl::StatusOr<std::unique_ptr<Layer<T>>>(
      const CustomLayerOptions& options, Device<T>& device)>;

  // Registers a layer, which job files then select with `custom { kind: "KIND" }`. `L<T>` must
  // be derived from Layer<T> and have
  //   static absl::StatusOr<std::unique_ptr<Layer<T>>> Create(
  //       const CustomLayerOptions& options, Device<T>& device);
  // The errors of Create must contain options.name. If `kind` is registered already, the call
  // does nothing.
  template <template <typename> class L>
  void Add(const std::string& kind) {
    floats_.emplace(kind, L<float>::Create);
    doubles_.emplace(kind, L<double>::Create);
  }

  // Creates a layer.
  //
  // Errors:
  //   InvalidArgument  `kind` is not registered; names the registered kinds
  //   others           those of the layer's Create
  template <typename T>
  absl::StatusOr<std::unique_ptr<Layer<T>>> Create(const std::string& kind,
                                                   const CustomLayerOptions& options,
                                                   Device<T>& device) const;

 private:
  template <typename T>
  const std::map<std::string, Factory<T>>& FactoriesOf() const;

  std::map<std::string, Factory<float>> floats_;
  std::map<std::string, Factory<double>> doubles_;
};

// An empty registry, for programs without custom layers.
const CustomLayers& NoCustomLayers();

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_LAYERS_CUSTOM_LAYERS_H_
