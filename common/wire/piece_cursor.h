// Reads a payload that lies in pieces, from one place to the next.

#ifndef SYNCGRADS_COMMON_WIRE_PIECE_CURSOR_H_
#define SYNCGRADS_COMMON_WIRE_PIECE_CURSOR_H_

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "common/wire/frame.h"

namespace syncgrads {

// A position in a payload.
class PieceCursor {
 public:
  explicit PieceCursor(const Pieces* pieces) : pieces_(pieces) { SkipEmpty(); }

  // Bytes from here that lie in one place.
  size_t contiguous() const {
    return piece_ < pieces_->size() ? (*pieces_)[piece_].size() - offset_ : 0;
  }
  const std::byte* data() const { return (*pieces_)[piece_].data() + offset_; }

  // `bytes` is at most contiguous().
  void Advance(size_t bytes) {
    offset_ += bytes;
    SkipEmpty();
  }

  // Copies the next bytes, from as many pieces as they lie in.
  void Read(std::byte* out, size_t bytes) {
    while (bytes > 0) {
      const size_t part = std::min(bytes, contiguous());
      std::memcpy(out, data(), part);
      out += part;
      bytes -= part;
      Advance(part);
    }
  }

  // The same, but only of what does not lie in one place; returns where it lies, which
  // is `scratch` after a copy.
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
