#include "common/kernels/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/kernels/copy.cc"
// clang-format off
#include "hwy/foreach_target.h"  // Includes this file once per instruction set.
// clang-format on
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace syncgrads {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void StreamBytes(uint8_t* to, const uint8_t* from, size_t bytes) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  const size_t head = std::min((lanes - reinterpret_cast<uintptr_t>(to) % lanes) % lanes, bytes);
  std::memcpy(to, from, head);
  size_t at = head;
  for (; at + 4 * lanes <= bytes; at += 4 * lanes) {
    const auto v0 = hn::LoadU(d, from + at);
    const auto v1 = hn::LoadU(d, from + at + lanes);
    const auto v2 = hn::LoadU(d, from + at + 2 * lanes);
    const auto v3 = hn::LoadU(d, from + at + 3 * lanes);
    hn::Stream(v0, d, to + at);
    hn::Stream(v1, d, to + at + lanes);
    hn::Stream(v2, d, to + at + 2 * lanes);
    hn::Stream(v3, d, to + at + 3 * lanes);
  }
  std::memcpy(to + at, from + at, bytes - at);
  // Other threads must not see a later message about the copy before they see the copy.
  hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace syncgrads
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace syncgrads {
namespace {

// Minimum length of a copy that bypasses the caches. Shorter copies may be read again while they
// are still in the cache.
constexpr size_t kFarBytes = 256 << 10;

}  // namespace

HWY_EXPORT(StreamBytes);

void CopyFar(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes < kFarBytes) {
    std::memcpy(to, from, bytes);
  } else {
    HWY_DYNAMIC_DISPATCH(StreamBytes)
    (reinterpret_cast<uint8_t*>(to), reinterpret_cast<const uint8_t*>(from), bytes);
  }
}

}  // namespace syncgrads

#endif  // HWY_ONCE
