// Limits how much data one worker has handed to its transports at a time, and decides which server
// is next.
//
// Each stream of a worker is a TCP connection. These connections share the worker's link unevenly,
// and so do the connections of several workers on the link of a server. Without a limit, one server
// has received all of a step when another has received half of it; a chunk waits for its last
// contribution, and links idle in turn. Therefore a worker takes the servers in turn. It hands over
// no more at once than the network transfers in a short time, and a sender that has handed over a
// message goes to the end of the queue. On a slow link this is one message; on a fast one all
// streams are busy.

#ifndef SYNCGRADS_CLIENT_LINK_SEND_WINDOW_H_
#define SYNCGRADS_CLIENT_LINK_SEND_WINDOW_H_

#include <cstddef>
#include <deque>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "client/link/timers.h"
#include "common/mutex.h"

namespace syncgrads::client {

// A link that has messages to hand over.
class Sender {
 public:
  virtual ~Sender() = default;
  // The sender's turn has come: it may call Take again. Called without locks.
  virtual void OnTurn() = 0;
};

// Shared by all links of a DataPlane. Calls no sender while `mutex_` is held. Thread-safe.
class SendWindow {
 public:
  // Messages shorter than this are not limited and do not queue.
  static constexpr size_t kSmall = 16 << 10;
  // The amount of data that the network transfers in this time may be handed over at once. It is
  // short compared with a step, and long compared with the time that a thread needs to hand over
  // the next message.
  static constexpr absl::Duration kMoment = absl::Milliseconds(2);

  // `timers` must outlive this object.
  explicit SendWindow(const Timers& timers) : timers_(timers) {}

  // Takes room for a message of `bytes`; GiveBack returns it when the kernel has the bytes. Returns
  // false if there is no room: `sender` is then queued for a turn. May be called with the sender's
  // lock held.
  bool Take(const std::shared_ptr<Sender>& sender, size_t bytes);
  // Returns room, and gives turns to queued senders. Must be called without locks.
  void GiveBack(size_t bytes);
  // Replaces kMoment. It takes effect with the next measurement.
  void SetMoment(absl::Duration moment);

 private:
  void MeasureLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Timers& timers_;
  Mutex mutex_;
  absl::Duration moment_ ABSL_GUARDED_BY(mutex_) = kMoment;
  // A message may be taken while `taken_` is less than this.
  size_t room_ ABSL_GUARDED_BY(mutex_) = 512 << 10;
  size_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<std::weak_ptr<Sender>> line_ ABSL_GUARDED_BY(mutex_);
  // Since `room_` was last computed: the bytes that were given back, and for how long `taken_` was
  // not 0, up to the time `measured_`.
  size_t passed_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration busy_ ABSL_GUARDED_BY(mutex_);
  absl::Time measured_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_LINK_SEND_WINDOW_H_
