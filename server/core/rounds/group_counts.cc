#include "server/core/rounds/group_counts.h"

namespace syncgrads::server {

std::shared_ptr<GroupCounts::Contributor> GroupCounts::Of(MemberId member) {
  MutexLock lock(mutex_);
  std::shared_ptr<Contributor>& contributor = contributors_[member];
  if (contributor == nullptr) contributor = std::make_shared<Contributor>();
  return contributor;
}

void GroupCounts::Forget(absl::FunctionRef<bool(MemberId)> has_gone) {
  MutexLock lock(mutex_);
  std::erase_if(contributors_, [has_gone](const auto& entry) { return has_gone(entry.first); });
}

std::vector<ContributorCounts> GroupCounts::Contributors() const {
  MutexLock lock(mutex_);
  std::vector<ContributorCounts> all;
  for (const auto& [member, contributor] : contributors_) {
    all.push_back({member, Round{contributor->round.load(std::memory_order_relaxed)},
                   contributor->arrival_lag.Read(),
                   contributor->non_finite.load(std::memory_order_relaxed)});
  }
  return all;
}

}  // namespace syncgrads::server
