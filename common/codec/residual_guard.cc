#include "common/codec/residual_guard.h"

#include <algorithm>
#include <cmath>

namespace syncgrads {
namespace {

// Of the norm of the values, by which theirs is remembered from round to round: they
// get smaller as training goes on, and a residual follows late.
constexpr double kFading = 0.95;

// How many times as large as the values a residual may be.
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
