#include "server/service/stall_watch.h"

#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace syncgrads::server {

void StallWatch::Tick() {
  const absl::Time now = clock_.Now();
  std::set<RoundKey> open;
  for (const std::shared_ptr<Job>& job : jobs_.All()) {
    for (const RoundWait& wait : job->Explain(std::nullopt)) {
      if (wait.open_for < warning_) continue;
      const RoundKey key{job->name(), job->generation(), wait.group, wait.round};
      open.insert(key);
      Warned& warned = warned_[key];
      if (now < warned.next) continue;
      warned = {now + warning_, now - wait.open_for,
                absl::StrCat("job \"", job->name(), "\": step ", ToNumber(wait.round),
                             " of group \"", wait.group_name, "\"")};
      journal_.Warn(absl::StrCat("job \"", job->name(), "\": ", ToString(wait)));
    }
  }
  for (auto warned = warned_.begin(); warned != warned_.end();) {
    if (open.contains(warned->first)) {
      ++warned;
      continue;
    }
    journal_.Note(absl::StrFormat("%s goes on after %.1fs", warned->second.what,
                                  absl::ToDoubleSeconds(now - warned->second.since)));
    warned = warned_.erase(warned);
  }
}

}  // namespace syncgrads::server
