// A named array of a model: what training changes, or what it needs besides.

#ifndef SYNCGRADS_WORKER_NN_PARAMETER_H_
#define SYNCGRADS_WORKER_NN_PARAMETER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/dtype.h"
#include "common/layout.h"
#include "worker/nn/device_matrix.h"
#include "worker/nn/host_matrix.h"

namespace syncgrads {

// An array twice: on the host, where files and the service read and write it, and on
// the device, where layers and most optimizers do. Where the device's memory is the
// host's, both are one. Neither follows the other by itself.
//
// Not thread-safe.
template <typename T>
struct Parameter {
  // "dense1/kernel"
  std::string name;
  // As it is registered and written to files; `values` has as many elements, in
  // row-major order.
  std::vector<int64_t> shape;
  // On the host.
  HostMatrix<T> values;
  // Of the loss of the last batch. Empty for what is not trained.
  HostMatrix<T> gradient;
  // Whether the l2 penalty counts it.
  bool penalised = false;

  // A vector of `count` numbers, or an array of `shape` as a matrix with a row for
  // each index of its first dimension; of zeros on the host. Without `trained`, no
  // gradient. `memory` outlives the parameter.
  static Parameter Vector(DeviceMemory& memory, std::string name, int64_t count,
                          bool trained = true) {
    return Make(memory, std::move(name), {count}, 1, count, trained);
  }
  static Parameter Array(DeviceMemory& memory, std::string name, std::vector<int64_t> shape) {
    int64_t columns = 1;
    for (size_t i = 1; i < shape.size(); ++i) columns *= shape[i];
    const int64_t rows = shape[0];
    Parameter parameter = Make(memory, std::move(name), std::move(shape), rows, columns, true);
    parameter.penalised = true;
    return parameter;
  }

  // Moves the gradient to pinned memory that outlives its use; it is what that holds.
  void PlaceGradient(T* where) {
    gradient = HostMatrix<T>(where, gradient.rows(), gradient.cols());
  }

  TensorSpec spec() const { return {name, DTypeOf<T>::value, shape}; }
  size_t bytes() const { return values.size() * sizeof(T); }

  // In the device's memory.
  T* device_values() { return mirror_ == nullptr ? values.data() : mirror_->values.data(); }
  T* device_gradient() { return mirror_ == nullptr ? gradient.data() : mirror_->gradient.data(); }

  // From the host's values to the device's, queued; see DeviceMemory::UploadPinned.
  void Upload() {
    if (mirror_ != nullptr) mirror_->memory.UploadPinned(values.data(), bytes(), device_values());
  }
  // Likewise the gradient.
  void UploadGradient() {
    if (mirror_ != nullptr) {
      mirror_->memory.UploadPinned(gradient.data(), bytes(), device_gradient());
    }
  }
  // From the device's gradient, or values, to the host's.
  DeviceMemory::Download QueueGradient() {
    if (mirror_ == nullptr) return {};
    return mirror_->memory.QueueDownload(device_gradient(), bytes(), gradient.data());
  }
  DeviceMemory::Download QueueValues() {
    if (mirror_ == nullptr) return {};
    return mirror_->memory.QueueDownload(device_values(), bytes(), values.data());
  }
  // From the device's values to the host's. Errors: as DeviceMemory::DownloadNow.
  absl::Status Fetch() {
    if (mirror_ == nullptr) return absl::OkStatus();
    return mirror_->memory.DownloadNow(device_values(), bytes(), values.data());
  }

 private:
  struct Mirror {
    DeviceMemory& memory;
    DeviceMatrix<T> values;
    DeviceMatrix<T> gradient;
  };

  static Parameter Make(DeviceMemory& memory, std::string name, std::vector<int64_t> shape,
                        int64_t rows, int64_t columns, bool trained) {
    Parameter parameter;
    parameter.name = std::move(name);
    parameter.shape = std::move(shape);
    parameter.values = HostMatrix<T>(memory, rows, columns);
    if (trained) parameter.gradient = HostMatrix<T>(memory, rows, columns);
    if (memory.is_host()) return parameter;
    parameter.mirror_ = std::make_unique<Mirror>(
        Mirror{memory, DeviceMatrix<T>(memory, rows, columns),
               trained ? DeviceMatrix<T>(memory, rows, columns) : DeviceMatrix<T>()});
    return parameter;
  }

  // Null where the device's memory is the host's.
  std::unique_ptr<Mirror> mirror_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_PARAMETER_H_
