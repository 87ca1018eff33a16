#include "server/core/coordinator/job_table.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace syncgrads::server {
namespace {

// The name and generation of the job that a record belongs to; nullopt for ServerSeen.
struct AboutJob {
  std::optional<std::pair<std::string, Generation>> operator()(const PlanChange& change) const {
    return std::pair(change.job, change.generation);
  }
  std::optional<std::pair<std::string, Generation>> operator()(
      const MemberAdmitted& admitted) const {
    return std::pair(admitted.hello.job, admitted.generation);
  }
  std::optional<std::pair<std::string, Generation>> operator()(
      const MemberWithdrawn& withdrawn) const {
    return std::pair(withdrawn.job, withdrawn.generation);
  }
  std::optional<std::pair<std::string, Generation>> operator()(const MemberReady& ready) const {
    return std::pair(ready.job, ready.generation);
  }
  std::optional<std::pair<std::string, Generation>> operator()(
      const WorkerReadmitted& readmitted) const {
    return std::pair(readmitted.job, readmitted.generation);
  }
  std::optional<std::pair<std::string, Generation>> operator()(const LearningRateSet& rate) const {
    return std::pair(rate.job, rate.generation);
  }
  std::optional<std::pair<std::string, Generation>> operator()(const ServerSeen&) const {
    return std::nullopt;
  }
};

}  // namespace

void JobTable::Restore(Store& store, const PlanStart& start, const std::vector<Stored>& records) {
  dependencies_.store = &store;
  for (const auto& [name, generation] : start.generations) {
    generations_.Restore(name, generation, clock_.Now());
  }
  std::vector<PlanChange> changes;
  std::vector<ServerSeen> servers;
  for (const Stored& record : records) {
    if (const auto* change = std::get_if<PlanChange>(&record)) changes.push_back(*change);
    if (const auto* seen = std::get_if<ServerSeen>(&record)) servers.push_back(*seen);
  }
  dependencies_.log.Restore(start, changes, servers);
  // Jobs that were opened and not closed. A job in it that has no admission record is closed
  // below: the coordinator died before the first worker was admitted.
  std::map<std::string, Generation> opened;
  for (const Stored& record : records) {
    const auto about = std::visit(AboutJob(), record);
    if (!about.has_value()) continue;
    const auto& [name, generation] = *about;
    if (const auto* change = std::get_if<PlanChange>(&record)) {
      if (std::holds_alternative<JobOpened>(change->kind)) {
        generations_.Restore(name, generation, clock_.Now());
        opened[name] = generation;
        jobs_.erase(name);  // the previous job of this name is closed
        continue;
      }
      if (std::holds_alternative<JobClosed>(change->kind)) opened.erase(name);
    }
    CoordinatedJob* job = Find(name);
    if (const auto* admitted = std::get_if<MemberAdmitted>(&record)) {
      if (job == nullptr) {
        auto& restored = jobs_[name];
        restored = std::make_unique<CoordinatedJob>(admitted->hello, generation, dependencies_,
                                                    /*restored=*/true);
        job = restored.get();
      }
      job->Restore(*admitted);
    } else if (job == nullptr) {
      continue;
    } else if (const auto* withdrawn = std::get_if<MemberWithdrawn>(&record)) {
      job->Restore(*withdrawn);
    } else if (const auto* ready = std::get_if<MemberReady>(&record)) {
      job->Restore(*ready);
    } else if (const auto* readmitted = std::get_if<WorkerReadmitted>(&record)) {
      job->Restore(*readmitted);
    } else if (const auto* rate = std::get_if<LearningRateSet>(&record)) {
      job->Restore(*rate);
    } else if (const auto* change = std::get_if<PlanChange>(&record)) {
      job->Restore(*change);
    }
  }
  for (const auto& [name, generation] : opened) {
    if (jobs_.contains(name)) continue;
    PlanChange change{0, name, generation, JobClosed{"its first worker was not admitted", false}};
    dependencies_.log.Number(change);
    const absl::Status stored = store.Append(change);
    if (stored.ok()) dependencies_.log.Send(change);
    if (status_.ok()) status_ = stored;
  }
  generations_at_start_ = generations_.All();
  for (auto& [name, job] : jobs_) {
    job->FinishRestore();
    if (!job->closed() && job->AllGone()) Close(*job, "no worker is left");
    dependencies_.journal.Record(
        {.kind = EventKind::kRestored,
         .job = name,
         .text = absl::StrCat("job \"", name, "\", generation ", ToNumber(job->generation()),
                              ", continues from the stored state")});
  }
}

CoordinatedJob* JobTable::Find(const std::string& name) const {
  const auto found = jobs_.find(name);
  return found == jobs_.end() ? nullptr : found->second.get();
}

