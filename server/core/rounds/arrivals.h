// Records which members' contributions to a step are complete on this server. The coordinator needs
// this to fix quorums.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_ARRIVALS_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_ARRIVALS_H_

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "common/mutex.h"
#include "server/core/plan/relay.h"
#include "server/core/rounds/chunk_rounds.h"

namespace syncgrads::server {

// A member has contributed to a round of every chunk of a group on one server, or skipped it.
struct Arrival {
  std::string job;
  Generation generation{};
  GroupId group{};
  Round round{};
  MemberId member{};

  friend bool operator==(const Arrival&, const Arrival&) = default;
};

using ArrivalRelay = Relay<Arrival>;

// The arrivals of one group with a quorum. A ServedGroup owns it, and its chunks report to it.
// Thread-safe. `relay` is called without locks of this object.
class Arrivals : public SeatListener {
 public:
  // Each arrival is reported to `relay` as a copy of `what` with the round and the member set.
  // `relay` must outlive this object.
  Arrivals(Arrival what, const ArrivalRelay& relay) : what_(std::move(what)), relay_(relay) {}

  // Sets how many of the group's chunks this server has. Call it before the first contribution.
  void SetChunks(size_t chunks) {
    MutexLock lock(mutex_);
    chunks_ = chunks;
  }

  void Seated(Round round, MemberId member) override;

  // Removes the arrivals of the members that are not in `roster`.
  void ForgetUnless(const Roster& roster);

  // For each member, the newest round that it has contributed to, if that contribution is complete
  // on this server.
  std::vector<Arrival> Newest() const;

 private:
  struct Seats {
    Round round{};
    size_t chunks = 0;
  };

  const Arrival what_;
  const ArrivalRelay& relay_;

  mutable Mutex mutex_;
  size_t chunks_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<MemberId, Seats> seats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_ARRIVALS_H_
