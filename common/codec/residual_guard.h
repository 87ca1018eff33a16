// Detects that error feedback does not keep up with a codec's error.

#ifndef SYNCGRADS_COMMON_CODEC_RESIDUAL_GUARD_H_
#define SYNCGRADS_COMMON_CODEC_RESIDUAL_GUARD_H_

#include "common/codec/encoding.h"

namespace syncgrads {

// Sums of squares over the elements that have been encoded.
struct FeedbackNorms {
  double values = 0;
  double residual = 0;  // of the new residual
};

// Watches the residual of a chunk, round by round. Error feedback should keep it small. If the
// residual is too large compared with the values and has grown for kRounds consecutive rounds, the
// codec is replaced by a milder one. The limit depends on the codec; for example, top-k with
// fraction f keeps an element back for 1/f rounds.
//
// A plain value: after the same rounds it is the same on every processor. A server stores it with
// the chunk's result, so it survives a crash. Not thread-safe.
class ResidualGuard {
 public:
  static constexpr int kRounds = 8;

  ResidualGuard() = default;
  explicit ResidualGuard(Codec codec) : codec_(codec) {}

  // Returns the codec for the next round.
  Codec codec() const { return codec_; }

  // Records the norms of a round that was encoded with codec() or a milder codec. `planned` has the
  // codec's parameters. Returns whether codec() has changed.
  bool Observe(const FeedbackNorms& norms, const Encoding& planned);

  friend bool operator==(const ResidualGuard&, const ResidualGuard&) = default;

 private:
  Codec codec_ = Codec::kRaw;
  int grown_ = 0;
  // values_ is the largest norm of the values, which decays each round; residual_ is the norm of
  // the last residual.
  double values_ = 0;
  double residual_ = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CODEC_RESIDUAL_GUARD_H_
