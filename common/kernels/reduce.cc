#include "common/kernels/reduce.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/kernels/reduce.cc"
// clang-format off
#include "hwy/foreach_target.h"  // Includes this file once per instruction set.
// clang-format on
// foreach_target.h comes first, because the headers below are compiled for each instruction set.
#include "common/kernels/elements-inl.h"
#include "common/kernels/running_checksum.h"
#include "common/kernels/stripes-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

// Each block of elements is reduced over all sources before the next block, a few sources at a
// time. Accumulators stay in the L1 cache. Each source is read in one stretch, so that the
// processor has few streams to prefetch even with many members. `out`, which may be one of the
// sources, is written after the block of every source has been read.

HWY_BEFORE_NAMESPACE();
namespace syncgrads {
namespace HWY_NAMESPACE {

// kBlockBytes is the size of a block's accumulators, kTogether is the number of sources that are
// read together, and kVectors is the number of vectors per step (independent chains, which hide the
// latency of an addition). The values were found by measurement.
constexpr size_t kBlockBytes = 8192;
constexpr size_t kTogether = 8;
constexpr size_t kVectors = 4;
// How far ahead of the loads each source is prefetched. Also found by measurement.
constexpr size_t kPrefetchAhead = 4096;

// Minimum size of a result that is written past the caches. Together with its sources it does not
// fit the L2 cache, and streaming stores save a third of the memory traffic.
constexpr size_t kStreamedBytes = 256 << 10;

// The operations. Enter makes an accumulator of the first source, Add adds another source, and
// Leave turns the accumulator into the result. Only averages use `weight` and `divisor`.

struct SumOf {
  template <class D, class V>
  static HWY_INLINE V Enter(D, V v, hn::TFromD<D>) {
    return v;
  }
  template <class D, class V>
  static HWY_INLINE V Add(D, V sum, V v, hn::TFromD<D>) {
    return hn::Add(sum, v);
  }
  template <class D, class V>
  static HWY_INLINE V Leave(D, V sum, hn::TFromD<D>) {
    return sum;
  }
};

struct AverageOf {
  template <class D, class V>
  static HWY_INLINE V Enter(D d, V v, hn::TFromD<D> weight) {
    return hn::Mul(hn::Set(d, weight), v);
  }
  template <class D, class V>
  static HWY_INLINE V Add(D d, V sum, V v, hn::TFromD<D> weight) {
    return hn::Add(sum, hn::Mul(hn::Set(d, weight), v));
  }
  template <class D, class V>
  static HWY_INLINE V Leave(D d, V sum, hn::TFromD<D> divisor) {
    return hn::Div(sum, hn::Set(d, divisor));
  }
};

// The average if all weights are 1. Multiplying by 1 is exact, so the weights can be left out.
struct UnweightedAverageOf : SumOf {
  template <class D, class V>
  static HWY_INLINE V Leave(D d, V sum, hn::TFromD<D> divisor) {
    return hn::Div(sum, hn::Set(d, divisor));
  }
};

struct ProductOf : SumOf {
  template <class D, class V>
  static HWY_INLINE V Add([[maybe_unused]] D d, V product, V v, hn::TFromD<D>) {
    if constexpr (sizeof(hn::TFromD<D>) == 8 && !hwy::IsFloat<hn::TFromD<D>>()) {
#if HWY_TARGET == HWY_SCALAR
      return hn::Set(d, hn::GetLane(product) * hn::GetLane(v));
#else
      // Few processors multiply 64-bit integers in vectors: a*b = al*bl + 2^32 (ah*bl + al*bh).
      const hn::Repartition<uint32_t, D> halves;
      const auto low = [&](V x) HWY_ATTR { return hn::BitCast(halves, x); };
      const auto high = [&](V x) HWY_ATTR { return hn::BitCast(halves, hn::ShiftRight<32>(x)); };
      const V cross =
          hn::Add(hn::MulEven(high(product), low(v)), hn::MulEven(low(product), high(v)));
      return hn::Add(hn::MulEven(low(product), low(v)), hn::ShiftLeft<32>(cross));
#endif
    } else {
      return hn::Mul(product, v);
    }
  }
};

// Instruction sets differ in the minimum of NaNs and of -0 and +0, so the minimum is made of
// comparisons. If neither operand is less, they are equal or one is NaN. Both are then selected,
// and OR-ing their bits gives the number, -0 if either is -0, or a NaN.
template <class V>
HWY_INLINE V Minimum(V a, V b) {
  const V b_unless_less = hn::IfThenElse(hn::Lt(a, b), a, b);
  const V a_unless_less = hn::IfThenElse(hn::Lt(b, a), b, a);
  return hn::Or(b_unless_less, a_unless_less);
}

struct MinOf : SumOf {
  template <class D, class V>
  static HWY_INLINE V Add([[maybe_unused]] D d, V least, V v, hn::TFromD<D>) {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      return Minimum(least, v);
    } else {
      const hn::RebindToSigned<D> di;
      return hn::BitCast(d, hn::Min(hn::BitCast(di, least), hn::BitCast(di, v)));
    }
  }
};

struct MaxOf : SumOf {
  template <class D, class V>
  static HWY_INLINE V Add([[maybe_unused]] D d, V most, V v, hn::TFromD<D>) {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      return hn::Neg(Minimum(hn::Neg(most), hn::Neg(v)));
    } else {
      const hn::RebindToSigned<D> di;
      return hn::BitCast(d, hn::Max(hn::BitCast(di, most), hn::BitCast(di, v)));
    }
  }
};

