// How much one worker has in its transports' hands at a time, and which server is next.
//
// A worker's streams are TCP connections of their own, and share its link, and the servers'
// links with those of the other workers, unevenly: one server has all of a step when
// another has half, a chunk waits for the last of its contributions, and links idle in
// turn. Therefore a worker goes from server to server: no more is handed over at once
// than the network takes in a moment, and who has handed over a message goes to the end of
// the line. On a slow link that is one message; on a fast one all streams are busy.

#ifndef SYNCGRADS_CLIENT_SEND_WINDOW_H_
#define SYNCGRADS_CLIENT_SEND_WINDOW_H_

#include <cstddef>
#include <deque>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "client/timers.h"
#include "common/mutex.h"

namespace syncgrads::client {

// Who has messages to hand over.
class Sender {
 public:
  virtual ~Sender() = default;
  // Its turn has come: it may call Take.
  virtual void OnTurn() = 0;
};

// Thread-safe.
class SendWindow {
 public:
  // Less than this goes past the line.
  static constexpr size_t kSmall = 16 << 10;
  // What the network takes in this time may be handed over at once: short beside a
  // step, long beside the time that a thread needs to hand over the next message.
  static constexpr absl::Duration kMoment = absl::Milliseconds(2);

  // `timers` must outlive this object.
  explicit SendWindow(const Timers& timers) : timers_(timers) {}

  // Takes room for `bytes`, to be given back when the kernel has them. False: there is
  // none; `sender` gets a turn after those before it. May be called with the sender's
  // lock held.
  bool Take(const std::shared_ptr<Sender>& sender, size_t bytes);
  // Gives room back, and turns to those who wait; to be called without locks.
  void GiveBack(size_t bytes);
  // Another time in place of kMoment, from the next measurement on.
  void SetMoment(absl::Duration moment);

 private:
  void MeasureLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Timers& timers_;
  Mutex mutex_;
  absl::Duration moment_ ABSL_GUARDED_BY(mutex_) = kMoment;
  // One more message may be taken while less than this is.
  size_t room_ ABSL_GUARDED_BY(mutex_) = 512 << 10;
  size_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<std::weak_ptr<Sender>> line_ ABSL_GUARDED_BY(mutex_);
  // Since `room_` was chosen: what has been given back, and for how long something had
  // been taken, up to `measured_`.
  size_t passed_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration busy_ ABSL_GUARDED_BY(mutex_);
  absl::Time measured_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_SEND_WINDOW_H_
