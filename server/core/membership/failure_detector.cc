#include "server/core/membership/failure_detector.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/plan/seconds.h"

namespace syncgrads::server {

std::vector<FailureDetector::Failure> FailureDetector::Detect(bool has_begun, bool is_over) {
  const absl::Time now = dependencies_.clock.Now();
  UpdateProgress(now, is_over);
  const bool any_late = std::any_of(progress_.begin(), progress_.end(), [&](const auto& entry) {
    return now - entry.second.behind_since > job_.terms().step_timeout;
  });
  if (any_late) {
    CapProgress();
    UpdateProgress(now, is_over);
  }
  const bool any_heartbeat = AnyHeartbeat(now);
  if (any_heartbeat) Resume("a worker has sent a message again");
  std::vector<Failure> failed;
  bool any_alive = false;
  for (const auto& [id, member] : members_.all()) {
    if (member.gone) continue;
    std::optional<Failure> failure = Check(member, now);
    any_alive = any_alive || !failure.has_value();
    if (failure.has_value()) failed.push_back(*std::move(failure));
  }
  if (failed.empty() || !has_begun || any_heartbeat) return failed;
  if (any_alive || is_abandoned()) return {};
  abandoned_since_ = now;
  const Failure& first = failed.front();
  dependencies_.journal.Record(
      {.kind = EventKind::kWaiting,
       .job = job_.name(),
       .text = absl::StrCat(job_.Quoted(), ": no heartbeat from any worker (worker \"",
                            members_.Find(first.member)->member.name,
                            "\": ", first.reason.message(), "); its state is kept for ",
                            Seconds(dependencies_.options.abandoned_job_ttl)),
       .level = LogLevel::kWarning});
  return {};
}

void FailureDetector::UpdateProgress(absl::Time now, bool is_over) {
  if (job_.terms().step_timeout == absl::ZeroDuration() || !holders_.group().has_value()) return;
  std::erase_if(progress_,
                [this](const auto& entry) { return members_.Find(entry.first) == nullptr; });
  Round furthest{};
  for (const auto& [id, member] : members_.all()) {
    if (member.gone) continue;
    Progress& progress = progress_[id];
    const Round reached = member.pulse->ProgressOf(*holders_.group()).value_or(Round{});
    if (reached > progress.newest) {
      progress.newest = reached;
      progress.behind_since = absl::InfiniteFuture();
    }
    furthest = std::max(furthest, progress.newest);
  }
  for (auto& [id, progress] : progress_) {
    // Once all data has ended, no member waits for the steps of another.
    if (!holders_.IsReady(id) || progress.newest == furthest || is_over) {
      progress.behind_since = absl::InfiniteFuture();
    } else {
      progress.behind_since = std::min(progress.behind_since, now);
    }
  }
}

void FailureDetector::CapProgress() {
  const GroupId group = *holders_.group();
  std::optional<Round> most;
  const std::shared_ptr<Job> here = dependencies_.own.Find(job_.name());
  if (here != nullptr && here->generation() == job_.generation()) {
    most = here->NewestOpenRound(group);
  }
  if (!most.has_value()) {
    for (const auto& [id, progress] : progress_) {
      if (!holders_.IsReady(id)) continue;
      const Round next = Next(progress.newest);
      most = std::min(most.value_or(next), next);
    }
  }
  if (!most.has_value()) return;
  for (auto& [id, progress] : progress_) {
    members_.Find(id)->pulse->CapProgress(group, *most);
    progress.newest = std::min(progress.newest, *most);
  }
}

bool FailureDetector::AnyHeartbeat(absl::Time now) const {
  // This must be much less than the lease minus the heartbeat interval. A fault that all
  // members share, such as a network that is cut, ends their leases within one heartbeat
  // interval. The last heartbeat before the fault must not count as a sign of life then.
  const absl::Duration lately = dependencies_.options.lease / 4;
  const auto& all = members_.all();
  return std::any_of(all.begin(), all.end(), [&](const auto& entry) {
    const JobMember& member = entry.second;
    return !member.gone && member.link != nullptr && now - member.pulse->last_message() <= lately;
  });
}

std::optional<FailureDetector::Failure> FailureDetector::Check(const JobMember& member,
                                                               absl::Time now) const {
  const auto failed = [&member](DropReason kind, const std::string& why) {
    return Failure{member.member.id, kind, absl::FailedPreconditionError(why)};
  };
  const MembershipOptions& options = dependencies_.options;
  const absl::Duration silent = now - member.pulse->last_message();
  if (silent > options.lease) {
    return failed(DropReason::kLease,
                  absl::StrCat("lease of ", Seconds(options.lease), " ended, last message ",
                               Seconds(silent), " ago"));
  }
  if (now - member.link_broken > options.stream_grace) {
    return failed(DropReason::kStream,
                  absl::StrCat("stream broke ", Seconds(now - member.link_broken),
                               " ago, grace is ", Seconds(options.stream_grace)));
  }
  const auto progress = progress_.find(member.member.id);
  if (progress != progress_.end() &&
      now - progress->second.behind_since > job_.terms().step_timeout) {
    return failed(DropReason::kBehind,
                  absl::StrCat("it is alive, but has been behind the others, in step ",
                               ToNumber(progress->second.newest), ", for ",
                               Seconds(now - progress->second.behind_since), "; step_timeout is ",
                               Seconds(job_.terms().step_timeout)));
  }
  absl::Status joined = holders_.CheckJoined(member.member.id, now, options.join_timeout);
  if (joined.ok()) return std::nullopt;
  return Failure{member.member.id, DropReason::kState, std::move(joined)};
}

void FailureDetector::Resume(absl::string_view why) {
  if (!is_abandoned()) return;
  abandoned_since_.reset();
  members_.RenewAll();
  dependencies_.journal.Record({.kind = EventKind::kContinues,
                                .job = job_.name(),
                                .text = absl::StrCat(job_.Quoted(), " continues: ", why)});
}

absl::Duration FailureDetector::abandoned_for() const {
  if (!is_abandoned()) return absl::ZeroDuration();
  return dependencies_.clock.Now() - *abandoned_since_;
}

}  // namespace syncgrads::server