// Requests the bytes that are loaded kPrefetchAhead bytes after `from`. Without it, the loads of
// the same code took up to 1.7 times as long, depending on the addresses that the linker had given
// to them: processors prefetch by the addresses of instructions. It may request bytes after the end
// of an array, which has no effect.
HWY_INLINE void PrefetchAfter(const std::byte* from, size_t bytes) {
  constexpr size_t kCacheLine = 64;
  for (size_t at = 0; at < bytes; at += kCacheLine) hwy::Prefetch(from + kPrefetchAhead + at);
}

// One pass over a block, with up to kTogether sources. In the first pass the accumulators start
// with the first source; in the last pass, results are written to `out`.
template <typename Lane>
struct Pass {
  bool first;
  bool last;
  bool stream;
  // In the last pass, the checksum to which whole stripes of results are added; null for none.
  StripeSums* sums;
  Lane divisor;
  size_t sources;
  const std::byte* data[kTogether];
  Lane weight[kTogether];
};

// Whether results are added to the checksum while they are in registers. Only averages of floats
// are, because training has gigabytes of them; other results are read again for their checksum.
template <class Element, class Operation>
inline constexpr bool kSumsResults = kSumsVectors &&
                                     sizeof(typename Element::Lane) == Element::kBytes &&
                                     (std::is_same_v<Operation, UnweightedAverageOf> ||
                                      std::is_same_v<Operation, AverageOf>);

// Replaces VectorSums if no checksum is computed in registers.
struct NoSums {
  explicit NoSums(StripeSums*) {}
  template <size_t which, class V>
  HWY_INLINE void Add(V) {}
  void Keep(size_t) {}
};

