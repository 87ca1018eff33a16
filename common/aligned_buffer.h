// Memory for numbers, aligned for every instruction set.

#ifndef SYNCGRADS_COMMON_ALIGNED_BUFFER_H_
#define SYNCGRADS_COMMON_ALIGNED_BUFFER_H_

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#include "absl/types/span.h"

namespace syncgrads {

// Moveable. Its contents are not initialised. Memory of its own is aligned.
class AlignedBuffer {
 public:
  static constexpr size_t kAlignment = 64;

  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    // aligned_alloc wants a multiple of the alignment.
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
    if (memory_ == nullptr) throw std::bad_alloc();
  }

  // Memory of somebody else, which must outlive the buffer.
  static AlignedBuffer Borrow(std::byte* memory, size_t bytes) {
    AlignedBuffer buffer;
    buffer.memory_ = {memory, Free{.borrowed = true}};
    buffer.bytes_ = bytes;
    return buffer;
  }

  std::byte* data() { return memory_.get(); }
  const std::byte* data() const { return memory_.get(); }
  size_t size() const { return bytes_; }
  absl::Span<const std::byte> span() const { return {memory_.get(), bytes_}; }

 private:
  struct Free {
    bool borrowed;  // false by default: unique_ptr value-initialises its deleter
    void operator()(std::byte* memory) const {
      if (!borrowed) std::free(memory);
    }
  };

  std::unique_ptr<std::byte, Free> memory_;
  size_t bytes_ = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_ALIGNED_BUFFER_H_
