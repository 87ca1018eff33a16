// The calls of a data server that have not opened rows yet.

#ifndef SYNCGRADS_WORKER_DATA_SERVICE_OPENING_CALLS_H_
#define SYNCGRADS_WORKER_DATA_SERVICE_OPENING_CALLS_H_

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>

#include <cstddef>
#include <list>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/mutex.h"

namespace syncgrads {

// Limits how many calls wait for their first message, and for how long. Beyond a limit, the call
// that has waited for longest is cancelled, because the first message of an honest worker follows
// its call at once.
//
// Thread-safe.
class OpeningCalls {
 public:
  struct Limits {
    // The maximum number of such calls from one IPv4 address, or from one IPv6 /64 network.
    size_t calls_per_peer = 64;
    size_t calls = 256;
    // A call is cancelled after this time.
    absl::Duration timeout = absl::Seconds(10);
  };

  // A call counts from the construction of its Entry to the destruction, or until it is cancelled.
  class Entry {
   public:
    // `network` is that of the peer; see NetworkOf. `calls` and `call` must outlive this object.
    Entry(OpeningCalls& calls, std::string network, grpc::ServerContext& call);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    class Cancel;
    friend class OpeningCalls;

    OpeningCalls& calls_;
    // Shared with the alarm, whose function may run after the destruction.
    const std::shared_ptr<Cancel> cancel_;
    grpc::Alarm deadline_;
  };

  explicit OpeningCalls(Limits limits) : limits_(limits) {}

 private:
  struct Waiting {
    std::string network;
    std::shared_ptr<Entry::Cancel> cancel;
  };

  // Adds a call. Returns the one to cancel instead of it; null if there is room.
  std::shared_ptr<Entry::Cancel> Add(Waiting call) ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes a call, if it was not removed by Add.
  void Remove(const Entry::Cancel& cancel) ABSL_LOCKS_EXCLUDED(mutex_);

  const Limits limits_;
  Mutex mutex_;
  // In the order of their beginning.
  std::list<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_SERVICE_OPENING_CALLS_H_