// Runs one pass over `count` elements, a multiple of kVectors vectors. Returns false if a result is
// not finite.
template <class Element, class Operation, class Sums>
HWY_INLINE bool RunPass(const Pass<typename Element::Lane>& pass, size_t count,
                        typename Element::Lane* HWY_RESTRICT accumulators, std::byte* out) {
  using Lane = typename Element::Lane;
  const hn::ScalableTag<Lane> d;
  const size_t lanes = hn::Lanes(d);
  const size_t bytes = lanes * Element::kBytes;
  // For a finite x, x - x is +0; for any other x, it is a NaN, whose bits remain after OR.
  auto strange = hn::Zero(d);
  Sums sums(pass.sums);
  for (size_t i = 0; i < count; i += kVectors * lanes) {
    const size_t at = i * Element::kBytes;
    Lane* const kept = accumulators + i;
    hn::Vec<decltype(d)> a0, a1, a2, a3;
    size_t source = 0;
    if (pass.first) {
      const std::byte* const from = pass.data[0] + at;
      PrefetchAfter(from, kVectors * bytes);
      const Lane weight = pass.weight[0];
      a0 = Operation::Enter(d, Element::Load(d, from), weight);
      a1 = Operation::Enter(d, Element::Load(d, from + bytes), weight);
      a2 = Operation::Enter(d, Element::Load(d, from + 2 * bytes), weight);
      a3 = Operation::Enter(d, Element::Load(d, from + 3 * bytes), weight);
      source = 1;
    } else {
      a0 = hn::Load(d, kept);
      a1 = hn::Load(d, kept + lanes);
      a2 = hn::Load(d, kept + 2 * lanes);
      a3 = hn::Load(d, kept + 3 * lanes);
    }
    for (; source < pass.sources; ++source) {
      const std::byte* const from = pass.data[source] + at;
      PrefetchAfter(from, kVectors * bytes);
      const Lane weight = pass.weight[source];
      a0 = Operation::Add(d, a0, Element::Load(d, from), weight);
      a1 = Operation::Add(d, a1, Element::Load(d, from + bytes), weight);
      a2 = Operation::Add(d, a2, Element::Load(d, from + 2 * bytes), weight);
      a3 = Operation::Add(d, a3, Element::Load(d, from + 3 * bytes), weight);
    }
    if (pass.last) {
      const auto store = [&](auto accumulator, std::byte* to, auto which) HWY_ATTR {
        auto result = Operation::Leave(d, accumulator, pass.divisor);
        if constexpr (hwy::IsFloat<Lane>()) {
          strange = hn::Or(strange, hn::Sub(result, result));
          result = OneNaN(d, result);
        }
        if constexpr (!std::is_same_v<Sums, NoSums>) {
          constexpr size_t kVector = decltype(which)() % Sums::kVectors;
          sums.template Add<kVector>(hn::BitCast(typename Sums::D(), result));
        }
        if constexpr (requires { Element::Stream(d, result, to); }) {
          if (pass.stream) return Element::Stream(d, result, to);
        }
        Element::Store(d, result, to);
      };
      std::byte* const to = out + at;
      store(a0, to, std::integral_constant<size_t, 0>());
      store(a1, to + bytes, std::integral_constant<size_t, 1>());
      store(a2, to + 2 * bytes, std::integral_constant<size_t, 2>());
      store(a3, to + 3 * bytes, std::integral_constant<size_t, 3>());
    } else {
      hn::Store(a0, d, kept);
      hn::Store(a1, d, kept + lanes);
      hn::Store(a2, d, kept + 2 * lanes);
      hn::Store(a3, d, kept + 3 * lanes);
    }
  }
  if (pass.sums != nullptr) sums.Keep(count * Element::kBytes / StripeSums::kStripeBytes);
  if constexpr (hwy::IsFloat<Lane>()) return hn::AllFalse(d, hn::IsNaN(strange));
  return true;
}

template <class Element, class Operation>
HWY_INLINE bool RunPass(const Pass<typename Element::Lane>& pass, size_t count,
                        typename Element::Lane* HWY_RESTRICT accumulators, std::byte* out) {
#if HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE
  if constexpr (kSumsResults<Element, Operation>) {
    if (pass.sums != nullptr) {
      return RunPass<Element, Operation, VectorSums>(pass, count, accumulators, out);
    }
  }
#endif
  return RunPass<Element, Operation, NoSums>(pass, count, accumulators, out);
}

