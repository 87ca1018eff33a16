#include "worker/base/random.h"

namespace syncgrads {
namespace {

constexpr uint64_t kNameFactor = 0xd1342543de82ef95;

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
    : state_(Mix64(seed + kGoldenGamma)) {
  for (const uint64_t name : names) {
    // The factor makes the key depend on the order of the names.
    state_ = Mix64(state_ * kNameFactor + Mix64(name + kGoldenGamma));
  }
}

uint64_t RandomStream::Next() {
  state_ += kGoldenGamma;
  return Mix64(state_);
}

double RandomStream::NextUniform() { return ToUniform(Next()); }

uint64_t RandomStream::NextBelow(uint64_t bound) {
  // The lowest 2^64 mod bound values are rejected and drawn again.
  const uint64_t rejected = (0 - bound) % bound;
  while (true) {
    const uint64_t value = Next();
    if (value >= rejected) return value % bound;
  }
}

}  // namespace syncgrads
