#include "server/core/membership/announcements.h"

#include <utility>

namespace syncgrads::server {

std::vector<Announcement> Announcements::TakeUpTo(uint64_t applied) {
  std::vector<Announcement> taken;
  while (!waiting_.empty() && waiting_.front().sequence <= applied) {
    taken.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return taken;
}

}  // namespace syncgrads::server
