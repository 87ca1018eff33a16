#include "client/rounds/contribution_sender.h"

#include <cstddef>
#include <utility>

#include "common/ids.h"
#include "common/wire/frame.h"

namespace syncgrads::client {
namespace {

// A shorter payload costs less to send than a description of where it lies in shared memory.
constexpr size_t kMinSharedBytes = 16 << 10;

}  // namespace

ContributionSender::ContributionSender(const GroupPlan& plan, Compressor& compressor,
                                       Outbox& outbox)
    : plan_(plan), compressor_(compressor), outbox_(outbox), staging_(plan.layout) {}

void ContributionSender::Send(Contribution contribution, std::function<void()> released) {
  const ChunkId chunk = contribution.header.chunk;
  const ServerIndex server = plan_.servers[ToNumber(chunk)];
  const ChunkKey key{plan_.id, chunk, contribution.header.round};
  const uint64_t epoch = contribution.header.epoch;
  std::optional<Compressor::Encoded> encoded = Encode(contribution);
  if (!encoded.has_value()) {
    outbox_.Send(server, key, epoch, MakeRaw(std::move(contribution), std::move(released)));
    return;
  }
  contribution.header.codec = encoded->codec;
  outbox_.Send(server, key, epoch,
               MakeEncodedContribution(contribution.header, std::move(encoded->bytes),
                                       encoded->size, std::move(released)));
  if (!encoded->notice.empty()) outbox_.OnCodecReplaced(encoded->notice);
}

std::optional<Compressor::Encoded> ContributionSender::Encode(const Contribution& contribution) {
  const PushHeader& header = contribution.header;
  // Round 0 has the initial parameters, which are never encoded.
  if (header.skip || header.round == Round{0}) return std::nullopt;
  return compressor_.Encode(header.chunk, header.absent_spans, contribution.spans,
                            contribution.uncompressed);
}

std::shared_ptr<const OutgoingMessage> ContributionSender::MakeRaw(Contribution contribution,
                                                                   std::function<void()> released) {
  const ChunkId chunk = contribution.header.chunk;
  SharedBuffers* shared = outbox_.SharedWith(plan_.servers[ToNumber(chunk)]);
  const size_t bytes = TotalBytes(contribution.spans);
  // A contribution that restores an optimizer is longer than the chunk's staging memory, and it is
  // sent only once.
  if (bytes < kMinSharedBytes || bytes > plan_.layout.chunk(chunk).bytes()) shared = nullptr;
  if (shared != nullptr) {
    contribution.spans = staging_.Share(*shared, chunk, std::move(contribution.spans));
  }
  return MakeContribution(contribution.header, contribution.spans, std::move(released), shared);
}

}  // namespace syncgrads::client
