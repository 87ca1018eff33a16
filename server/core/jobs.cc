#include "server/core/jobs.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "server/core/round_wait.h"

namespace syncgrads::server {

std::vector<GroupRound> Jobs::Apply(const PlanChange& change) {
  std::shared_ptr<Job> job;
  {
    MutexLock lock(mutex_);
    if (change.sequence <= applied_) return {};
    applied_ = change.sequence;
    if (const auto* opened = std::get_if<JobOpened>(&change.kind)) {
      jobs_[change.job] = std::make_shared<Job>(change.job, opened->token, change.generation, self_,
                                                clock_, closers_);
      all_done_ = false;
      return {};
    }
    if (const auto* closed = std::get_if<JobClosed>(&change.kind)) {
      jobs_.erase(change.job);
      all_done_ = closed->last;
      return {};
    }
    const auto found = jobs_.find(change.job);
    // Of a job that was opened before this server started.
    if (found == jobs_.end()) return {};
    job = found->second;
  }
  if (const auto* plan = std::get_if<std::shared_ptr<const GroupPlan>>(&change.kind)) {
    job->AddGroup(*plan);
  } else if (const auto* epoch = std::get_if<Epoch>(&change.kind)) {
    job->AddEpoch(*epoch);
  } else if (const auto* ended = std::get_if<MemberEnded>(&change.kind)) {
    job->End(*ended);
  } else if (const auto* gone = std::get_if<MemberGone>(&change.kind)) {
    if (!gone->in_order) NoteDrop(*job, *gone);
    job->Remove(*gone);
  } else if (const auto* proposed = std::get_if<EpochProposed>(&change.kind)) {
    return job->Hold(proposed->held_for);
  }
  return {};
}

void Jobs::NoteDrop(const Job& job, const MemberGone& gone) const {
  if (journal_ == nullptr) return;
  for (const RoundWait& wait : job.Explain(std::nullopt)) {
    const bool missing =
        std::any_of(wait.missing.begin(), wait.missing.end(),
                    [&gone](const RoundWait::Missing& one) { return one.member == gone.member; });
    if (!missing) continue;
    journal_->Warn(
        absl::StrCat("job \"", job.name(), "\": ", ToString(wait),
                     "; the round goes on without a worker that was dropped: ", gone.reason));
  }
}

uint64_t Jobs::applied() const {
  MutexLock lock(mutex_);
  return applied_;
}

std::shared_ptr<Job> Jobs::Find(absl::string_view name) const {
  MutexLock lock(mutex_);
  const auto job = jobs_.find(name);
  return job == jobs_.end() ? nullptr : job->second;
}

std::vector<std::shared_ptr<Job>> Jobs::All() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<Job>> all;
  for (const auto& [name, job] : jobs_) all.push_back(job);
  return all;
}

bool Jobs::all_done() const {
  MutexLock lock(mutex_);
  return all_done_;
}

}  // namespace syncgrads::server
