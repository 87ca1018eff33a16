#include "common/codec/residual_guard.h"

#include <algorithm>
#include <cmath>

namespace syncgrads {
namespace {

// Factor by which the remembered norm of the values decays each round. Values get smaller during
// training, and the residual follows them with a delay.
constexpr double kFading = 0.95;

// Returns the limit of the residual's norm, as a multiple of the values' norm.
double LimitOf(Codec codec, const Encoding& planned) {
  switch (codec) {
    case Codec::kTopK:
      return 1 / planned.fraction;
    case Codec::kOneBit:
      return 32;
    default:
      return 0.5;
  }
}

}  // namespace

bool ResidualGuard::Observe(const FeedbackNorms& norms, const Encoding& planned) {
  const double residual = std::sqrt(norms.residual);
  values_ = std::max(std::sqrt(norms.values), values_ * kFading);
  const bool grows = residual > residual_ && residual > LimitOf(codec_, planned) * values_;
  residual_ = residual;
  grown_ = grows ? grown_ + 1 : 0;
  if (grown_ < kRounds || codec_ == Codec::kRaw) return false;
  grown_ = 0;
  codec_ = MilderThan(codec_);
  return true;
}

}  // namespace syncgrads
