// Counts the bytes of payloads by the path that they take and by their codec.

#ifndef SYNCGRADS_SERVER_SERVICE_DATA_PAYLOAD_BYTES_H_
#define SYNCGRADS_SERVER_SERVICE_DATA_PAYLOAD_BYTES_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/codec/encoding.h"

namespace syncgrads::server {

enum class PayloadPath { kTcp, kUnix, kSharedMemory };

inline constexpr std::array<PayloadPath, 3> kPayloadPaths = {PayloadPath::kTcp, PayloadPath::kUnix,
                                                             PayloadPath::kSharedMemory};

// Returns the path as a word, for example "tcp".
inline const char* ToString(PayloadPath path) {
  constexpr std::array<const char*, kPayloadPaths.size()> kWords = {"tcp", "unix", "shared_memory"};
  return kWords[static_cast<size_t>(path)];
}

inline constexpr std::array<Codec, 6> kKnownCodecs = {Codec::kRaw,  Codec::kF16,  Codec::kBF16,
                                                      Codec::kInt8, Codec::kTopK, Codec::kOneBit};

// Thread-safe. Each count is in a cache line of its own.
class PayloadBytes {
 public:
  // Ignores a codec that is not in kKnownCodecs. Contributions with such a codec are refused.
  void Add(PayloadPath path, Codec codec, uint64_t bytes) {
    if (static_cast<size_t>(codec) >= kKnownCodecs.size()) return;
    counts_[Index(path, codec)].bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  uint64_t of(PayloadPath path, Codec codec) const {
    return counts_[Index(path, codec)].bytes.load(std::memory_order_relaxed);
  }

 private:
  struct alignas(64) Count {
    std::atomic<uint64_t> bytes{0};
  };
  static constexpr size_t Index(PayloadPath path, Codec codec) {
    return static_cast<size_t>(path) * kKnownCodecs.size() + static_cast<size_t>(codec);
  }

  std::array<Count, kPayloadPaths.size() * kKnownCodecs.size()> counts_;
};

// The payloads of contributions that were received, and of results that were queued to be sent.
struct Traffic {
  PayloadBytes received;
  PayloadBytes sent;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_DATA_PAYLOAD_BYTES_H_
