// The codecs of one group on one worker: what it sends is encoded, with what rounding
// has lost before, and what it receives is decoded.
//
// What a contribution loses is kept once the contribution has been answered: one that
// is given up was never made, and the next begins from the same residual.

#ifndef SYNCGRADS_CLIENT_COMPRESSOR_H_
#define SYNCGRADS_CLIENT_COMPRESSOR_H_

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
#include "common/group.h"
#include "common/ids.h"
#include "common/wire/frame.h"

namespace syncgrads::client {

// Thread-safe for different chunks.
class Compressor {
 public:
  // `plan` must outlive it.
  explicit Compressor(const GroupPlan& plan);

  struct Encoded {
    Codec codec = Codec::kRaw;
    std::unique_ptr<std::byte[]> bytes;
    size_t size = 0;
    // The codec has been found to lose too much: in words, what is used from the next
    // round on. Empty otherwise.
    std::string notice;
  };
  // A contribution, of the chunk's spans but the absent ones; nothing if it is to be
  // sent as it is: the chunk's contributions are not encoded, or a value is not finite.
  // `whole`: it is not to be encoded, and nothing is to be left over.
  std::optional<Encoded> Encode(ChunkId chunk, absl::Span<const uint32_t> absent_spans,
                                absl::Span<const absl::Span<const std::byte>> values,
                                bool whole = false);

  // The last contribution has been answered; or it has been given up.
  void Commit(ChunkId chunk);
  void Discard(ChunkId chunk);

  // How long a result in this codec is, which CheckResult has passed.
  size_t ResultBytes(ChunkId chunk, Codec codec) const;
  // InvalidArgument unless a result's payload can be one in this codec.
  absl::Status CheckResult(ChunkId chunk, Codec codec, const Pieces& payload) const;
  // The elements of a payload that has passed CheckResult.
  AlignedBuffer Decode(ChunkId chunk, Codec codec, const Pieces& payload) const;
  // Takes note of the codec of a result, which is not raw where the chunk's are encoded.
  // In words, where it is another than before; else empty.
  std::string Received(ChunkId chunk, Codec codec);

 private:
  struct Feedback {
    std::vector<float> residual;
    ResidualGuard guard;
  };
  struct State {
    Feedback kept;
    // After the contribution that has not been answered.
    Feedback next;
    bool pending = false;
    // Of the last result.
    Codec received = Codec::kRaw;
  };

  // What is left of the residual when there is no codec any more is sent with the
  // values.
  std::optional<Encoded> AddResidual(ChunkId chunk, absl::Span<const uint32_t> absent_spans,
                                     absl::Span<const absl::Span<const std::byte>> values);
  // "group "model", chunk 3 (from tensor "a" to "b")"
  std::string NameOf(ChunkId chunk) const;

  const GroupPlan& plan_;
  std::vector<State> states_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_COMPRESSOR_H_
