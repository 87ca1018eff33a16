// Which members' contributions to a step are complete on this server: what a
// coordinator that fixes quorums has to know.

#ifndef SYNCGRADS_SERVER_CORE_ARRIVALS_H_
#define SYNCGRADS_SERVER_CORE_ARRIVALS_H_

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "common/mutex.h"
#include "server/core/chunk_rounds.h"
#include "server/core/relay.h"

namespace syncgrads::server {

// A member has contributed to a round of every chunk that a server has, or skipped it.
struct Arrival {
  std::string job;
  Generation generation{};
  GroupId group{};
  Round round{};
  MemberId member{};

  friend bool operator==(const Arrival&, const Arrival&) = default;
};

using ArrivalRelay = Relay<Arrival>;

// Of one group. Thread-safe.
class Arrivals : public SeatListener {
 public:
  // Arrivals are told as `what` with a round and a member, to `relay`, which must
  // outlive this object.
  Arrivals(Arrival what, const ArrivalRelay& relay) : what_(std::move(what)), relay_(relay) {}

  // How many chunks this server has. To be called before the first contribution.
  void SetChunks(size_t chunks) {
    MutexLock lock(mutex_);
    chunks_ = chunks;
  }

  void Seated(Round round, MemberId member) override;

  // The newest of each member.
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

#endif  // SYNCGRADS_SERVER_CORE_ARRIVALS_H_
