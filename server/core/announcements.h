// What members are to be told once every server has applied a change: so no
// server gets a push that it cannot place.

#ifndef SYNCGRADS_SERVER_CORE_ANNOUNCEMENTS_H_
#define SYNCGRADS_SERVER_CORE_ANNOUNCEMENTS_H_

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "server/core/job_signal.h"

namespace syncgrads::server {

struct Announcement {
  // The change that must have been applied.
  uint64_t sequence = 0;
  MemberId member{};
  JobSignal signal;
};

// Told in the order in which they were added. Not thread-safe.
class Announcements {
 public:
  void Add(Announcement announcement) { waiting_.push_back(std::move(announcement)); }

  // The first ones, as long as their change is no newer than `applied`; they are
  // forgotten here.
  std::vector<Announcement> TakeUpTo(uint64_t applied);

  bool empty() const { return waiting_.empty(); }

 private:
  std::deque<Announcement> waiting_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ANNOUNCEMENTS_H_
