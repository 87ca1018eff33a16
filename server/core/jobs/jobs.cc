#include "server/core/jobs/jobs.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/signals/round_wait.h"
#include "common/status_macros.h"
#include "server/state/state_file.h"

namespace syncgrads::server {
namespace {

absl::Status ClosedError(const Job& job) {
  return absl::UnavailableError(absl::StrCat("job \"", job.name(), "\" is closed"));
}

}  // namespace

std::vector<GroupRound> Jobs::Apply(const PlanChange& change) {
  std::shared_ptr<Job> job;
  {
    MutexLock lock(mutex_);
    if (change.sequence <= applied_ || !failure_.ok()) return {};
    const auto found = jobs_.find(change.job);
    // `job` stays null if the change opens the job, or if this server has given the job up.
    if (found != jobs_.end()) job = found->second;
  }
  const auto* plan = std::get_if<std::shared_ptr<const GroupPlan>>(&change.kind);
  // Allocated before the change is stored: the files of a stored group always exist.
  absl::StatusOr<GroupResults> results = GroupResults();
  if (job != nullptr && plan != nullptr) results = ResultsFor(*job, **plan, change);
  if (!Keep(change)) {
    // The job does not have the group, so its RemoveState does not delete this file.
    if (plan != nullptr) RemoveResults(change.results_key());
    return {};
  }
  bool idle;
  {
    MutexLock lock(mutex_);
    applied_ = change.sequence;
    plan_ = change.plan;
    if (const auto* opened = std::get_if<JobOpened>(&change.kind)) {
      jobs_[change.job] =
          std::make_shared<Job>(change.job, opened->token, change.generation, self_, clock_,
                                closers_, state_.directory, &to_coordinator_);
      all_done_ = false;
      return {};
    }
    if (const auto* closed = std::get_if<JobClosed>(&change.kind)) {
      jobs_.erase(change.job);
      given_up_.erase(change.job);
      all_done_ = closed->last;
    }
    idle = jobs_.empty() && given_up_.empty();
  }
  if (std::holds_alternative<JobClosed>(change.kind)) {
    if (job != nullptr) End(*job, ClosedError(*job));
    if (idle) ForgetClosed();
    return {};
  }
  if (job == nullptr) return {};
  if (plan != nullptr) {
    if (!results.ok() && journal_ != nullptr) {
      journal_->Warn(
          absl::StrCat("job \"", job->name(), "\": group \"", (*plan)->spec.name,
                       "\" has no shared memory for its results: ", results.status().message()));
    }
    job->AddGroup(*plan, change.results_key(), std::move(results));
    return {};
  }
  return ApplyTo(*job, change);
}

bool Jobs::Keep(const PlanChange& change) {
  if (state_.store == nullptr) return true;
  const absl::Status stored = state_.store->Append(change);
  if (stored.ok()) return true;
  // The store has reserved room for this record.
  PlanChange end = change;
  end.kind = JobClosed{std::string(stored.message()), /*last=*/false, /*given_up=*/true};
  const absl::Status ended = state_.store->Append(end);
  std::shared_ptr<Job> job;
  {
    MutexLock lock(mutex_);
    if (!ended.ok()) {
      failure_ = ended;
      return false;
    }
    applied_ = change.sequence;
    plan_ = change.plan;
    if (const auto found = jobs_.find(change.job); found != jobs_.end()) {
      job = std::move(found->second);
      jobs_.erase(found);
    }
    given_up_[change.job] = {change.job, change.generation, stored};
  }
  if (journal_ != nullptr) {
    journal_->Warn(absl::StrCat(
        "job \"", change.job, "\" is abandoned: its plan could not be stored: ", stored.message()));
  }
  if (job != nullptr) End(*job, ClosedError(*job));
  to_coordinator_.store_failures.Send({change.job, change.generation, stored});
  return false;
}

void Jobs::End(Job& job, const absl::Status& reason) {
  ReportAlerts(job);
  memory_.ForgetJob(job.name(), job.generation());
  job.EndStreams(reason);
  job.RemoveState();
}

std::vector<StoreFailure> Jobs::StoreFailures() const {
  MutexLock lock(mutex_);
  std::vector<StoreFailure> failures;
  for (const auto& [job, failure] : given_up_) failures.push_back(failure);
  return failures;
}

void Jobs::Prepare(const GroupPreparation& preparation) {
  if (preparation.plan == nullptr) return memory_.Forget(preparation.key);
  const std::shared_ptr<Job> job = Find(preparation.job);
  // The job is closed: the coordinator does not wait for an answer.
  if (job == nullptr || job->generation() != preparation.generation) return;
  memory_.Prepare(
      preparation, job->BytesToAllocate(*preparation.plan),
      [job, plan = preparation.plan, key = preparation.key](const AllocationProgress& progress) {
        return job->MakeResults(*plan, key, progress);
      });
}

absl::StatusOr<GroupResults> Jobs::ResultsFor(const Job& job, const GroupPlan& plan,
                                              const PlanChange& change) {
  if (std::optional<GroupResults> made = memory_.Take(change.results_key())) {
    return *std::move(made);
  }
  return job.MakeResults(plan, change.results_key());
}

void Jobs::RemoveResults(uint64_t key) const {
  if (state_.directory != nullptr) StateFile::Remove(state_.directory->group_path(key));
}

std::vector<GroupRound> Jobs::ApplyTo(Job& job, const PlanChange& change) const {
  if (const auto* epoch = std::get_if<Epoch>(&change.kind)) {
    job.AddEpoch(*epoch);
  } else if (const auto* ended = std::get_if<MemberEnded>(&change.kind)) {
    job.End(*ended);
  } else if (const auto* gone = std::get_if<MemberGone>(&change.kind)) {
    if (!gone->graceful) NoteDrop(job, *gone);
    job.Remove(*gone);
  } else if (const auto* quorum = std::get_if<QuorumSet>(&change.kind)) {
    job.FixQuorum(*quorum);
  } else if (const auto* norms = std::get_if<StepNorms>(&change.kind)) {
    job.SetNorms(*norms);
  } else if (const auto* proposed = std::get_if<EpochProposed>(&change.kind)) {
    return job.Hold(proposed->held_for);
  }
  return {};
}

void Jobs::ForgetClosed() {
  if (state_.store == nullptr) return;
  PlanStart start;
  {
    MutexLock lock(mutex_);
    start.plan = plan_;
    start.applied = applied_;
    start.all_done = all_done_;
  }
  const absl::Status stored = state_.store->Reset(start);
  if (stored.ok()) return;
  MutexLock lock(mutex_);
  failure_ = stored;
}

absl::StatusOr<std::vector<HeldRounds>> Jobs::Restore(State state, const PlanStart& start,
                                                      const std::vector<PlanChange>& changes) {
  // Jobs that were closed are not restored. Some of their files may have been deleted.
  std::set<std::pair<std::string, Generation>> closed;
  for (const PlanChange& change : changes) {
    if (std::holds_alternative<JobClosed>(change.kind)) {
      closed.insert({change.job, change.generation});
    }
  }
  std::map<std::string, std::shared_ptr<Job>, std::less<>> jobs;
  std::map<std::string, HeldRounds> held;
  std::map<std::string, StoreFailure> given_up;
  uint64_t plan = start.plan, applied = start.applied;
  bool all_done = start.all_done;
  for (const PlanChange& change : changes) {
    plan = change.plan;
    applied = change.sequence;
    const bool opens = std::holds_alternative<JobOpened>(change.kind);
    if (opens) all_done = false;
    if (const auto* end = std::get_if<JobClosed>(&change.kind)) {
      all_done = end->last;
      given_up.erase(change.job);
      if (end->given_up) {
        given_up[change.job] = {change.job, change.generation,
                                absl::ResourceExhaustedError(end->reason)};
      }
    }
    if (closed.contains({change.job, change.generation})) continue;
    if (opens) {
      jobs[change.job] = std::make_shared<Job>(change.job, std::get<JobOpened>(change.kind).token,
                                               change.generation, self_, clock_, closers_,
                                               state.directory, &to_coordinator_);
      continue;
    }
    const auto job = jobs.find(change.job);
    if (job == jobs.end()) continue;
    if (const auto* group = std::get_if<std::shared_ptr<const GroupPlan>>(&change.kind)) {
      absl::StatusOr<GroupResults> results =
          job->second->OpenResults(**group, change.results_key());
      if (results.ok()) {
        job->second->AddGroup(*group, change.results_key(), std::move(results));
        continue;
      }
      const absl::Status& damage = results.status();
      if (!absl::IsNotFound(damage) && !absl::IsDataLoss(damage)) return damage;
      given_up[change.job] = {change.job, change.generation, absl::DataLossError(damage.message())};
      jobs.erase(job);
      held.erase(change.job);
      continue;
    }
    std::vector<GroupRound> rounds = ApplyTo(*job->second, change);
    if (std::holds_alternative<EpochProposed>(change.kind)) {
      held[change.job] = {change.job, change.sequence, std::move(rounds)};
    } else if (std::holds_alternative<Epoch>(change.kind)) {
      held.erase(change.job);
    }
  }
  SYNCGRADS_RETURN_IF_ERROR(SetAsideDamaged(state, given_up, changes));
  std::vector<HeldRounds> proposals;
  for (auto& [job, rounds] : held) proposals.push_back(std::move(rounds));
  state_ = state;
  MutexLock lock(mutex_);
  jobs_ = std::move(jobs);
  given_up_ = std::move(given_up);
  plan_ = plan;
  applied_ = applied;
  all_done_ = all_done;
  return proposals;
}

absl::Status Jobs::SetAsideDamaged(const State& state,
                                   const std::map<std::string, StoreFailure>& given_up,
                                   const std::vector<PlanChange>& changes) const {
  std::vector<uint64_t> groups;
  for (const PlanChange& change : changes) {
    const auto job = given_up.find(change.job);
    if (job != given_up.end() && job->second.generation == change.generation &&
        absl::IsDataLoss(job->second.error) &&
        std::holds_alternative<std::shared_ptr<const GroupPlan>>(change.kind)) {
      groups.push_back(change.results_key());
    }
  }
  if (groups.empty()) return absl::OkStatus();
  if (journal_ != nullptr) {
    for (const auto& [job, failure] : given_up) {
      if (!absl::IsDataLoss(failure.error)) continue;
      journal_->Warn(absl::StrCat(
          "job \"", job, "\": its state is damaged and is not used: ", failure.error.message(),
          "; it has been moved to ", state.directory->path(), "/unusable"));
    }
  }
  return state.directory->SetAside(groups);
}

void Jobs::Reset(const PlanStart& start) {
  std::vector<std::shared_ptr<Job>> dropped = All();
  {
    MutexLock lock(mutex_);
    jobs_.clear();
    given_up_.clear();
    plan_ = start.plan;
    applied_ = start.applied;
    all_done_ = start.all_done;
  }
  if (state_.store != nullptr) {
    const absl::Status stored = state_.store->Reset(start);
    MutexLock lock(mutex_);
    if (!stored.ok()) failure_ = stored;
  }
  for (const std::shared_ptr<Job>& job : dropped) {
    End(*job, absl::UnavailableError(
                  absl::StrCat("job \"", job->name(), "\" is no longer open on this server")));
  }
}

void Jobs::NoteDrop(Job& job, const MemberGone& gone) const {
  if (journal_ == nullptr) return;
  const std::shared_ptr<const std::vector<RoundWait>> waits = job.ExplainDrop();
  for (const RoundWait& wait : *waits) {
    const bool missing =
        std::any_of(wait.missing.begin(), wait.missing.end(),
                    [&gone](const RoundWait::Missing& one) { return one.member == gone.member; });
    if (!missing) continue;
    journal_->WarnAbout(
        job.name(),
        absl::StrCat("job \"", job.name(), "\": ", ToString(wait),
                     "; the round continues without a worker that was dropped: ", gone.reason));
  }
}

void Jobs::ReportAlerts() const {
  for (const std::shared_ptr<Job>& job : All()) ReportAlerts(*job);
}

void Jobs::RecordAlert(const Job& job, const std::string& line) const {
  journal_->Record({.kind = EventKind::kNonFinite,
                    .job = job.name(),
                    .text = absl::StrCat("job \"", job.name(), "\": ", line),
                    .level = LogLevel::kWarning});
}

void Jobs::ReportAlerts(const Job& job) const {
  if (journal_ == nullptr) return;
  const GradientAlerts::Taken alerts = job.alerts().Take();
  for (const std::string& line : alerts.lines) {
    RecordAlert(job, line);
  }
  if (alerts.more > 0) RecordAlert(job, absl::StrCat(alerts.more, " more gradients like these"));
}

std::vector<Arrival> Jobs::NewestArrivals() const {
  std::vector<Arrival> all;
  for (const std::shared_ptr<Job>& job : All()) {
    const std::vector<Arrival> newest = job->NewestArrivals();
    all.insert(all.end(), newest.begin(), newest.end());
  }
  return all;
}

std::vector<ReducedChunk> Jobs::Reduced() const {
  std::vector<ReducedChunk> all;
  for (const std::shared_ptr<Job>& job : All()) {
    std::vector<ReducedChunk> reduced = job->Reduced();
    std::move(reduced.begin(), reduced.end(), std::back_inserter(all));
  }
  return all;
}

uint64_t Jobs::applied() const {
  MutexLock lock(mutex_);
  return applied_;
}

uint64_t Jobs::plan() const {
  MutexLock lock(mutex_);
  return plan_;
}

absl::Status Jobs::status() const {
  MutexLock lock(mutex_);
  return failure_;
}

std::map<std::pair<std::string, Generation>, uint64_t> Jobs::OldestEpochs() const {
  std::map<std::pair<std::string, Generation>, uint64_t> oldest;
  for (const std::shared_ptr<Job>& job : All()) {
    oldest[{job->name(), job->generation()}] = job->oldest_epoch();
  }
  return oldest;
}

std::shared_ptr<Job> Jobs::Find(absl::string_view name) const {
  MutexLock lock(mutex_);
  const auto job = jobs_.find(name);
  return job == jobs_.end() ? nullptr : job->second;
}

absl::StatusOr<std::shared_ptr<Job>> Jobs::FindFor(absl::string_view name,
                                                   const std::string& token) const {
  std::shared_ptr<Job> job = Find(name);
  if (job == nullptr)
    return absl::NotFoundError(absl::StrCat("no job \"", name, "\" is open here"));
  if (job->HasToken(token)) return job;
  return absl::PermissionDeniedError(absl::StrCat("wrong token for job \"", name, "\""));
}

std::vector<std::shared_ptr<Job>> Jobs::All() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<Job>> all;
  for (const auto& [name, job] : jobs_) all.push_back(job);
  return all;
}

uint64_t Jobs::MemoryBytes() const {
  uint64_t bytes = 0;
  for (const std::shared_ptr<Job>& job : All()) bytes += job->MemoryBytes();
  return bytes;
}

bool Jobs::all_done() const {
  MutexLock lock(mutex_);
  return all_done_;
}

}  // namespace syncgrads::server
