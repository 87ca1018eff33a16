// Arrays in a device's memory.

#ifndef SYNCGRADS_WORKER_NN_DEVICE_ARRAY_H_
#define SYNCGRADS_WORKER_NN_DEVICE_ARRAY_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "worker/nn/device_memory.h"
#include "worker/nn/matrix.h"

namespace syncgrads {

// A row-major array of T with rows and columns in a device's memory, without gaps between rows. It
// owns its memory, unless Refer() has made it refer to other memory.
//
// Not thread-safe.
template <typename T>
class DeviceArray {
 public:
  // An empty array that must not be resized, but can be assigned to.
  DeviceArray() = default;
  // An empty array. `memory` must outlive it.
  explicit DeviceArray(DeviceMemory& memory) : memory_(&memory) {}
  DeviceArray(DeviceMemory& memory, int64_t rows, int64_t columns) : memory_(&memory) {
    Resize(rows, columns);
  }
  ~DeviceArray() { Release(); }
  DeviceArray(DeviceArray&& other) noexcept { *this = std::move(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(capacity_, other.capacity_);
    std::swap(rows_, other.rows_);
    std::swap(columns_, other.columns_);
    return *this;
  }

  int64_t rows() const { return rows_; }
  int64_t cols() const { return columns_; }
  int64_t size() const { return rows_ * columns_; }
  size_t bytes() const { return static_cast<size_t>(size()) * sizeof(T); }
  // Addresses in the device's memory.
  T* data() { return data_; }
  const T* data() const { return data_; }

  // Sets the size; the contents are unspecified afterwards. A smaller size keeps the memory. If
  // the device has no room, data() is null and DeviceMemory::status() reports it.
  void Resize(int64_t rows, int64_t columns);

  // Refers to memory of the device instead, which must outlive its use.
  void Refer(T* data, int64_t rows, int64_t columns) {
    Release();
    data_ = data;
    rows_ = rows;
    columns_ = columns;
  }

  // Copies the array to the host and waits for it. Errors: those of DeviceMemory::DownloadNow.
  absl::Status Fetch(Matrix<T>& to) const;

 private:
  void Release() {
    if (capacity_ > 0) memory_->Free(data_);
    data_ = nullptr;
    capacity_ = 0;
  }

  DeviceMemory* memory_ = nullptr;
  T* data_ = nullptr;
  int64_t capacity_ = 0;  // in elements; 0 if this object does not own data_
  int64_t rows_ = 0;
  int64_t columns_ = 0;
};

template <typename T>
void DeviceArray<T>::Resize(int64_t rows, int64_t columns) {
  const int64_t size = rows * columns;
  if (size > capacity_ || data_ == nullptr) {
    Release();
    data_ = size == 0 ? nullptr : static_cast<T*>(memory_->Allocate(size * sizeof(T)));
    capacity_ = data_ == nullptr ? 0 : size;
  }
  rows_ = rows;
  columns_ = columns;
}

template <typename T>
absl::Status DeviceArray<T>::Fetch(Matrix<T>& to) const {
  to.resize(rows_, columns_);
  if (size() == 0) return absl::OkStatus();
  return memory_->DownloadNow(data_, bytes(), to.data());
}

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_DEVICE_ARRAY_H_
