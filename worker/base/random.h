// Random numbers with the same bits on every machine, compiler and standard library.

#ifndef SYNCGRADS_WORKER_BASE_RANDOM_H_
#define SYNCGRADS_WORKER_BASE_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker/base/split_mix.h"

namespace syncgrads {

// Returns a 64-bit hash of bytes (FNV-1a), the same on every machine. Not cryptographic.
uint64_t HashBytes(absl::string_view bytes);

// A stream of random numbers: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
// number generators", 2014). Its i-th number is a function of the key and i.
//
// Not thread-safe. Not cryptographic.
class RandomStream {
 public:
  // Streams that differ in `seed` or in `names` are independent of each other.
  RandomStream(uint64_t seed, std::initializer_list<uint64_t> names);

  // Returns the key. Must be called before the first Next(): number i of the stream is then
  // Mix64(key() + (i + 1) * kGoldenGamma), see split_mix.h.
  uint64_t key() const { return state_; }

  uint64_t Next();

  // Returns a number that is uniform in [0, 1) and a multiple of 2^-53.
  double NextUniform();

  // Returns a number that is uniform in [0, bound), without bias. `bound` must not be 0.
  uint64_t NextBelow(uint64_t bound);

  // Shuffles `values`. Every order is equally likely (Fisher and Yates).
  template <typename T>
  void Shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1], values[NextBelow(i)]);
    }
  }

 private:
  uint64_t state_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_RANDOM_H_
