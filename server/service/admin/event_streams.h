// The calls of Admin.Events on one server.

#ifndef SYNCGRADS_SERVER_SERVICE_ADMIN_EVENT_STREAMS_H_
#define SYNCGRADS_SERVER_SERVICE_ADMIN_EVENT_STREAMS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "proto/admin.pb.h"
#include "server/service/calls/request_call.h"
#include "server/service/events/event_log.h"

namespace syncgrads::server {

// Returns the newest events of `log`, at most `most`, with `self` as their server. Their texts end
// with their details if `with_details` is true.
v1::EventsReply NewestEvents(const EventLog& log, ServerIndex self, size_t most, bool with_details);

// Decides whether a caller may read its events. Returns whether it may read their details too.
//
// Errors:
//   PermissionDenied  the caller may not read the events
//   others            this cannot be decided at present
using EventsPermission = std::function<absl::StatusOr<bool>()>;

struct EventStreamsOptions {
  // The maximum number of calls at a time: in all, and of one network (NetworkOf).
  size_t max_streams = 8;
  size_t max_streams_of_network = 4;
  // How long a caller has to read a message before its call is cancelled.
  absl::Duration write_timeout = absl::Seconds(10);
  // The maximum number of events in one message.
  size_t max_batch = 100;
  // How often the permission of a call is decided again.
  absl::Duration permission_interval = absl::Seconds(10);
};

// A stream has no queue: it reads its next events from the log when the one before has been sent.
// One thread, which the first call starts, begins all writes, so that no other thread waits for a
// stream. Thread-safe.
class EventStreams {
 public:
  // Events are sent with `self` as their server. `log` must outlive this object.
  EventStreams(EventLog& log, ServerIndex self, EventStreamsOptions options = {})
      : log_(log), self_(self), options_(options) {}
  // Waits for the thread. All calls must have ended.
  ~EventStreams();

  // Answers a call of Admin.Events, or refuses it, with ResourceExhausted if there are too many.
  // `permission` is called at the beginning, and on the thread of this object at each
  // permission_interval; it must not block for long. The call ends with PermissionDenied if the
  // caller may not read the events any more.
  void Events(RequestCall& call, const v1::EventsRequest& request, EventsPermission permission);
  // Refuses further calls, and ends those in progress, with Unavailable. Does not wait.
  void Stop();

 private:
  class Stream;

  // Counts a call, and starts the thread if it is the first one.
  //
  // Errors:
  //   ResourceExhausted  there are too many calls, or no thread
  //   Unavailable        after Stop
  absl::Status Add(std::shared_ptr<Stream> stream) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends events until the destructor ends the thread.
  void Run();
  void Remove(const Stream* stream);

  EventLog& log_;
  const ServerIndex self_;
  const EventStreamsOptions options_;

  Mutex mutex_;
  std::vector<std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_ADMIN_EVENT_STREAMS_H_
