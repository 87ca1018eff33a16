// Inputs of a model.

#ifndef SYNCGRADS_WORKER_NN_MODELS_MODEL_INPUT_H_
#define SYNCGRADS_WORKER_NN_MODELS_MODEL_INPUT_H_

#include <cstddef>
#include <variant>
#include <vector>

#include "worker/nn/device.h"
#include "worker/nn/device_array.h"
#include "worker/nn/device_matrix.h"
#include "worker/nn/device_memory.h"
#include "worker/nn/matrix.h"
#include "worker/nn/pixels.h"

namespace syncgrads {

// A batch on the host, one row for each sample: numbers, or images that the device converts to
// numbers. Refers to memory of the caller.
template <typename T>
class ModelInput {
 public:
  // Implicit, so that either can be passed where an input is expected.
  ModelInput(const Matrix<T>& numbers) : batch_(&numbers) {}  // NOLINT
  ModelInput(const Pixels<T>& pixels) : batch_(pixels) {}     // NOLINT

  // Null if the batch has pixels.
  const Matrix<T>* numbers() const {
    const auto* numbers = std::get_if<const Matrix<T>*>(&batch_);
    return numbers == nullptr ? nullptr : *numbers;
  }
  // Null if the batch has numbers.
  const Pixels<T>* pixels() const { return std::get_if<Pixels<T>>(&batch_); }

 private:
  std::variant<const Matrix<T>*, Pixels<T>> batch_;
};

// A model's input in the device's memory.
//
// Not thread-safe.
template <typename T>
class DeviceInput {
 public:
  // An empty input. `device` must outlive it.
  explicit DeviceInput(Device<T>& device)
      : device_(&device),
        matrix_(device),
        pixels_(device.memory()),
        device_numbers_(device.memory()) {}

  // As the functions of DeviceMatrix with these names.
  void Bring(const ModelInput<T>& input);
  void UploadBeside(const ModelInput<T>& input);
  void Arrive();

  const DeviceMatrix<T>& matrix() const { return matrix_; }

 private:
  using Upload = void (DeviceMemory::*)(const void* host, size_t bytes, void* to);
  void QueueUpload(const Pixels<T>& pixels, Upload upload);

  Device<T>* device_;
  DeviceMatrix<T> matrix_;
  bool has_pixels_ = false;
  DeviceArray<unsigned char> pixels_;  // on their way from the host
  // The numbers that pixels stand for, in device_numbers_ too. They are the same in all batches.
  std::vector<T> numbers_;
  DeviceArray<T> device_numbers_;
};

extern template class DeviceInput<float>;
extern template class DeviceInput<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_MODELS_MODEL_INPUT_H_
