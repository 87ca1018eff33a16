#include "client/rounds/contribution.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "common/kernels/copy.h"

namespace syncgrads::client {

namespace {

std::optional<OutgoingMessage::ByReference> Refer(PushHeader header, const Pieces& runs,
                                                  const SharedBuffers& shared) {
  OutgoingMessage::ByReference reference;
  for (const absl::Span<const std::byte>& run : runs) {
    const std::optional<SharedPiece> piece = shared.Find(run);
    if (!piece.has_value()) return std::nullopt;
    header.shared.push_back(*piece);
    if (reference.regions.empty() || reference.regions.back() != piece->region) {
      reference.regions.push_back(piece->region);
    }
  }
  reference.header = EncodeHeader(header, 0);
  return reference;
}

}  // namespace

std::shared_ptr<const OutgoingMessage> MakeContribution(
    const PushHeader& header, absl::Span<const absl::Span<const std::byte>> spans,
    std::function<void()> released, const SharedBuffers* shared) {
  // Spans that are adjacent in memory, as in one flat gradient buffer, become one run, however
  // short they are.
  Pieces runs;
  size_t total = 0;
  size_t copied = 0;
  for (const absl::Span<const std::byte>& span : spans) {
    total += span.size();
    if (!runs.empty() && runs.back().data() + runs.back().size() == span.data()) {
      runs.back() = absl::MakeConstSpan(runs.back().data(), runs.back().size() + span.size());
    } else {
      runs.push_back(span);
    }
  }
  for (const absl::Span<const std::byte>& run : runs) {
    if (run.size() < kCopiedSpanBytes) copied += run.size();
  }
  std::optional<OutgoingMessage::ByReference> by_reference;
  if (shared != nullptr && !runs.empty() && runs.size() <= kMaxSharedPieces) {
    by_reference = Refer(header, runs, *shared);
  }
  std::unique_ptr<std::byte[]> small;
  if (copied > 0) small.reset(new std::byte[copied]);
  std::byte* end = small.get();
  bool extend = false;  // the last piece lies in `small`
  Pieces payload;
  for (const absl::Span<const std::byte>& run : runs) {
    if (run.size() >= kCopiedSpanBytes) {
      payload.push_back(run);
      extend = false;
      continue;
    }
    std::memcpy(end, run.data(), run.size());
    if (extend) {
      payload.back() =
          absl::MakeConstSpan(payload.back().data(), payload.back().size() + run.size());
    } else {
      payload.push_back(absl::MakeConstSpan(end, run.size()));
    }
    extend = true;
    end += run.size();
  }
  return std::make_shared<const OutgoingMessage>(EncodeHeader(header, total), std::move(payload),
                                                 std::move(small), std::move(released),
                                                 std::move(by_reference));
}

std::shared_ptr<const OutgoingMessage> MakeEncodedContribution(const PushHeader& header,
                                                               std::unique_ptr<std::byte[]> payload,
                                                               size_t bytes,
                                                               std::function<void()> released) {
  Pieces pieces = {absl::MakeConstSpan(payload.get(), bytes)};
  return std::make_shared<const OutgoingMessage>(EncodeHeader(header, bytes), std::move(pieces),
                                                 std::move(payload), std::move(released));
}

void Scatter(const Pieces& payload, absl::Span<const Target> targets) {
  size_t piece = 0;
  size_t offset = 0;
  for (const Target& target : targets) {
    size_t done = 0;
    while (done < target.bytes) {
      while (offset == payload[piece].size()) {
        ++piece;
        offset = 0;
      }
      const size_t bytes = std::min(target.bytes - done, payload[piece].size() - offset);
      if (target.to != nullptr) CopyFar(target.to + done, payload[piece].data() + offset, bytes);
      done += bytes;
      offset += bytes;
    }
  }
}

}  // namespace syncgrads::client
