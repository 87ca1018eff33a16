#include "server/core/rounds/arrivals.h"

namespace syncgrads::server {

void Arrivals::Seated(Round round, MemberId member) {
  {
    MutexLock lock(mutex_);
    Seats& seats = seats_[member];
    if (round < seats.round) return;
    if (round > seats.round) seats = {round, 0};
    if (++seats.chunks != chunks_) return;
  }
  Arrival arrival = what_;
  arrival.round = round;
  arrival.member = member;
  relay_.Send(arrival);
}

void Arrivals::ForgetUnless(const Roster& roster) {
  MutexLock lock(mutex_);
  std::erase_if(seats_,
                [&roster](const auto& entry) { return roster.Find(entry.first) == nullptr; });
}

std::vector<Arrival> Arrivals::Newest() const {
  MutexLock lock(mutex_);
  std::vector<Arrival> newest;
  for (const auto& [member, seats] : seats_) {
    if (seats.chunks != chunks_) continue;
    Arrival& arrival = newest.emplace_back(what_);
    arrival.round = seats.round;
    arrival.member = member;
  }
  return newest;
}

}  // namespace syncgrads::server
