// Messages in pieces, as the transport delivers them.

#ifndef SYNCGRADS_TESTS_FUZZ_CUT_MESSAGE_H_
#define SYNCGRADS_TESTS_FUZZ_CUT_MESSAGE_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/wire/frame.h"

namespace syncgrads::fuzz {

// A message in pieces. Each piece is an allocation of its own, so that a sanitizer detects a read
// past its end.
class CutMessage {
 public:
  // The first piece has `first` bytes, or `stride` if that is 0; the others have `stride` bytes, or
  // more if there would be more than kMostPieces.
  CutMessage(absl::string_view message, size_t first, size_t stride) {
    stride = std::max(stride, message.size() / kMostPieces);
    size_t length = first > 0 ? first : stride;
    while (!message.empty()) {
      length = std::min(length, message.size());
      std::vector<std::byte>& piece = memory_.emplace_back(length);
      std::memcpy(piece.data(), message.data(), length);
      pieces_.push_back({piece.data(), length});
      message.remove_prefix(length);
      length = stride;
    }
  }

  const Pieces& pieces() const { return pieces_; }

 private:
  // Allocations take most of a target's time.
  static constexpr size_t kMostPieces = 256;

  std::vector<std::vector<std::byte>> memory_;
  Pieces pieces_;
};

}  // namespace syncgrads::fuzz

#endif  // SYNCGRADS_TESTS_FUZZ_CUT_MESSAGE_H_