template <class Element, class Operation>
bool ReduceAs(absl::Span<const WeightedSource> sources, double total_weight, size_t count,
              std::byte* out, RunningChecksum* checksum) {
  using Lane = typename Element::Lane;
  const hn::ScalableTag<Lane> d;
  constexpr size_t kBytes = Element::kBytes;
  constexpr size_t kBlock = kBlockBytes / sizeof(Lane);
  constexpr size_t kMaxStep = kVectors * hn::MaxLanes(d);
  const size_t step = kVectors * hn::Lanes(d);

  HWY_ALIGN Lane accumulators[kBlock];
  // The rest of a block that is shorter than a step is copied here, so that one loop handles all
  // elements.
  HWY_ALIGN Lane rest_accumulators[kMaxStep];
  HWY_ALIGN std::byte rest_data[kTogether][kMaxStep * kBytes] = {};
  HWY_ALIGN std::byte rest_out[kMaxStep * kBytes];

  constexpr bool kSums = kSumsResults<Element, Operation>;
  const bool stream = count * kBytes >= kStreamedBytes && (kSums || checksum == nullptr) &&
                      reinterpret_cast<uintptr_t>(out) % (hn::Lanes(d) * kBytes) == 0;
  Pass<Lane> pass, rest_pass;
  pass.stream = stream;
  pass.divisor = static_cast<Lane>(total_weight);
  bool finite = true;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t block = std::min(kBlock, count - begin);
    const size_t whole = block / step * step;
    const size_t rest = (block - whole) * kBytes;
    for (size_t source = 0; source < sources.size(); source += kTogether) {
      pass.sources = std::min(kTogether, sources.size() - source);
      pass.first = source == 0;
      pass.last = source + pass.sources == sources.size();
      for (size_t k = 0; k < pass.sources; ++k) {
        pass.data[k] = sources[source + k].data + begin * kBytes;
        pass.weight[k] = static_cast<Lane>(sources[source + k].weight);
      }
      pass.sums = kSums && pass.last && checksum != nullptr
                      ? checksum->TakeStripes(whole * kBytes / StripeSums::kStripeBytes)
                      : nullptr;
      finite &= RunPass<Element, Operation>(pass, whole, accumulators, out + begin * kBytes);
      if (pass.last && pass.sums == nullptr && checksum != nullptr) {
        checksum->Add(out + begin * kBytes, whole * kBytes);
      }
      if (rest == 0) continue;

      rest_pass = pass;
      rest_pass.stream = false;
      rest_pass.sums = nullptr;
      for (size_t k = 0; k < pass.sources; ++k) {
        std::memcpy(rest_data[k], pass.data[k] + whole * kBytes, rest);
        rest_pass.data[k] = rest_data[k];
      }
      finite &= RunPass<Element, Operation>(rest_pass, step, rest_accumulators, rest_out);
      if (!pass.last) continue;
      std::memcpy(out + (begin + whole) * kBytes, rest_out, rest);
      if (checksum != nullptr) checksum->Add(rest_out, rest);
    }
  }
  if (stream) hwy::FlushStream();
  return finite;
}

template <class Element>
bool ReduceElements(Reduction op, bool weighted, absl::Span<const WeightedSource> sources,
                    double total_weight, size_t count, std::byte* out, RunningChecksum* checksum) {
  switch (op) {
    case Reduction::kAverage:
      if constexpr (hwy::IsFloat<typename Element::Lane>()) {
        return weighted ? ReduceAs<Element, AverageOf>(sources, total_weight, count, out, checksum)
                        : ReduceAs<Element, UnweightedAverageOf>(sources, total_weight, count, out,
                                                                 checksum);
      }
      return true;
    case Reduction::kSum:
      return ReduceAs<Element, SumOf>(sources, 1, count, out, checksum);
    case Reduction::kMin:
      return ReduceAs<Element, MinOf>(sources, 1, count, out, checksum);
    case Reduction::kMax:
      return ReduceAs<Element, MaxOf>(sources, 1, count, out, checksum);
    case Reduction::kProduct:
      return ReduceAs<Element, ProductOf>(sources, 1, count, out, checksum);
  }
  return true;
}

