// Counts the bytes of payloads by the path that they take.

#ifndef SYNCGRADS_SERVER_SERVICE_PATH_BYTES_H_
#define SYNCGRADS_SERVER_SERVICE_PATH_BYTES_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace syncgrads::server {

enum class PayloadPath { kTcp, kUnix, kSharedMemory };

inline constexpr std::array<PayloadPath, 3> kPayloadPaths = {PayloadPath::kTcp, PayloadPath::kUnix,
                                                             PayloadPath::kSharedMemory};

// Returns the path as a word, for example "tcp".
inline const char* ToString(PayloadPath path) {
  constexpr std::array<const char*, kPayloadPaths.size()> kWords = {"tcp", "unix", "shared_memory"};
  return kWords[static_cast<size_t>(path)];
}

// Thread-safe. Each count is in a cache line of its own.
class PathBytes {
 public:
  void Add(PayloadPath path, uint64_t bytes) {
    counts_[static_cast<size_t>(path)].bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  uint64_t of(PayloadPath path) const {
    return counts_[static_cast<size_t>(path)].bytes.load(std::memory_order_relaxed);
  }

 private:
  struct alignas(64) Count {
    std::atomic<uint64_t> bytes{0};
  };
  std::array<Count, kPayloadPaths.size()> counts_;
};

// The payloads of contributions that were received, and of results that were queued to be sent.
struct Traffic {
  PathBytes received;
  PathBytes sent;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_PATH_BYTES_H_
