// Test data that is difficult for kernels: numbers of all magnitudes, NaNs of all kinds,
// infinities, zeros of both signs, and subnormal numbers, at any alignment.

#ifndef SYNCGRADS_TESTS_COMMON_KERNELS_AWKWARD_H_
#define SYNCGRADS_TESTS_COMMON_KERNELS_AWKWARD_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "gtest/gtest.h"

namespace syncgrads {

// Bytes that begin `offset` bytes after the start of an allocation and end at its end, so that the
// address sanitizer detects an access past their end.
class Bytes {
 public:
  Bytes(size_t size, size_t offset)
      : storage_(new std::byte[offset + size]()), size_(size), offset_(offset) {}

  std::byte* data() { return storage_.get() + offset_; }
  const std::byte* data() const { return storage_.get() + offset_; }
  size_t size() const { return size_; }

 private:
  std::unique_ptr<std::byte[]> storage_;
  size_t size_;
  size_t offset_;
};

// For EXPECT_TRUE: fails with the first element in which two arrays differ.
inline testing::AssertionResult SameBits(DType dtype, const std::byte* got, const std::byte* want,
                                         size_t count) {
  const size_t size = SizeOf(dtype);
  for (size_t i = 0; i < count; ++i) {
    if (std::memcmp(got + i * size, want + i * size, size) == 0) continue;
    uint64_t got_bits = 0, want_bits = 0;
    std::memcpy(&got_bits, got + i * size, size);
    std::memcpy(&want_bits, want + i * size, size);
    return testing::AssertionFailure()
           << NameOf(dtype) << " element " << i << " of " << count << " is 0x"
           << absl::StrCat(absl::Hex(got_bits), ", should be 0x", absl::Hex(want_bits));
  }
  return testing::AssertionSuccess();
}

inline uint64_t AwkwardBits(DType dtype, std::mt19937_64& random) {
  const int size = static_cast<int>(SizeOf(dtype)) * 8;
  const uint64_t any = random() >> (64 - size);
  if (IsInteger(dtype)) return any;
  const int digits = dtype == DType::kF64   ? 52
                     : dtype == DType::kF32 ? 23
                     : dtype == DType::kF16 ? 10
                                            : 7;
  const uint64_t sign = any & (uint64_t{1} << (size - 1));
  const uint64_t one = (uint64_t{1} << (size - 2)) - (uint64_t{1} << digits);
  const uint64_t infinity = (uint64_t{1} << (size - 1)) - (uint64_t{1} << digits);
  const uint64_t fraction = any & ((uint64_t{1} << digits) - 1);
  switch (random() % 16) {
    case 0:
      return sign;  // a zero
    case 1:
      return sign | fraction;  // a subnormal number
    case 2:
      return any;  // any bits: any magnitude, or a NaN
    case 3:
      return random() % 4 != 0 ? sign | one : sign | infinity | (random() % 2 != 0 ? fraction : 0);
    default:
      // Numbers between 1/4 and 4. Their sums are rounded in every way.
      return sign | (one - (uint64_t{2} << digits) + (random() % 4 << digits) + fraction);
  }
}

inline Bytes AwkwardElements(DType dtype, size_t count, size_t offset, std::mt19937_64& random) {
  Bytes bytes(count * SizeOf(dtype), offset);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = AwkwardBits(dtype, random);
    std::memcpy(bytes.data() + i * SizeOf(dtype), &bits, SizeOf(dtype));
  }
  return bytes;
}

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_COMMON_KERNELS_AWKWARD_H_
