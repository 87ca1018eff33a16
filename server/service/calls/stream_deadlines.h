// The deadlines of streams. A stream is called back if its peer has not sent the hello, or not
// read the stream's end or a message of an optimizer's state, in time. The same holds for the
// request of a call (RequestCall) and its answer. The number of streams without a hello is limited
// too: each takes up to 17 KiB of gRPC, and a peer that never acknowledges HTTP/2's settings may
// open any number of them.

#ifndef SYNCGRADS_SERVER_SERVICE_CALLS_STREAM_DEADLINES_H_
#define SYNCGRADS_SERVER_SERVICE_CALLS_STREAM_DEADLINES_H_

#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace syncgrads::server {

// A stream with a deadline. Thread-safe.
class TimedStream {
 public:
  virtual ~TimedStream() = default;
  // The time of the stream's peer is over; it had `time`. Called by Tick, without locks.
  virtual void OnTimeout(absl::Duration time) = 0;
};

// Owned by the server. Thread-safe.
class StreamDeadlines {
 public:
  // The maximum number of streams without a hello. If there are more, the time of the oldest ones
  // is over.
  static constexpr size_t kMostWithoutHello = 4096;

  // `clock` must outlive this object. `timeout` is the time that a peer has to send its hello or
  // request, to read a stream's end or an answer, and to read a message of an optimizer's state.
  StreamDeadlines(absl::Duration timeout, const Clock& clock) : timeout_(timeout), clock_(clock) {}

  // Registers a stream: Tick calls its OnTimeout when the timeout has passed, unless the stream is
  // removed or destroyed before. Returns its deadline.
  absl::Time Add(const std::shared_ptr<TimedStream>& stream);
  // The same for a stream whose hello, or a call whose request, has not come.
  absl::Time AddWithoutHello(const std::shared_ptr<TimedStream>& stream);
  // Removes a stream. `deadline` is the value that it was added with. Does nothing if OnTimeout has
  // been called.
  void Remove(const TimedStream* stream, absl::Time deadline);

  // Calls OnTimeout of each stream whose time is over. To be called repeatedly, by one thread.
  void Tick();

 private:
  // By deadline.
  using Streams = std::map<std::pair<absl::Time, const TimedStream*>, std::weak_ptr<TimedStream>>;
  // Streams whose time is over, and the time that each had.
  using Late = std::vector<std::pair<std::shared_ptr<TimedStream>, absl::Duration>>;

  absl::Time AddTo(Streams& streams, const std::shared_ptr<TimedStream>& stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves the streams whose deadline has passed, and the oldest ones beyond `most`, to `late`.
  void Take(Streams& streams, size_t most, Late& late) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const absl::Duration timeout_;
  const Clock& clock_;

  Mutex mutex_;
  Streams without_hello_ ABSL_GUARDED_BY(mutex_);
  Streams streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CALLS_STREAM_DEADLINES_H_
