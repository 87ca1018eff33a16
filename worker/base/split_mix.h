// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
//
// This file is compiled for the host and for CUDA.

#ifndef SYNCGRADS_WORKER_BASE_SPLIT_MIX_H_
#define SYNCGRADS_WORKER_BASE_SPLIT_MIX_H_

#include <cstdint>

namespace syncgrads {

inline constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15;

constexpr uint64_t Mix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// Converts `value` to a multiple of 2^-53 in [0, 1).
constexpr double ToUniform(uint64_t value) { return static_cast<double>(value >> 11) * 0x1p-53; }

// Returns number i, counted from 0, of the stream with the key `key`.
constexpr double UniformAt(uint64_t key, uint64_t i) {
  return ToUniform(Mix64(key + (i + 1) * kGoldenGamma));
}

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_SPLIT_MIX_H_
