// Random numbers that depend only on the seed and are equal on every machine.

#ifndef SYNCGRADS_TESTS_SIM_RANDOM_H_
#define SYNCGRADS_TESTS_SIM_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace syncgrads::sim {

// One step of SplitMix64. Different arguments give different results.
inline uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(Mix(seed)) {}

  uint64_t Next() { return Mix(state_++); }
  // Returns a number from 0 to limit − 1. `limit` must be small compared with 2^64.
  uint64_t Below(uint64_t limit) { return Next() % limit; }
  // Returns a number from `least` to `most`, both included.
  uint64_t Between(uint64_t least, uint64_t most) { return least + Below(most - least + 1); }
  absl::Duration Between(absl::Duration least, absl::Duration most) {
    return least + absl::Nanoseconds(Between(0, absl::ToInt64Nanoseconds(most - least)));
  }
  bool Chance(double probability) {
    return static_cast<double>(Next() >> 11) < probability * static_cast<double>(1ull << 53);
  }
  template <typename T>
  void Shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[Below(i)]);
  }

 private:
  uint64_t state_;
};

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_RANDOM_H_
