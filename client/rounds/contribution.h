// Converts between the caller's memory and the messages of one worker for one round of one chunk.

#ifndef SYNCGRADS_CLIENT_ROUNDS_CONTRIBUTION_H_
#define SYNCGRADS_CLIENT_ROUNDS_CONTRIBUTION_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "client/link/transport.h"
#include "client/memory/shared_buffers.h"
#include "common/wire/frame.h"

namespace syncgrads::client {

// What one worker contributes to one round of one chunk.
struct Contribution {
  PushHeader header;
  // The chunk's spans except those that the header names as absent. They lie in the caller's
  // memory.
  std::vector<absl::Span<const std::byte>> spans;
  bool uncompressed = false;  // Group::SendUncompressed was called in this round
};

// Runs of memory shorter than this are copied into one piece: a further piece in a message costs
// more than the copy.
inline constexpr size_t kCopiedSpanBytes = 4096;

// Returns a message with `header` and the elements of the present spans, in order. Spans that are
// adjacent in memory are one run; long runs are not copied. The spans' memory must not change until
// `released` is called. If all of it lies in `shared`, in at most kMaxSharedPieces runs, the
// message can also be sent by reference.
std::shared_ptr<const OutgoingMessage> MakeContribution(
    const PushHeader& header, absl::Span<const absl::Span<const std::byte>> spans,
    std::function<void()> released, const SharedBuffers* shared = nullptr);

// Returns a message with `header` and an encoded payload of `bytes` bytes, which the message owns.
std::shared_ptr<const OutgoingMessage> MakeEncodedContribution(const PushHeader& header,
                                                               std::unique_ptr<std::byte[]> payload,
                                                               size_t bytes,
                                                               std::function<void()> released);

// The address to which the next `bytes` of a payload are copied. If `to` is null, they are
// discarded.
struct Target {
  std::byte* to;
  size_t bytes;
};

// Copies a payload to its targets. Together they are as long as the payload.
void Scatter(const Pieces& payload, absl::Span<const Target> targets);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_ROUNDS_CONTRIBUTION_H_
