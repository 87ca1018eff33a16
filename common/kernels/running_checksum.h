// A checksum that is computed while an array is written.

#ifndef SYNCGRADS_COMMON_KERNELS_RUNNING_CHECKSUM_H_
#define SYNCGRADS_COMMON_KERNELS_RUNNING_CHECKSUM_H_

#include <cstddef>
#include <cstdint>

namespace syncgrads {

// The state of XXH3 in the middle of a long array: eight sums, to which each stripe of 64 bytes is
// added. The last stripe of the array, which may be shorter, is not added to them.
struct StripeSums {
  static constexpr size_t kStripeBytes = 64;
  static constexpr size_t kStripesPerBlock = 16;
  // The key of stripe i of a block begins at byte 8 i of the keys.
  static constexpr size_t kKeyBytes = 192;

  alignas(64) uint64_t sums[8];
  // Number of stripes added since the last whole block; below kStripesPerBlock.
  size_t in_block = 0;
  // Number of stripes of the array that are still to be added.
  size_t left;
};

// XXH3 with 64 bits (Y. Collet, the xxHash library; the long variant, without a seed). The library
// can thus verify a checksum that a kernel computed while the values were in registers. The owner
// calls Add, or adds stripes to TakeStripes, for all bytes of the array in order, and then Finish.
//
// Not thread-safe.
class RunningChecksum {
 public:
  // Minimum length of an array. XXH3 hashes shorter arrays in other ways.
  static constexpr size_t kLeastBytes = 241;

  // Begins the checksum of an array of `bytes` bytes, at least kLeastBytes.
  explicit RunningChecksum(size_t bytes);

  // Adds the next bytes of the array.
  void Add(const std::byte* data, size_t bytes);

  // Returns the sums to which the caller must then add the array's next `stripes` whole stripes.
  // Returns null if the next byte does not begin a stripe, or if these stripes would include the
  // array's last one; the caller must then use Add.
  StripeSums* TakeStripes(size_t stripes);

  // Returns XXH3_64bits() of the array, which ends at `end` and has been added completely.
  uint64_t Finish(const std::byte* end) const;

 private:
  const size_t bytes_;
  StripeSums stripes_;
  // The bytes of a stripe that is not complete yet.
  alignas(64) std::byte begun_[StripeSums::kStripeBytes];
  size_t begun_bytes_ = 0;
};

// Returns the keys of the stripes, StripeSums::kKeyBytes bytes.
const uint8_t* StripeKeys();

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_KERNELS_RUNNING_CHECKSUM_H_
