#include "server/service/events/stall_watch.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace syncgrads::server {

StallWatch::~StallWatch() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void StallWatch::Start() {
  thread_ = std::thread([this] { Run(); });
}

void StallWatch::Run() {
  const absl::Duration interval =
      std::clamp(warning_ / 4, absl::Milliseconds(50), absl::Seconds(1));
  MutexLock lock(mutex_);
  while (!stopping_) {
    const absl::Time next = MonotonicNow() + interval;
    while (!stopping_ && MonotonicNow() < next) changed_.WaitUntil(mutex_, next);
    if (stopping_) return;
    mutex_.Unlock();
    Tick();
    mutex_.Lock();
  }
}

void StallWatch::Tick() {
  const absl::Time now = clock_.Now();
  std::set<RoundKey> open;
  for (const std::shared_ptr<Job>& job : jobs_.All()) {
    for (const RoundWait& wait : job->Stalled(warning_)) {
      const RoundKey key{job->name(), job->generation(), wait.group, wait.round};
      open.insert(key);
      Warned& warned = warned_[key];
      if (now < warned.next) continue;
      const std::string line = absl::StrCat("job \"", job->name(), "\": ", ToString(wait));
      warned = {now + warning_, now - wait.open_for, job->name(),
                absl::StrCat("job \"", job->name(), "\": step ", ToNumber(wait.round),
                             " of group \"", wait.group_name, "\"")};
      journal_.Record({.kind = EventKind::kStalled,
                       .job = job->name(),
                       .text = line,
                       .level = LogLevel::kWarning});
    }
  }
  for (auto warned = warned_.begin(); warned != warned_.end();) {
    if (open.contains(warned->first)) {
      ++warned;
      continue;
    }
    journal_.Record({.kind = EventKind::kContinues,
                     .job = warned->second.job,
                     .text = absl::StrFormat("%s continues after %.1fs", warned->second.what,
                                             absl::ToDoubleSeconds(now - warned->second.since))});
    warned = warned_.erase(warned);
  }
}

}  // namespace syncgrads::server
