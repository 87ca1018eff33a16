#include "server/core/jobs/presence_table.h"

namespace syncgrads::server {

std::shared_ptr<Presence> PresenceTable::Of(MemberId member) {
  MutexLock lock(mutex_);
  std::shared_ptr<Presence>& presence = presences_[member];
  if (presence == nullptr) {
    presence = std::make_shared<Presence>();
    presence->RecordMessage(clock_.Now());
  }
  return presence;
}

std::shared_ptr<const Presence> PresenceTable::Find(MemberId member) const {
  MutexLock lock(mutex_);
  const auto found = presences_.find(member);
  return found == presences_.end() ? nullptr : found->second;
}

void PresenceTable::ForgetUnless(const Roster& roster) {
  MutexLock lock(mutex_);
  std::erase_if(presences_, [&roster](const auto& entry) {
    return roster.Find(entry.first) == nullptr && !entry.second->has_streams();
  });
}

void PresenceTable::EndStreams(const absl::Status& reason) {
  std::map<MemberId, std::shared_ptr<Presence>> presences;
  {
    MutexLock lock(mutex_);
    presences = presences_;
  }
  for (const auto& [member, presence] : presences) presence->EndStreams(reason);
}

}  // namespace syncgrads::server
