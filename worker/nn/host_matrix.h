// Matrices in host memory that a device copies from and to.

#ifndef SYNCGRADS_WORKER_NN_HOST_MATRIX_H_
#define SYNCGRADS_WORKER_NN_HOST_MATRIX_H_

#include <cstdint>
#include <new>
#include <utility>

#include "worker/nn/device_memory.h"
#include "worker/nn/matrix.h"

namespace syncgrads {

// A matrix of fixed size in host memory. It owns pinned memory, or refers to memory of the
// caller. Moving another HostMatrix into it takes over that matrix's memory; assigning any other
// matrix of its size copies the numbers.
//
// Not thread-safe.
template <typename T>
class HostMatrix : public Eigen::Map<Matrix<T>> {
 public:
  using Map = Eigen::Map<Matrix<T>>;

  // An empty matrix.
  HostMatrix() : Map(nullptr, 0, 0) {}
  // A matrix of zeros in pinned memory, which it owns. `memory` must outlive it.
  HostMatrix(DeviceMemory& memory, int64_t rows, int64_t columns)
      : Map(static_cast<T*>(memory.AllocatePinned(rows * columns * sizeof(T))), rows, columns),
        memory_(&memory) {
    this->setZero();
  }
  // A matrix in the caller's memory, which must outlive it. The numbers in that memory stay.
  HostMatrix(T* data, int64_t rows, int64_t columns) : Map(data, rows, columns) {}
  ~HostMatrix() {
    if (memory_ != nullptr) memory_->FreePinned(this->data());
  }
  HostMatrix(HostMatrix&& other) noexcept : HostMatrix() { *this = std::move(other); }
  HostMatrix& operator=(HostMatrix&& other) noexcept {
    const Map theirs = other;
    other.Become(*this);
    Become(theirs);
    std::swap(memory_, other.memory_);
    return *this;
  }
  using Map::operator=;

 private:
  // Makes this Map refer to other memory. Eigen's way to do that is to construct it again.
  void Become(Map map) { new (static_cast<Map*>(this)) Map(map.data(), map.rows(), map.cols()); }

  DeviceMemory* memory_ = nullptr;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_HOST_MATRIX_H_
