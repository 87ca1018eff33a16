// Signals to members that wait until every server has applied a change, so that no server
// receives a push that it cannot place.

#ifndef SYNCGRADS_SERVER_CORE_MEMBERSHIP_ANNOUNCEMENTS_H_
#define SYNCGRADS_SERVER_CORE_MEMBERSHIP_ANNOUNCEMENTS_H_

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "common/signals/signals.h"

namespace syncgrads::server {

struct Announcement {
  // The number of the change that every server must have applied.
  uint64_t sequence = 0;
  MemberId member{};
  JobSignal::Kind signal;
};

// A queue: announcements are sent in the order in which they were added. Not thread-safe; owned by
// JobMembers and protected by Coordinator::mutex_.
class Announcements {
 public:
  void Add(Announcement announcement) { waiting_.push_back(std::move(announcement)); }

  // Removes and returns announcements from the front, up to the first one whose change is newer
  // than `applied`.
  std::vector<Announcement> TakeUpTo(uint64_t applied);

  bool empty() const { return waiting_.empty(); }

 private:
  std::deque<Announcement> waiting_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_MEMBERSHIP_ANNOUNCEMENTS_H_
