// The codecs of one group on one worker, with error feedback: contributions are encoded together
// with the compression error of earlier ones (the residual), and results are decoded.
//
// The residual after a contribution is kept when the contribution has been answered. If a
// contribution is abandoned, the next one starts from the residual before it.

#ifndef SYNCGRADS_CLIENT_ROUNDS_COMPRESSOR_H_
#define SYNCGRADS_CLIENT_ROUNDS_COMPRESSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/aligned_buffer.h"
#include "common/codec/codec.h"
#include "common/codec/residual_guard.h"
#include "common/group/group.h"
#include "common/ids.h"
#include "common/wire/frame.h"

namespace syncgrads::client {

// Owned by GroupRounds. Thread-safe for different chunks.
class Compressor {
 public:
  // `plan` must outlive this object.
  explicit Compressor(const GroupPlan& plan);

  struct Encoded {
    Codec codec = Codec::kRaw;
    std::unique_ptr<std::byte[]> bytes;
    size_t size = 0;
    // If the codec has been found to lose too much: a text for people that names the codec that is
    // used from the next round on. Otherwise empty.
    std::string notice;
  };
  // Encodes a contribution that has the chunk's spans except the absent ones. Returns nullopt if
  // `values` are to be sent raw and unchanged: the chunk's contributions are not encoded, or a
  // value is not finite. `uncompressed` (Group::SendUncompressed): the contribution is not encoded
  // but has the residual added, and no residual remains for its spans.
  std::optional<Encoded> Encode(ChunkId chunk, absl::Span<const uint32_t> absent_spans,
                                absl::Span<const absl::Span<const std::byte>> values,
                                bool uncompressed = false);

  // Commit: the last contribution has been answered. Discard: it has been abandoned.
  void Commit(ChunkId chunk);
  void Discard(ChunkId chunk);

  // Returns the length in bytes of a result in this codec, which CheckResult has accepted.
  size_t ResultBytes(ChunkId chunk, Codec codec) const;
  // InvalidArgument if `payload` is not a valid result of the chunk in this codec.
  absl::Status CheckResult(ChunkId chunk, Codec codec, const Pieces& payload) const;
  // Returns the elements of a payload that CheckResult has accepted.
  AlignedBuffer Decode(ChunkId chunk, Codec codec, const Pieces& payload) const;
  // Records the codec of a result. Returns a text for people if it is not the codec of the previous
  // result, else an empty string. Must not be called for a step that is sent uncompressed.
  std::string Received(ChunkId chunk, Codec codec);

 private:
  struct Feedback {
    std::vector<float> residual;
    ResidualGuard guard;
  };
  struct State {
    Feedback kept;
    // The state after the contribution that has not been answered, if `pending`.
    Feedback next;
    bool pending = false;
    // The codec of the last result.
    Codec received = Codec::kRaw;
  };

  // Returns the raw values with the residual added; nullopt if there is no residual or a sum is not
  // finite. Used when the chunk has no codec any more, or is sent uncompressed.
  std::optional<Encoded> AddResidual(ChunkId chunk, absl::Span<const uint32_t> absent_spans,
                                     absl::Span<const absl::Span<const std::byte>> values);
  // Names a chunk for people, as in: group "model", chunk 3 (from tensor "a" to "b")
  std::string NameOf(ChunkId chunk) const;

  const GroupPlan& plan_;
  std::vector<State> states_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_ROUNDS_COMPRESSOR_H_
