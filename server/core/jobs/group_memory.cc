#include "server/core/jobs/group_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/start_thread.h"

namespace syncgrads::server {
GroupMemory::GroupMemory(Report report, Discard discard)
    : report_(std::move(report)), discard_(std::move(discard)) {}

GroupMemory::~GroupMemory() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void GroupMemory::Prepare(const GroupPreparation& preparation, uint64_t wanted, Make make) {
  std::shared_ptr<Entry> entry;
  std::optional<GroupPrepared> done;
  {
    MutexLock lock(mutex_);
    std::shared_ptr<Entry>& known = entries_[preparation.key];
    const bool is_new = known == nullptr;
    if (is_new) {
      known = std::make_shared<Entry>();
      known->state = {preparation.job, preparation.generation, preparation.key, 0, wanted,
                      /*done=*/false,  absl::OkStatus()};
      known->make = std::move(make);
    }
    entry = known;
    if (is_new && wanted >= kMinBackgroundBytes && HasThreadLocked()) {
      waiting_.push_back(std::move(entry));
      changed_.NotifyAll();
      return;
    }
    if (!is_new) {
      if (known->state.done) done = known->state;  // otherwise its end will be reported
      entry = nullptr;
    }
  }
  if (entry != nullptr) Allocate(*entry);
  if (done.has_value()) report_(*done);
}

bool GroupMemory::HasThreadLocked() {
  return thread_.joinable() ||
         StartThread("the memory of groups", thread_, [this] { Work(); }).ok();
}

std::optional<GroupResults> GroupMemory::Take(uint64_t key) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end() || !found->second->state.done) return std::nullopt;
  const std::shared_ptr<Entry> entry = std::move(found->second);
  entries_.erase(found);
  if (!entry->results.ok()) return std::nullopt;
  return *std::move(entry->results);
}

void GroupMemory::Forget(uint64_t key) {
  std::shared_ptr<Entry> forgotten;
  bool done = false;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(key);
    if (found == entries_.end()) return;
    forgotten = std::move(found->second);
    done = forgotten->state.done;
    entries_.erase(found);
  }
  // Memory that is being allocated is discarded once that is done.
  if (done) discard_(key);
}

void GroupMemory::ForgetJob(const std::string& job, Generation generation) {
  std::vector<uint64_t> keys;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, entry] : entries_) {
      if (entry->state.job == job && entry->state.generation == generation) keys.push_back(key);
    }
  }
  for (uint64_t key : keys) Forget(key);
}

void GroupMemory::Work() {
  while (true) {
    std::shared_ptr<Entry> entry;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && waiting_.empty()) changed_.WaitUntil(mutex_, absl::InfiniteFuture());
      if (stopping_) return;
      entry = std::move(waiting_.front());
      waiting_.pop_front();
      if (!entries_.contains(entry->state.key)) continue;  // forgotten meanwhile
    }
    Allocate(*entry);
  }
}

void GroupMemory::Allocate(Entry& entry) {
  absl::StatusOr<GroupResults> results = std::exchange(entry.make, nullptr)([&](uint64_t made) {
    GroupPrepared progress;
    {
      MutexLock lock(mutex_);
      entry.state.made = std::max(entry.state.made, std::min(made, entry.state.wanted));
      progress = entry.state;
    }
    report_(progress);
  });
  GroupPrepared state;
  bool wanted = false;
  {
    MutexLock lock(mutex_);
    entry.results = std::move(results);
    entry.state.done = true;
    entry.state.error = entry.results.status();
    if (entry.results.ok()) entry.state.made = entry.state.wanted;
    state = entry.state;
    // Read together with setting `done`: from now on, Take may remove the entry.
    wanted = entries_.contains(state.key);
  }
  if (wanted) {
    report_(state);
  } else {
    discard_(state.key);
  }
}

}  // namespace syncgrads::server