absl::StatusOr<CoordinatedJob*> JobTable::FindOpen(const std::string& name) const {
  CoordinatedJob* const job = Find(name);
  if (job != nullptr && !job->closed()) return job;
  return absl::NotFoundError(absl::StrCat("no job \"", name, "\" is open here"));
}

bool JobTable::any_open() const {
  return std::any_of(jobs_.begin(), jobs_.end(),
                     [](const auto& entry) { return !entry.second->closed(); });
}

bool JobTable::IsUnknownGeneration(const Hello& hello) const {
  if (hello.generation == Generation{}) return false;
  // If the name was dropped from `generations_`, the job has ended and no state was lost.
  if (hello.generation > std::max(generations_.Newest(hello.job), generations_.forgotten())) {
    return true;
  }
  const auto at_start = generations_at_start_.find(hello.job);
  // Generations assigned since this start are at least first_generation. A smaller one is from
  // before the start, and must be among those restored.
  return hello.generation < dependencies_.options.first_generation &&
         (at_start == generations_at_start_.end() || hello.generation > at_start->second);
}

absl::Status JobTable::MakeRoom() {
  size_t open = 0;
  CoordinatedJob* unused = nullptr;
  for (const auto& [name, job] : jobs_) {
    if (job->closed()) continue;
    ++open;
    if (job->abandoned_for() == absl::ZeroDuration() || job->HasTrained()) continue;
    if (unused == nullptr || job->abandoned_for() > unused->abandoned_for()) unused = job.get();
  }
  const uint32_t most = dependencies_.options.max_jobs;
  if (const size_t closed = jobs_.size() - open; closed >= most_closed_) {
    return absl::ResourceExhaustedError(
        absl::StrCat(closed, " jobs have been closed, of at most ", most_closed_,
                     ", and are kept because not all servers and members have been informed: ",
                     "retry when they have"));
  }
  if (open < most) return absl::OkStatus();
  const std::string limit = absl::StrCat(open, " jobs are open, of at most ", most, " (max_jobs)");
  if (unused == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat(limit, ": retry when one of them has been closed"));
  }
  Close(*unused, absl::StrCat("it was abandoned before its first step, and ", limit));
  return absl::OkStatus();
}

absl::StatusOr<CoordinatedJob*> JobTable::Open(const Hello& hello) {
  const uint32_t workers = std::max(hello.world_size, hello.max_workers);
  const uint32_t most = dependencies_.options.max_workers;
  if (workers > most) {
    return absl::ResourceExhaustedError(absl::StrCat("job \"", hello.job, "\" is for ", workers,
                                                     " workers, this server accepts at most ", most,
                                                     " (--max_workers)"));
  }
  SYNCGRADS_RETURN_IF_ERROR(MakeRoom());
  const Generation generation = generations_.Next(
      hello.job, clock_.Now(), [this](const std::string& name) { return jobs_.contains(name); });
  auto& job = jobs_[hello.job];
  job = std::make_unique<CoordinatedJob>(hello, generation, dependencies_);
  if (absl::Status failure = job->failure(); !failure.ok()) {
    jobs_.erase(hello.job);
    return failure;
  }
  return job.get();
}

void JobTable::Close(CoordinatedJob& job, const std::string& reason, absl::StatusCode code) {
  if (job.closed()) return;
  // `last` lets servers exit, because all jobs are done. That does not hold if the job never
  // began, or if its workers may begin it again.
  const bool last = job.has_begun() && code != absl::StatusCode::kDataLoss &&
                    std::all_of(jobs_.begin(), jobs_.end(), [&job](const auto& entry) {
                      return entry.second.get() == &job || entry.second->closed();
                    });
  const absl::Status stored = job.Close(reason, last, code);
  if (status_.ok()) status_ = stored;
}

void JobTable::ForgetClosed() {
  Store* const store = dependencies_.store;
  const size_t before = jobs_.size();
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    const bool forget = job->second->CanBeForgotten();
    if (forget) generations_.Close(job->first, clock_.Now());
    if (forget && store != nullptr) store->Forget(job->first, job->second->generation());
    job = forget ? jobs_.erase(job) : std::next(job);
  }
  if (jobs_.size() < before) ForgetStored();
}

void JobTable::ForgetStored() {
  Store* const store = dependencies_.store;
  if (store == nullptr || !jobs_.empty() || !dependencies_.log.settled()) return;
  const absl::Status stored = store->Reset(Position());
  // Not fatal: the store keeps records that are no longer needed.
  if (!stored.ok()) {
    dependencies_.journal.Warn(absl::StrCat("cannot compact the plan: ", stored.message()));
  }
}

PlanStart JobTable::Position() const {
  PlanStart start = dependencies_.log.Start();
  start.all_done = dependencies_.own.all_done();
  start.generations = generations_.All();
  return start;
}

}  // namespace syncgrads::server
