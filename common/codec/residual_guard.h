// Notices where error feedback does not keep up.

#ifndef SYNCGRADS_COMMON_CODEC_RESIDUAL_GUARD_H_
#define SYNCGRADS_COMMON_CODEC_RESIDUAL_GUARD_H_

#include "common/codec/encoding.h"

namespace syncgrads {

// Sums of squares over what has been encoded.
struct FeedbackNorms {
  double values = 0;
  double residual = 0;  // the new one
};

// Watches a residual, of a chunk, that error feedback should keep small, round by
// round, and replaces the codec by a milder one when it grows instead: when it has
// been larger than the values and has grown for kRounds rounds on end. How much
// larger it may be depends on the codec: top-k with fraction f keeps an element for
// 1/f rounds.
//
// A plain value, the same after the same rounds on every processor; part of what a
// server keeps over a crash.
class ResidualGuard {
 public:
  static constexpr int kRounds = 8;

  ResidualGuard() = default;
  explicit ResidualGuard(Codec codec) : codec_(codec) {}

  // What is to be used.
  Codec codec() const { return codec_; }

  // Takes note of a round that was encoded by codec(), or a milder one. Returns
  // whether codec() has changed. `planned` has the parameters.
  bool Observe(const FeedbackNorms& norms, const Encoding& planned);

  friend bool operator==(const ResidualGuard&, const ResidualGuard&) = default;

 private:
  Codec codec_ = Codec::kRaw;
  int grown_ = 0;
  // Norms: the largest of the values', which fades, and the last residual's.
  double values_ = 0;
  double residual_ = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CODEC_RESIDUAL_GUARD_H_