bool ReduceSeveral(DType dtype, Reduction op, bool weighted,
                   absl::Span<const WeightedSource> sources, double total_weight, size_t count,
                   std::byte* out, RunningChecksum* checksum) {
  switch (dtype) {
    case DType::kF64:
      return ReduceElements<Native<double>>(op, weighted, sources, total_weight, count, out,
                                            checksum);
    case DType::kF32:
      return ReduceElements<Native<float>>(op, weighted, sources, total_weight, count, out,
                                           checksum);
    case DType::kF16:
      return ReduceElements<Float16>(op, weighted, sources, total_weight, count, out, checksum);
    case DType::kBF16:
      return ReduceElements<BFloat16>(op, weighted, sources, total_weight, count, out, checksum);
    // Integers are unsigned here, because unsigned arithmetic wraps.
    case DType::kI64:
      return ReduceElements<Native<uint64_t>>(op, weighted, sources, total_weight, count, out,
                                              checksum);
    case DType::kI32:
      return ReduceElements<Native<uint32_t>>(op, weighted, sources, total_weight, count, out,
                                              checksum);
  }
  return true;
}

}  // namespace HWY_NAMESPACE
}  // namespace syncgrads
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "common/kernels/finite.h"
#include "common/kernels/require.h"

namespace syncgrads {

HWY_EXPORT(ReduceSeveral);

bool IsWeight(double weight) { return weight >= 0x1p-64 && weight <= 0x1p64; }

namespace {

// Reduces two or more sources.
bool ReduceAll(DType dtype, Reduction op, absl::Span<const WeightedSource> sources, size_t count,
               std::byte* out, RunningChecksum* checksum) {
  double total_weight = 0;
  bool weighted = false;
  for (const WeightedSource& source : sources) {
    total_weight += source.weight;
    weighted = weighted || source.weight != 1;
  }
  return HWY_DYNAMIC_DISPATCH(ReduceSeveral)(dtype, op, weighted, sources, total_weight, count, out,
                                             checksum);
}

void CheckReduction(DType dtype, Reduction op, absl::Span<const WeightedSource> sources) {
  Require(!sources.empty(), "Reduce of at least one source");
  Require(op != Reduction::kAverage || !IsInteger(dtype), "an average of floats");
}

void Copy(DType dtype, const std::byte* from, size_t count, std::byte* to) {
  if (to != from) std::memcpy(to, from, count * SizeOf(dtype));
}

// Copies a single source and checks that it is finite. Each block is checked while it is in the L1
// cache.
bool CopyFinite(DType dtype, const std::byte* from, size_t count, std::byte* to,
                RunningChecksum* checksum) {
  constexpr size_t kBlockBytes = 8192;
  const size_t element = SizeOf(dtype);
  const size_t block = kBlockBytes / element;
  bool finite = true;
  for (size_t begin = 0; begin < count; begin += block) {
    const size_t elements = std::min(block, count - begin);
    std::byte* const copied = to + begin * element;
    Copy(dtype, from + begin * element, elements, copied);
    finite = AllFinite(dtype, copied, elements) && finite;
    if (checksum != nullptr) checksum->Add(copied, elements * element);
  }
  return finite;
}

}  // namespace

void Reduce(DType dtype, Reduction op, absl::Span<const WeightedSource> sources, size_t count,
            std::byte* out) {
  CheckReduction(dtype, op, sources);
  if (count == 0) return;
  if (sources.size() == 1) return Copy(dtype, sources[0].data, count, out);
  ReduceAll(dtype, op, sources, count, out, nullptr);
}

bool ReduceFinite(DType dtype, Reduction op, absl::Span<const WeightedSource> sources, size_t count,
                  std::byte* out, RunningChecksum* checksum) {
  CheckReduction(dtype, op, sources);
  if (count == 0) return true;
  if (sources.size() > 1) return ReduceAll(dtype, op, sources, count, out, checksum);
  return CopyFinite(dtype, sources[0].data, count, out, checksum);
}

}  // namespace syncgrads

#endif  // HWY_ONCE
