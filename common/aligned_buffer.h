// Aligned memory for arrays of numbers.

#ifndef SYNCGRADS_COMMON_ALIGNED_BUFFER_H_
#define SYNCGRADS_COMMON_ALIGNED_BUFFER_H_

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#include "absl/types/span.h"

namespace syncgrads {

// An array of bytes that either owns its memory, which is then aligned to kAlignment for every
// instruction set, or borrows it. New contents are not initialised. Moveable. Not thread-safe.
class AlignedBuffer {
 public:
  static constexpr size_t kAlignment = 64;

  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    // std::aligned_alloc requires a size that is a multiple of the alignment.
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
    if (memory_ == nullptr) throw std::bad_alloc();
  }

  // Wraps `memory` without owning it. `memory` must outlive the buffer and keeps its own alignment.
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
