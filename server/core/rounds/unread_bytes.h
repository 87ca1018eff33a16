// Counts the bytes that wait for one member to read them.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_UNREAD_BYTES_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_UNREAD_BYTES_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <limits>

namespace syncgrads::server {

// The approximate memory of a waiting message beside its bytes: an entry in a queue and, for a
// result, the pages of its slot.
inline constexpr size_t kUnreadOverhead = 4096;

// A counter with a limit, shared by all streams to a member. Thread-safe.
class UnreadBytes {
 public:
  // `pause_at`: from how many bytes on the member's streams are not read; at most half of the
  // limit.
  explicit UnreadBytes(size_t limit, size_t pause_at = std::numeric_limits<size_t>::max())
      : limit_(limit), pause_at_(pause_at) {}

  // Returns the new total, which may be past the limit.
  size_t Add(size_t bytes) { return total_.fetch_add(bytes, std::memory_order_relaxed) + bytes; }
  void Remove(size_t bytes) { total_.fetch_sub(bytes, std::memory_order_relaxed); }

  size_t total() const { return total_.load(std::memory_order_relaxed); }
  size_t pause_at() const { return std::min(pause_at_, limit() / 2); }
  size_t limit() const { return limit_.load(std::memory_order_relaxed); }
  void set_limit(size_t limit) { limit_.store(limit, std::memory_order_relaxed); }

 private:
  std::atomic<size_t> total_{0};
  std::atomic<size_t> limit_;
  const size_t pause_at_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_UNREAD_BYTES_H_
