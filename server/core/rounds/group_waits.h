// Whether a group may have a waiting push. A reader that polls uses it to avoid looking at every
// chunk of every group each time.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_GROUP_WAITS_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_GROUP_WAITS_H_

#include <atomic>

namespace syncgrads::server {

// Chunks call Begun, with their lock held. Begun is thread-safe; the other methods have one caller
// at a time.
class GroupWaits {
 public:
  // A push to a chunk of the group has begun to wait. While the flag is set, further calls only
  // read it, in a cache line that no other data shares.
  void Begun() {
    if (!begun_.load(std::memory_order_relaxed)) begun_.store(true, std::memory_order_relaxed);
  }

  // Returns true if the reader has to check the group's chunks.
  bool MayWait() {
    if (begun_.load(std::memory_order_relaxed)) {
      begun_.store(false, std::memory_order_relaxed);
      // The reader looks twice. Begun may have read the flag just before it was reset, and the
      // chunk's state may not be visible yet at the first look.
      looks_ = 2;
    }
    return looks_ > 0;
  }
  // The reader has found no chunk with a waiting push. After the second such call, MayWait returns
  // false until Begun is called.
  void NoneFound() { --looks_; }

 private:
  alignas(64) std::atomic<bool> begun_{false};
  int looks_ = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_GROUP_WAITS_H_
