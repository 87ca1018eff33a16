// Matrices of activations in a device's memory.

#ifndef SYNCGRADS_WORKER_NN_DEVICE_MATRIX_H_
#define SYNCGRADS_WORKER_NN_DEVICE_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "worker/nn/device.h"
#include "worker/nn/device_array.h"
#include "worker/nn/matrix.h"

namespace syncgrads {

// A row-major matrix of activations, or of gradients by them, without gaps between rows. T is the
// type of the host's numbers. The device stores them in a type that only the device knows: see
// Stored. The matrix owns its memory, unless Bring() has made it refer to the host's matrix.
//
// Not thread-safe.
template <typename T>
class DeviceMatrix {
 public:
  using View = Eigen::Map<Matrix<T>>;
  using ConstView = Eigen::Map<const Matrix<T>>;

  // An empty matrix. `device` must outlive it.
  explicit DeviceMatrix(Device<T>& device)
      : device_(&device), stored_(device.memory()), numbers_(device.memory()) {}
  DeviceMatrix(Device<T>& device, int64_t rows, int64_t columns) : DeviceMatrix(device) {
    Resize(rows, columns);
  }

  int64_t rows() const { return rows_; }
  int64_t cols() const { return columns_; }
  int64_t size() const { return rows_ * columns_; }
  size_t bytes() const { return static_cast<size_t>(size() * device_->stored_bytes()); }
  // Addresses in the device's memory.
  Stored<T>* data() { return reinterpret_cast<Stored<T>*>(stored_.data()); }
  const Stored<T>* data() const { return reinterpret_cast<const Stored<T>*>(stored_.data()); }

  // Sets the size; the contents are unspecified afterwards. A smaller size keeps the memory. If
  // the device has no room, data() is null and DeviceMemory::status() reports it.
  void Resize(int64_t rows, int64_t columns) {
    rows_ = rows;
    columns_ = columns;
    stored_.Resize(1, static_cast<int64_t>(bytes()));
  }

  // Queues a copy of `host` into this matrix. If the device's memory is the host's, the matrix
  // refers to the memory of `host` instead, which must stay valid until this matrix gets other
  // contents.
  void Bring(const Matrix<T>& host);
  // Queues a copy of `host` into this matrix; the caller may change `host` after the call.
  void Upload(const Matrix<T>& host);
  // The two halves of Bring, for a device whose memory is not the host's: UploadBeside runs in
  // parallel with the caller and with what is queued (see DeviceMemory::UploadBeside, also for how
  // long `host` must not change), and Arrive queues the rest. The contents are unspecified in
  // between.
  void UploadBeside(const Matrix<T>& host);
  void Arrive();

  // Queues a copy of `other` into this matrix.
  void CopyFrom(const DeviceMatrix& other) {
    Resize(other.rows(), other.cols());
    device_->memory().Copy(other.data(), bytes(), data());
  }

  // Views for Eigen's operations. The device's memory must be the host's.
  View host() { return View(reinterpret_cast<T*>(data()), rows_, columns_); }
  ConstView host() const { return ConstView(reinterpret_cast<const T*>(data()), rows_, columns_); }

  // Copies the matrix to the host and waits for it. Errors: those of DeviceMemory::DownloadNow.
  absl::Status Fetch(Matrix<T>& to) const;

 private:
  // Whether the device stores numbers as T.
  bool IsPlain() const { return device_->stored_bytes() == int64_t{sizeof(T)}; }
  // Resizes the matrix and returns the device's memory for numbers from the host.
  T* RoomFor(const Matrix<T>& host) {
    Resize(host.rows(), host.cols());
    if (IsPlain()) return reinterpret_cast<T*>(data());
    numbers_.Resize(host.rows(), host.cols());
    return numbers_.data();
  }

  Device<T>* device_;
  DeviceArray<std::byte> stored_;
  DeviceArray<T> numbers_;  // on their way from the host; not used if IsPlain()
  int64_t rows_ = 0;
  int64_t columns_ = 0;
};

template <typename T>
void DeviceMatrix<T>::Bring(const Matrix<T>& host) {
  if (device_->memory().is_host()) {
    rows_ = host.rows();
    columns_ = host.cols();
    auto* const bytes_there = reinterpret_cast<std::byte*>(const_cast<T*>(host.data()));
    stored_.Refer(bytes_there, 1, static_cast<int64_t>(bytes()));
    return;
  }
  Upload(host);
}

template <typename T>
void DeviceMatrix<T>::Upload(const Matrix<T>& host) {
  T* const room = RoomFor(host);
  device_->memory().Upload(host.data(), host.size() * sizeof(T), room);
  Arrive();
}

template <typename T>
void DeviceMatrix<T>::UploadBeside(const Matrix<T>& host) {
  T* const room = RoomFor(host);
  device_->memory().UploadBeside(host.data(), host.size() * sizeof(T), room);
}

template <typename T>
void DeviceMatrix<T>::Arrive() {
  if (!IsPlain()) device_->Store(size(), numbers_.data(), data());
}

template <typename T>
absl::Status DeviceMatrix<T>::Fetch(Matrix<T>& to) const {
  to.resize(rows_, columns_);
  if (size() == 0) return absl::OkStatus();
  DeviceMemory& memory = device_->memory();
  if (IsPlain()) return memory.DownloadNow(data(), bytes(), to.data());
  DeviceArray<T> numbers(memory, rows_, columns_);
  device_->Load(size(), data(), numbers.data());
  return numbers.Fetch(to);
}

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_DEVICE_MATRIX_H_
