// Layers that a program adds to those that job files can name.

#ifndef SYNCGRADS_WORKER_NN_CUSTOM_LAYERS_H_
#define SYNCGRADS_WORKER_NN_CUSTOM_LAYERS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/nn/layer.h"

namespace syncgrads {

// What a job file says of a layer.
struct CustomLayerOptions {
  std::string name;
  Shape input;
  std::map<std::string, double> settings;
};

// Not thread-safe while layers are added.
class CustomLayers {
 public:
  template <typename T>
  using Factory = std::function<absl::StatusOr<std::unique_ptr<Layer<T>>>(
      const CustomLayerOptions& options, Device<T>& device)>;

  // Job files can then say `custom { kind: "KIND" }`. `L<T>` is derived from
  // Layer<T> and has
  //   static absl::StatusOr<std::unique_ptr<Layer<T>>> Create(
  //       const CustomLayerOptions& options, Device<T>& device);
  // whose errors name options.name. A kind is added once; the first one stays.
  template <template <typename> class L>
  void Add(const std::string& kind) {
    floats_.emplace(kind, L<float>::Create);
    doubles_.emplace(kind, L<double>::Create);
  }

  // InvalidArgument if there is no such kind, naming those there are; or as the
  // layer's own Create.
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

// Those of a program that adds none.
const CustomLayers& NoCustomLayers();

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_CUSTOM_LAYERS_H_
