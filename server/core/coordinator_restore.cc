// Coordinator: how it comes back after a crash.

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/coordinator.h"

namespace syncgrads::server {
namespace {

// The job that a record is about; nothing if it is about none.
struct AboutJob {
  std::optional<std::pair<std::string, Generation>> operator()(const PlanChange& change) const {
    return std::pair(change.job, change.generation);
  }
  std::optional<std::pair<std::string, Generation>> operator()(
      const MemberAdmitted& admitted) const {
    return std::pair(admitted.introduction.job, admitted.generation);
  }
  std::optional<std::pair<std::string, Generation>> operator()(
      const MemberWithdrawn& withdrawn) const {
    return std::pair(withdrawn.job, withdrawn.generation);
  }
  std::optional<std::pair<std::string, Generation>> operator()(const MemberReady& ready) const {
    return std::pair(ready.job, ready.generation);
  }
  std::optional<std::pair<std::string, Generation>> operator()(const ServerSeen&) const {
    return std::nullopt;
  }
};

}  // namespace

void Coordinator::Restore(Store& store, const PlanStart& start, const std::vector<Stored>& records,
                          const std::vector<HeldRounds>& held) {
  MutexLock lock(mutex_);
  store_ = &store;
  generations_ = start.generations;
  std::vector<PlanChange> changes;
  std::vector<ServerSeen> servers;
  for (const Stored& record : records) {
    if (const auto* change = std::get_if<PlanChange>(&record)) changes.push_back(*change);
    if (const auto* seen = std::get_if<ServerSeen>(&record)) servers.push_back(*seen);
  }
  log_.Restore(start, changes, servers);
  // Opened, and closed before or after its first worker was let in.
  std::map<std::string, Generation> opened;
  for (const Stored& record : records) {
    const auto about = std::visit(AboutJob(), record);
    if (!about.has_value()) continue;
    const auto& [name, generation] = *about;
    if (const auto* change = std::get_if<PlanChange>(&record)) {
      if (std::holds_alternative<JobOpened>(change->kind)) {
        generations_[name] = generation;
        opened[name] = generation;
        jobs_.erase(name);  // its predecessor of the same name is closed
        continue;
      }
      if (std::holds_alternative<JobClosed>(change->kind)) opened.erase(name);
    }
    CoordinatedJob* job = FindLocked(name);
    if (const auto* admitted = std::get_if<MemberAdmitted>(&record)) {
      if (job == nullptr) {
        auto& restored = jobs_[name];
        restored = std::make_unique<CoordinatedJob>(admitted->introduction, generation,
                                                    SurroundingsLocked(), /*restored=*/true);
        job = restored.get();
      }
      job->Restore(*admitted);
    } else if (job == nullptr) {
      continue;
    } else if (const auto* withdrawn = std::get_if<MemberWithdrawn>(&record)) {
      job->Restore(*withdrawn);
    } else if (const auto* ready = std::get_if<MemberReady>(&record)) {
      job->Restore(*ready);
    } else if (const auto* change = std::get_if<PlanChange>(&record)) {
      job->Restore(*change);
    }
  }
  for (const auto& [name, generation] : opened) {
    if (jobs_.contains(name)) continue;
    PlanChange change{0, name, generation, JobClosed{"its first worker was not let in", false}};
    log_.Number(change);
    own_.Apply(change);
    if (own_.status().ok()) log_.Send(change);
  }
  generations_at_start_ = generations_;
  for (auto& [name, job] : jobs_) {
    job->FinishRestore(held);
    if (!job->closed() && job->AllGone()) CloseLocked(*job, "no worker is left");
    journal_.Note(absl::StrCat("job \"", name, "\", generation ", ToNumber(generations_[name]),
                               ", goes on from the stored state"));
  }
}

PlanStart Coordinator::Position() const {
  MutexLock lock(mutex_);
  return PositionLocked();
}

PlanStart Coordinator::PositionLocked() const {
  PlanStart start = log_.Start();
  start.all_done = own_.all_done();
  start.generations = generations_;
  return start;
}

void Coordinator::ForgetStoredLocked() {
  if (store_ == nullptr || !jobs_.empty() || !log_.settled()) return;
  const absl::Status stored = store_->StartAfresh(PositionLocked());
  // What could be forgotten is no worse for being kept.
  if (!stored.ok()) journal_.Warn(absl::StrCat("cannot shorten the plan: ", stored.message()));
}

}  // namespace syncgrads::server
