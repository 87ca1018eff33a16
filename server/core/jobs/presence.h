// One member's connection to one server: its data streams, the time of its last message, and the
// number of bytes that it has not read.

#ifndef SYNCGRADS_SERVER_CORE_JOBS_PRESENCE_H_
#define SYNCGRADS_SERVER_CORE_JOBS_PRESENCE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "server/core/rounds/unread_bytes.h"

namespace syncgrads::server {

// A data stream, as its job uses it. Thread-safe. Called without locks of Presence.
class MemberStream {
 public:
  virtual ~MemberStream() = default;
  // Ends the stream at once. Messages that were not sent are dropped.
  virtual void Cut(const absl::Status& reason) = 0;
  // Ends the stream once all queued messages have been sent.
  virtual void End(const absl::Status& reason) = 0;
};

// The job's PresenceTable owns it, and shares it with the member's streams. Thread-safe.
class Presence {
 public:
  // A client has two data streams to a server by default. When a connection breaks, the server may
  // notice only later that its streams have ended.
  static constexpr size_t kMaxStreams = 64;
  // The least limit of the bytes that wait for a member, however small its job's results are.
  static constexpr size_t kLeastUnreadLimit = size_t{16} << 20;

  void RecordMessage(absl::Time now) {
    last_message_.store(absl::ToUnixNanos(now), std::memory_order_relaxed);
  }
  absl::Time last_message() const {
    return absl::FromUnixNanos(last_message_.load(std::memory_order_relaxed));
  }

  UnreadBytes& unread() { return unread_; }

  // Adds a stream. It is cut or ended with the member's other streams, until it is removed or
  // destroyed.
  //
  // Errors:
  //   ResourceExhausted  the member has kMaxStreams
  //   others             the reason of CutStreams or EndStreams, if one of them was called
  absl::Status AddStream(const std::shared_ptr<MemberStream>& stream);
  void RemoveStream(const MemberStream* stream);
  bool has_streams() const;

  // Cuts all streams, and refuses new ones with `reason`.
  void CutStreams(const absl::Status& reason);
  // Ends all streams, and refuses new ones with `reason`.
  void EndStreams(const absl::Status& reason);

 private:
  // Refuses new streams from now on, and returns the existing ones.
  std::vector<std::shared_ptr<MemberStream>> Close(const absl::Status& reason);

  std::atomic<int64_t> last_message_{0};
  UnreadBytes unread_{kLeastUnreadLimit};

  mutable Mutex mutex_;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  std::map<const MemberStream*, std::weak_ptr<MemberStream>> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_JOBS_PRESENCE_H_
