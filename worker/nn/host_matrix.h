// Matrices in memory of the host that a device copies from and to.

#ifndef SYNCGRADS_WORKER_NN_HOST_MATRIX_H_
#define SYNCGRADS_WORKER_NN_HOST_MATRIX_H_

#include <cstdint>
#include <new>
#include <utility>

#include "worker/nn/device_memory.h"
#include "worker/nn/matrix.h"

namespace syncgrads {

// Its size is fixed. Assigned from another HostMatrix, by moving only, it takes the
// other's memory; from other matrices of its size, their numbers.
//
// Not thread-safe.
template <typename T>
class HostMatrix : public Eigen::Map<Matrix<T>> {
 public:
  using Map = Eigen::Map<Matrix<T>>;

  // Empty.
  HostMatrix() : Map(nullptr, 0, 0) {}
  // Of zeros. `memory` outlives the matrix.
  HostMatrix(DeviceMemory& memory, int64_t rows, int64_t columns)
      : Map(static_cast<T*>(memory.AllocatePinned(rows * columns * sizeof(T))), rows, columns),
        memory_(&memory) {
    this->setZero();
  }
  // In memory that outlives the matrix, with the numbers that are there.
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
  // A Map is made to look elsewhere by making it anew.
  void Become(Map map) { new (static_cast<Map*>(this)) Map(map.data(), map.rows(), map.cols()); }

  DeviceMemory* memory_ = nullptr;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_HOST_MATRIX_H_
