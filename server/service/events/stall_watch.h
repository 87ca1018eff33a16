// Reports the rounds that have waited for too long, and the workers that they wait for.

#ifndef SYNCGRADS_SERVER_SERVICE_EVENTS_STALL_WATCH_H_
#define SYNCGRADS_SERVER_SERVICE_EVENTS_STALL_WATCH_H_

#include <map>
#include <string>
#include <thread>
#include <tuple>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "server/core/jobs/jobs.h"
#include "server/core/plan/journal.h"

namespace syncgrads::server {

// Has its own thread: explaining a wait takes the locks of the waiting chunks, which may be held
// during a reduction, and no other thread should block on them. Owned by the server.
class StallWatch {
 public:
  // `jobs`, `clock` and `journal` must outlive this object.
  StallWatch(absl::Duration warning, const Jobs& jobs, const Clock& clock, Journal& journal)
      : warning_(warning), jobs_(jobs), clock_(clock), journal_(journal) {}
  ~StallWatch();

  // Starts a thread that calls Tick every `warning` / 4, but not more often than every 50 ms and
  // at least once a second. The thread ends with this object. To be called at most once.
  void Start();

  // Logs a warning for each round that has been open for `warning`, repeats it every `warning`,
  // and logs a note when such a round does not wait any more. One caller at a time.
  void Tick();

 private:
  void Run();

  using RoundKey = std::tuple<std::string, Generation, GroupId, Round>;
  // A round that a warning was logged for.
  struct Warned {
    absl::Time next;   // when to repeat the warning
    absl::Time since;  // when the round was opened
    std::string job;
    std::string what;
  };

  const absl::Duration warning_;
  const Jobs& jobs_;
  const Clock& clock_;
  Journal& journal_;
  // Used by Tick only.
  std::map<RoundKey, Warned> warned_;

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_EVENTS_STALL_WATCH_H_
