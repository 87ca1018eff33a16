// Matrices in a device's memory.

#ifndef SYNCGRADS_WORKER_NN_DEVICE_MATRIX_H_
#define SYNCGRADS_WORKER_NN_DEVICE_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "worker/nn/device_memory.h"
#include "worker/nn/matrix.h"

namespace syncgrads {

// A row-major matrix of T in a device's memory, without gaps between rows. It owns its memory,
// unless Bring() has made it refer to the host's matrix.
//
// Not thread-safe.
template <typename T>
class DeviceMatrix {
 public:
  using View = Eigen::Map<Matrix<T>>;
  using ConstView = Eigen::Map<const Matrix<T>>;

  // An empty matrix that must not be resized, but can be assigned to.
  DeviceMatrix() = default;
  // An empty matrix. `memory` must outlive it.
  explicit DeviceMatrix(DeviceMemory& memory) : memory_(&memory) {}
  DeviceMatrix(DeviceMemory& memory, int64_t rows, int64_t columns) : memory_(&memory) {
    Resize(rows, columns);
  }
  ~DeviceMatrix() { Release(); }
  DeviceMatrix(DeviceMatrix&& other) noexcept { *this = std::move(other); }
  DeviceMatrix& operator=(DeviceMatrix&& other) noexcept {
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

  // Queues a copy of `host` into this matrix. If the device's memory is the host's, the matrix
  // refers to the memory of `host` instead, which must stay valid until this matrix gets other
  // contents.
  void Bring(const Matrix<T>& host);

  // Queues a copy of `other` into this matrix.
  void CopyFrom(const DeviceMatrix& other);

  // Views for Eigen's operations. The device's memory must be the host's.
  View host() { return View(data_, rows_, columns_); }
  ConstView host() const { return ConstView(data_, rows_, columns_); }

  // Copies the matrix to the host and waits for it. Errors: those of DeviceMemory::DownloadNow.
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
void DeviceMatrix<T>::Resize(int64_t rows, int64_t columns) {
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
void DeviceMatrix<T>::Bring(const Matrix<T>& host) {
  if (memory_->is_host()) {
    Release();
    data_ = const_cast<T*>(host.data());
    rows_ = host.rows();
    columns_ = host.cols();
    return;
  }
  Resize(host.rows(), host.cols());
  memory_->Upload(host.data(), bytes(), data_);
}

template <typename T>
void DeviceMatrix<T>::CopyFrom(const DeviceMatrix& other) {
  Resize(other.rows(), other.cols());
  memory_->Copy(other.data(), bytes(), data_);
}

template <typename T>
absl::Status DeviceMatrix<T>::Fetch(Matrix<T>& to) const {
  to.resize(rows_, columns_);
  if (size() == 0) return absl::OkStatus();
  return memory_->DownloadNow(data_, bytes(), to.data());
}

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_DEVICE_MATRIX_H_
