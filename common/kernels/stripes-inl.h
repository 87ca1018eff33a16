// Adds vectors to a running checksum. The kernels include this file once per instruction set; see
// hwy/foreach_target.h.

#if defined(SYNCGRADS_COMMON_KERNELS_STRIPES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SYNCGRADS_COMMON_KERNELS_STRIPES_INL_H_
#undef SYNCGRADS_COMMON_KERNELS_STRIPES_INL_H_
#else
#define SYNCGRADS_COMMON_KERNELS_STRIPES_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "common/kernels/running_checksum.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace syncgrads {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Whether checksums are computed on vectors. If there are no vectors, or if their size is not known
// at compile time, plain loops compute them.
#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE
inline constexpr bool kSumsVectors = false;
#else
inline constexpr bool kSumsVectors = true;

// Keeps the sums of a StripeSums in registers. Vectors must be added in the array's order. The
// template parameter `which` is a vector's position within its stripe, from 0 to kVectors - 1. Not
// thread-safe.
class VectorSums {
 public:
  using D = hn::CappedTag<uint64_t, 8>;
  using V = hn::Vec<D>;
  static constexpr size_t kVectorBytes = hn::MaxLanes(D()) * sizeof(uint64_t);
  static constexpr size_t kVectors = StripeSums::kStripeBytes / kVectorBytes;

  HWY_INLINE explicit VectorSums(StripeSums* kept) : kept_(kept), in_block_(kept->in_block) {
    for (size_t i = 0; i < kVectors; ++i) {
      sums_[i] = hn::Load(D(), kept->sums + i * hn::MaxLanes(D()));
    }
  }
  VectorSums(const VectorSums&) = delete;
  VectorSums& operator=(const VectorSums&) = delete;

  template <size_t which>
  HWY_INLINE void Add(V v) {
    const D d;
    const hn::Repartition<uint32_t, D> halves;
    const V keyed = hn::Xor(v, Key(in_block_ * 8 + which * kVectorBytes));
    const V product =
        hn::MulEven(hn::BitCast(halves, keyed), hn::BitCast(halves, hn::ShiftRight<32>(keyed)));
    const V swapped = hn::BitCast(d, hn::Shuffle1032(hn::BitCast(halves, v)));
    sums_[which] = hn::Add(sums_[which], hn::Add(product, swapped));
    if constexpr (which == kVectors - 1) EndStripe();
  }

  HWY_INLINE void Keep(size_t stripes) {
    for (size_t i = 0; i < kVectors; ++i) {
      hn::Store(sums_[i], D(), kept_->sums + i * hn::MaxLanes(D()));
    }
    kept_->in_block = in_block_;
    kept_->left -= stripes;
  }

 private:
  HWY_INLINE V Key(size_t at) const {
    const hn::Repartition<uint8_t, D> bytes;
    return hn::BitCast(D(), hn::LoadU(bytes, keys_ + at));
  }

  HWY_INLINE void EndStripe() {
    if (++in_block_ < StripeSums::kStripesPerBlock) return;
    in_block_ = 0;
    const hn::Repartition<uint32_t, D> halves;
    const auto prime = hn::Set(halves, 0x9E3779B1u);
    for (size_t i = 0; i < kVectors; ++i) {
      const size_t key = StripeSums::kKeyBytes - StripeSums::kStripeBytes + i * kVectorBytes;
      const V mixed = hn::Xor(hn::Xor(sums_[i], hn::ShiftRight<47>(sums_[i])), Key(key));
      const V low = hn::MulEven(hn::BitCast(halves, mixed), prime);
      const V high = hn::MulEven(hn::BitCast(halves, hn::ShiftRight<32>(mixed)), prime);
      sums_[i] = hn::Add(low, hn::ShiftLeft<32>(high));
    }
  }

  const uint8_t* const keys_ = StripeKeys();
  StripeSums* const kept_;
  size_t in_block_;
  V sums_[kVectors];
};
#endif

}  // namespace HWY_NAMESPACE
}  // namespace syncgrads
HWY_AFTER_NAMESPACE();

#endif  // SYNCGRADS_COMMON_KERNELS_STRIPES_INL_H_
