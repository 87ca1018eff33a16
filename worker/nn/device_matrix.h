// Matrices in a device's memory.

#ifndef SYNCGRADS_WORKER_NN_DEVICE_MATRIX_H_
#define SYNCGRADS_WORKER_NN_DEVICE_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "worker/nn/device_memory.h"
#include "worker/nn/matrix.h"

namespace syncgrads {

// A matrix of T, by rows, without a gap between them.
//
// Not thread-safe.
template <typename T>
class DeviceMatrix {
 public:
  using View = Eigen::Map<Matrix<T>>;
  using ConstView = Eigen::Map<const Matrix<T>>;

  // Empty, and it stays so.
  DeviceMatrix() = default;
  // Empty. `memory` outlives the matrix.
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
  // In the device's memory.
  T* data() { return data_; }
  const T* data() const { return data_; }

  // The contents are unspecified afterwards. Memory is kept when the matrix gets
  // smaller. If there is no room, data() is null and the device's status says so.
  void Resize(int64_t rows, int64_t columns);

  // Becomes a queued copy of `host`, or, on a device whose memory is the host's,
  // `host` itself, which must then stay until the next call.
  void Bring(const Matrix<T>& host);

  // A queued copy of `other`.
  void CopyFrom(const DeviceMatrix& other);

  // The matrix itself, for Eigen's operations; only on a device whose memory is the
  // host's.
  View host() { return View(data_, rows_, columns_); }
  ConstView host() const { return ConstView(data_, rows_, columns_); }

  // Waits for it. Errors: as DeviceMemory::DownloadNow.
  absl::Status Fetch(Matrix<T>& to) const;

 private:
  void Release() {
    if (capacity_ > 0) memory_->Free(data_);
    data_ = nullptr;
    capacity_ = 0;
  }

  DeviceMemory* memory_ = nullptr;
  T* data_ = nullptr;
  int64_t capacity_ = 0;  // 0 of memory that is another's
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
