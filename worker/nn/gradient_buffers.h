// Memory for the gradients between the layers of a model.

#ifndef SYNCGRADS_WORKER_NN_GRADIENT_BUFFERS_H_
#define SYNCGRADS_WORKER_NN_GRADIENT_BUFFERS_H_

#include <utility>
#include <vector>

#include "worker/nn/device.h"
#include "worker/nn/device_matrix.h"

namespace syncgrads {

// Device memory that all chains of a model share in a backward pass. There are as many buffers as
// are taken at the same time: two for a chain of layers, and a third one inside a residual block.
// Each buffer grows to the largest gradient that it has held.
//
// Not thread-safe.
template <typename T>
class GradientBuffers {
 public:
  // `device` must outlive this object.
  explicit GradientBuffers(Device<T>& device) : device_(device) {}

  // A buffer that is taken as long as this object exists. Its size and contents are unspecified at
  // first.
  class Buffer {
   public:
    // `buffers` must outlive this object.
    explicit Buffer(GradientBuffers& buffers) : buffers_(buffers), matrix_(buffers.Take()) {}
    ~Buffer() { buffers_.free_.push_back(std::move(matrix_)); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    DeviceMatrix<T>& matrix() { return matrix_; }

   private:
    GradientBuffers& buffers_;
    DeviceMatrix<T> matrix_;
  };

 private:
  DeviceMatrix<T> Take() {
    if (free_.empty()) return DeviceMatrix<T>(device_);
    DeviceMatrix<T> taken = std::move(free_.back());
    free_.pop_back();
    return taken;
  }

  Device<T>& device_;
  std::vector<DeviceMatrix<T>> free_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_GRADIENT_BUFFERS_H_
