#include "worker/base/random.h"

namespace syncgrads {
namespace {

constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15;
constexpr uint64_t kNameFactor = 0xd1342543de82ef95;

uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

uint64_t HashBytes(absl::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : bytes) {
    hash ^= static_cast<unsigned char>(byte);
    hash *= 0x100000001b3;
  }
  return hash;
}

RandomStream::RandomStream(uint64_t seed, std::initializer_list<uint64_t> names)
    : state_(Mix(seed + kGoldenGamma)) {
  for (const uint64_t name : names) {
    // The factor keeps what came before apart from what comes next.
    state_ = Mix(state_ * kNameFactor + Mix(name + kGoldenGamma));
  }
}

uint64_t RandomStream::Next() {
  state_ += kGoldenGamma;
  return Mix(state_);
}

double RandomStream::NextUniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

uint64_t RandomStream::NextBelow(uint64_t bound) {
  // Of the 2^64 values, the first 2^64 mod bound are drawn again.
  const uint64_t rejected = (0 - bound) % bound;
  while (true) {
    const uint64_t value = Next();
    if (value >= rejected) return value % bound;
  }
}

}  // namespace syncgrads
