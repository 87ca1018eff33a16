// Reads a payload that lies in several pieces.

#ifndef SYNCGRADS_COMMON_WIRE_PIECE_CURSOR_H_
#define SYNCGRADS_COMMON_WIRE_PIECE_CURSOR_H_

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "common/wire/frame.h"

namespace syncgrads {

// A read position in a payload. The pieces must outlive it. Not thread-safe.
class PieceCursor {
 public:
  explicit PieceCursor(const Pieces* pieces) : pieces_(pieces) { SkipEmpty(); }

  // Returns how many bytes from the position on lie in one place; 0 at the end of the payload.
  size_t contiguous() const {
    return piece_ < pieces_->size() ? (*pieces_)[piece_].size() - offset_ : 0;
  }
  const std::byte* data() const { return (*pieces_)[piece_].data() + offset_; }

  // Moves the position by `bytes`, which is at most contiguous().
  void Advance(size_t bytes) {
    offset_ += bytes;
    SkipEmpty();
  }

  // Copies the next `bytes` bytes to `out`, from as many pieces as necessary, and moves the
  // position. The payload must have this many bytes left.
  void Read(std::byte* out, size_t bytes) {
    while (bytes > 0) {
      const size_t part = std::min(bytes, contiguous());
      std::memcpy(out, data(), part);
      out += part;
      bytes -= part;
      Advance(part);
    }
  }

  // Returns a pointer to the next `bytes` bytes, and moves the position. Bytes that lie in one
  // place are not copied; otherwise they are copied to `scratch`, which is then returned. The
  // payload must have this many bytes left.
  const std::byte* Take(size_t bytes, std::byte* scratch) {
    if (contiguous() >= bytes && bytes > 0) {
      const std::byte* const here = data();
      Advance(bytes);
      return here;
    }
    Read(scratch, bytes);
    return scratch;
  }

 private:
  void SkipEmpty() {
    while (piece_ < pieces_->size() && offset_ == (*pieces_)[piece_].size()) {
      ++piece_;
      offset_ = 0;
    }
  }

  const Pieces* pieces_;
  size_t piece_ = 0;
  size_t offset_ = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_WIRE_PIECE_CURSOR_H_
