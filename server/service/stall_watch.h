// Says out loud which rounds have waited for too long, and for whom.

#ifndef SYNCGRADS_SERVER_SERVICE_STALL_WATCH_H_
#define SYNCGRADS_SERVER_SERVICE_STALL_WATCH_H_

#include <map>
#include <string>
#include <tuple>

#include "absl/time/time.h"
#include "common/clock.h"
#include "server/core/jobs.h"
#include "server/core/journal.h"

namespace syncgrads::server {

// Not thread-safe: one thread ticks it.
class StallWatch {
 public:
  // `jobs`, `clock` and `journal` must outlive this object.
  StallWatch(absl::Duration warning, const Jobs& jobs, const Clock& clock, Journal& journal)
      : warning_(warning), jobs_(jobs), clock_(clock), journal_(journal) {}

  // Warns of each round that has been open for the warning time, and again each
  // time that as much has passed; and notes when such a round has closed.
  void Tick();

 private:
  using RoundKey = std::tuple<std::string, Generation, GroupId, Round>;
  struct Warned {
    absl::Time next;
    absl::Time since;
    std::string what;
  };

  const absl::Duration warning_;
  const Jobs& jobs_;
  const Clock& clock_;
  Journal& journal_;
  std::map<RoundKey, Warned> warned_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_STALL_WATCH_H_
