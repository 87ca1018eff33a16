// Reads any bytes as a push and as an update, in pieces that are cut as the first
// bytes say. Nothing may crash, and what protobuf reads is read, with the same
// meaning, wherever the cuts are.

#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/match.h"
#include "common/wire/frame.h"
#include "proto/data.pb.h"

namespace syncgrads {
namespace {

void Require(bool holds, const char* what, const std::string& message) {
  if (holds) return;
  std::fprintf(stderr, "%s:", what);
  for (unsigned char byte : message) std::fprintf(stderr, " %02x", byte);
  std::fprintf(stderr, "\n");
  std::abort();
}

std::string Joined(const Pieces& pieces) {
  std::string joined;
  for (absl::Span<const std::byte> piece : pieces) {
    joined.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return joined;
}

// What was read is, encoded again, a message that protobuf reads as it read the
// original.
template <typename Proto, typename Frame>
void RequireSameMeaning(const std::string& message, const absl::StatusOr<Frame>& frame) {
  Proto theirs;
  if (!theirs.ParseFromString(message)) return;  // we may be more lenient
  // Protobuf drops what a field's number has beyond 29 bits, and skips groups, which
  // it has not written for fifteen years; we refuse both.
  if (absl::StrContains(frame.status().message(), "a field with the number") ||
      absl::StrContains(frame.status().message(), "a field of the unknown kind")) {
    return;
  }
  Require(frame.ok(), "read by protobuf only", message);
  theirs.DiscardUnknownFields();
  const std::string payload = Joined(frame->payload);
  Proto ours;
  Require(ours.ParseFromString(EncodeHeader(frame->header, payload.size()) + payload),
          "not read when encoded again", message);
  // An enum is kept in 32 bits without a sign; no codec is that large.
  if (theirs.codec() < 0) return;
  if constexpr (std::is_same_v<Proto, v1::UpdateChunk>) {
    // An error without a known code is one of an unknown kind; of several, the
    // last counts.
    theirs.clear_error();
    ours.clear_error();
  }
  Require(ours.SerializeAsString() == theirs.SerializeAsString(), "of another meaning", message);
}

}  // namespace
}  // namespace syncgrads

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace syncgrads;
  // Protobuf would write a line for each string that is not UTF-8.
  static const google::protobuf::LogSilencer silencer;
  if (size < 2) return 0;
  const size_t stride = 1 + data[0];
  const size_t first_cut = data[1];
  const std::string message(reinterpret_cast<const char*>(data + 2), size - 2);

  // Each piece is memory of its own, so that a sanitizer sees one byte too many.
  std::vector<std::unique_ptr<std::byte[]>> memory;
  Pieces pieces;
  for (size_t begin = 0; begin < message.size();) {
    const size_t length =
        std::min(message.size() - begin, begin == 0 && first_cut > 0 ? first_cut : stride);
    memory.push_back(std::make_unique<std::byte[]>(length));
    std::memcpy(memory.back().get(), message.data() + begin, length);
    pieces.push_back({memory.back().get(), length});
    begin += length;
  }
  RequireSameMeaning<v1::PushChunk>(message, DecodePush(pieces));
  RequireSameMeaning<v1::UpdateChunk>(message, DecodeUpdate(pieces));
  return 0;
}
