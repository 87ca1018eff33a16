// One worker's part in one round of one chunk, between the wire and the
// caller's memory.

#ifndef SYNCGRADS_CLIENT_CONTRIBUTION_H_
#define SYNCGRADS_CLIENT_CONTRIBUTION_H_

#include <cstddef>
#include <functional>
#include <memory>

#include "absl/types/span.h"
#include "client/shared_buffers.h"
#include "client/transport.h"
#include "common/wire/frame.h"

namespace syncgrads::client {

// Spans shorter than this are copied together: a piece of its own costs more
// than copying so few bytes.
inline constexpr size_t kCopiedSpanBytes = 4096;

// The message of `header` with the elements of the present spans behind it, in
// order. Long spans, and neighbours in memory, stay where they are: `spans` must
// stay as they are until `released` is called. If all of it lies in `shared`, the
// message can also be sent by reference.
std::shared_ptr<const OutgoingMessage> MakeContribution(
    const PushHeader& header, absl::Span<const absl::Span<const std::byte>> spans,
    std::function<void()> released, const SharedBuffers* shared = nullptr);

// The same with a payload that has been encoded, which is memory of the message's own.
std::shared_ptr<const OutgoingMessage> MakeEncodedContribution(const PushHeader& header,
                                                               std::unique_ptr<std::byte[]> payload,
                                                               size_t bytes,
                                                               std::function<void()> released);

// Where the next `bytes` of a payload go; null: nowhere.
struct Target {
  std::byte* to;
  size_t bytes;
};

// Copies a payload to its targets. They must be as long as the payload.
void Scatter(const Pieces& payload, absl::Span<const Target> targets);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_CONTRIBUTION_H_
