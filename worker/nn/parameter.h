// A named array of a model: a parameter that training changes, or a state.

#ifndef SYNCGRADS_WORKER_NN_PARAMETER_H_
#define SYNCGRADS_WORKER_NN_PARAMETER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/dtype.h"
#include "common/group/layout.h"
#include "worker/nn/device_array.h"
#include "worker/nn/host_matrix.h"

namespace syncgrads {

// Returns `elements`, rounded up so that an array of T behind them begins at a multiple of 64
// bytes, as memory that was allocated for it alone would.
template <typename T>
constexpr int64_t AlignedSize(int64_t elements) {
  constexpr int64_t kUnit = 64 / sizeof(T);
  return (elements + kUnit - 1) / kUnit * kUnit;
}

// A named array with two copies. The host's copy is for files and for the exchange with servers;
// the device's copy is for layers and most optimizers. If the device's memory is the host's,
// both are the same. Neither copy follows the other by itself: see Upload, Fetch and the Queue
// functions.
template <typename T>
struct Parameter {
  // For example "dense1/kernel".
  std::string name;
  // The shape with which the array is registered and written to files. `values` has as many
  // elements, in row-major order.
  std::vector<int64_t> shape;
  // The host's copy.
  HostMatrix<T> values;
  // The host's copy of the gradient for the last batch. Empty if the array is not trained.
  HostMatrix<T> gradient;
  // Whether the l2 penalty includes this array.
  bool penalised = false;
  // Whether the array is a parameter that training does not change. Its gradient is unspecified.
  bool frozen = false;

  // Make an array of zeros on the host. Vector: `count` numbers in one row; without `trained` it
  // has no gradient. Array: a matrix of `shape` with a row for each index of the first
  // dimension, included in the l2 penalty. `memory` must outlive the parameter.
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

  // Moves both copies of the values to other memory, and of the gradient if there is one; each
  // pointer is of memory that outlives the parameter, the host's of pinned memory. The host's
  // values are copied; everything else becomes what that memory holds. If the device's memory is
  // the host's, the device's pointers are ignored.
  void MoveTo(T* host_values, T* device_values, T* host_gradient, T* device_gradient) {
    HostMatrix<T> moved(host_values, values.rows(), values.cols());
    moved = static_cast<const Eigen::Map<Matrix<T>>&>(values);
    values = std::move(moved);
    if (gradient.size() != 0) PlaceGradient(host_gradient);
    if (mirror_ == nullptr) return;
    mirror_->values = DeviceArray<T>();
    mirror_->gradient = DeviceArray<T>();
    mirror_->at_values = device_values;
    mirror_->at_gradient = device_gradient;
  }
  // Moves the host's gradient to pinned memory, which must outlive its use. The gradient becomes
  // what that memory holds; nothing is copied.
  void PlaceGradient(T* where) {
    gradient = HostMatrix<T>(where, gradient.rows(), gradient.cols());
  }

  TensorSpec spec() const { return {name, DTypeOf<T>::value, shape}; }
  size_t bytes() const { return values.size() * sizeof(T); }

  // Addresses in the device's memory.
  T* device_values() { return mirror_ == nullptr ? values.data() : mirror_->at_values; }
  T* device_gradient() { return mirror_ == nullptr ? gradient.data() : mirror_->at_gradient; }

  // Queues a copy of the host's values to the device. The values must not change until it has
  // ended; see DeviceMemory::UploadPinned.
  void Upload() {
    if (mirror_ != nullptr) mirror_->memory.UploadPinned(values.data(), bytes(), device_values());
  }
  // Queues a copy of the host's gradient to the device, as Upload does for the values.
  void UploadGradient() {
    if (mirror_ != nullptr) {
      mirror_->memory.UploadPinned(gradient.data(), bytes(), device_gradient());
    }
  }
  // Queue a copy of the device's gradient, or values, to the host.
  DeviceMemory::Download QueueGradient() {
    if (mirror_ == nullptr) return {};
    return mirror_->memory.QueueDownload(device_gradient(), bytes(), gradient.data());
  }
  DeviceMemory::Download QueueValues() {
    if (mirror_ == nullptr) return {};
    return mirror_->memory.QueueDownload(device_values(), bytes(), values.data());
  }
  // Copies the device's values to the host and waits for it. Errors: those of
  // DeviceMemory::DownloadNow.
  absl::Status Fetch() {
    if (mirror_ == nullptr) return absl::OkStatus();
    return mirror_->memory.DownloadNow(device_values(), bytes(), values.data());
  }

 private:
  struct Mirror {
    DeviceMemory& memory;
    // The device's memory, until MoveTo.
    DeviceArray<T> values;
    DeviceArray<T> gradient;
    T* at_values;
    T* at_gradient;
  };

  static Parameter Make(DeviceMemory& memory, std::string name, std::vector<int64_t> shape,
                        int64_t rows, int64_t columns, bool trained) {
    Parameter parameter;
    parameter.name = std::move(name);
    parameter.shape = std::move(shape);
    parameter.values = HostMatrix<T>(memory, rows, columns);
    if (trained) parameter.gradient = HostMatrix<T>(memory, rows, columns);
    if (memory.is_host()) return parameter;
    parameter.mirror_ = std::make_unique<Mirror>(Mirror{
        memory, DeviceArray<T>(memory, rows, columns),
        trained ? DeviceArray<T>(memory, rows, columns) : DeviceArray<T>(), nullptr, nullptr});
    parameter.mirror_->at_values = parameter.mirror_->values.data();
    parameter.mirror_->at_gradient = parameter.mirror_->gradient.data();
    return parameter;
  }

  // The device's copy. Null if the device's memory is the host's.
  std::unique_ptr<Mirror> mirror_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_PARAMETER_H_
