// A checksum that is taken while an array is made.

#ifndef SYNCGRADS_COMMON_KERNELS_RUNNING_CHECKSUM_H_
#define SYNCGRADS_COMMON_KERNELS_RUNNING_CHECKSUM_H_

#include <cstddef>
#include <cstdint>

namespace syncgrads {

// What XXH3 is in the middle of a long array: eight sums, to which each stripe of 64
// bytes adds. The array's last 64 bytes are no such stripe.
struct StripeSums {
  static constexpr size_t kStripeBytes = 64;
  static constexpr size_t kStripesPerBlock = 16;
  // The key of a block's stripe i begins at byte 8 i.
  static constexpr size_t kKeyBytes = 192;

  alignas(64) uint64_t sums[8];
  // How many have been added since the last whole block, below kStripesPerBlock.
  size_t in_block = 0;
  // How many are still to come.
  size_t left;
};

// XXH3 with 64 bits (Y. Collet, the xxHash library; the long variant, without a seed), so
// that the library verifies what a kernel has summed while the values were in its
// registers.
//
// Not thread-safe.
class RunningChecksum {
 public:
  // Shorter arrays are summed in other ways.
  static constexpr size_t kLeastBytes = 241;

  // Of an array of `bytes` bytes, kLeastBytes at least.
  explicit RunningChecksum(size_t bytes);

  // The array's next bytes.
  void Add(const std::byte* data, size_t bytes);

  // Null, unless the array's next bytes are `stripes` whole stripes, the last of the
  // array not among them; then the caller adds them to what this points to.
  StripeSums* TakeStripes(size_t stripes);

  // XXH3_64bits() of the array, all of which has been added, and which ends at `end`.
  uint64_t Finish(const std::byte* end) const;

 private:
  const size_t bytes_;
  StripeSums stripes_;
  // The beginning of a stripe.
  alignas(64) std::byte begun_[StripeSums::kStripeBytes];
  size_t begun_bytes_ = 0;
};

// StripeSums::kKeyBytes of them.
const uint8_t* StripeKeys();

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_KERNELS_RUNNING_CHECKSUM_H_
