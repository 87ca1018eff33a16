#include "server/core/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace syncgrads::server {

Coordinator::Coordinator(CoordinatorOptions options, PlanLog log, Jobs& own, const Clock& clock,
                         Journal& journal)
    : options_(std::move(options)),
      own_(own),
      clock_(clock),
      journal_(journal),
      log_(std::move(log)) {}

absl::StatusOr<Coordinator::MemberKey> Coordinator::Admit(const Introduction& introduction,
                                                          std::shared_ptr<MemberLink> link) {
  MutexLock lock(mutex_);
  SYNCGRADS_RETURN_IF_ERROR(CheckIntroduction(introduction));
  if (IsForgottenLocked(introduction)) {
    return absl::DataLossError(
        absl::StrCat("nothing is known here of generation ", ToNumber(introduction.generation),
                     " of job \"", introduction.job, "\": this server has lost its state"));
  }
  CoordinatedJob* job = FindLocked(introduction.job);
  if (job == nullptr) {
    SYNCGRADS_ASSIGN_OR_RETURN(job, OpenLocked(introduction));
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const MemberId member, job->Admit(introduction, std::move(link)));
  return MemberKey{job->name(), member};
}

bool Coordinator::IsForgottenLocked(const Introduction& introduction) const {
  if (introduction.generation == Generation{}) return false;
  const auto newest = [&introduction](const std::map<std::string, Generation>& generations) {
    const auto found = generations.find(introduction.job);
    return found == generations.end() ? Generation{} : found->second;
  };
  if (introduction.generation > newest(generations_)) return true;
  // Those that were given since the start are larger than any before.
  return introduction.generation < options_.first_generation &&
         introduction.generation > newest(generations_at_start_);
}

CoordinatedJob* Coordinator::FindLocked(const std::string& job) {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : found->second.get();
}

absl::StatusOr<CoordinatedJob*> Coordinator::OpenLocked(const Introduction& introduction) {
  if (introduction.generation != Generation{}) {
    return absl::FailedPreconditionError(absl::StrCat("job \"", introduction.job, "\" is over"));
  }
  if (introduction.only_running) {
    return absl::AbortedError(absl::StrCat("no job \"", introduction.job, "\" is running"));
  }
  if (draining_) {
    return absl::UnavailableError("this server is draining and takes no new jobs");
  }
  Generation& generation = generations_[introduction.job];
  generation = std::max(Generation{ToNumber(generation) + 1}, options_.first_generation);
  auto& job = jobs_[introduction.job];
  job = std::make_unique<CoordinatedJob>(introduction, generation, SurroundingsLocked());
  return job.get();
}

void Coordinator::Heartbeat(const MemberKey& member, const std::vector<GroupRound>& progress) {
  MutexLock lock(mutex_);
  if (CoordinatedJob* job = FindLocked(member.job)) job->Heartbeat(member.member, progress);
}

void Coordinator::Ready(const MemberKey& member, uint64_t request, GroupId group) {
  MutexLock lock(mutex_);
  if (CoordinatedJob* job = FindLocked(member.job)) job->Ready(member.member, request, group);
}

absl::StatusOr<uint32_t> Coordinator::AskForCheckpoint(const std::string& job,
                                                       const std::string& token) {
  MutexLock lock(mutex_);
  const CoordinatedJob* const found = FindLocked(job);
  if (found == nullptr || found->closed()) {
    return absl::NotFoundError(absl::StrCat("no job \"", job, "\" is open here"));
  }
  return found->AskForCheckpoint(token);
}

void Coordinator::Checkpointed(const MemberKey& member, const CheckpointReport& report) {
  MutexLock lock(mutex_);
  if (CoordinatedJob* job = FindLocked(member.job)) job->Checkpointed(member.member, report);
}

CheckpointCount Coordinator::checkpoints(const std::string& job) const {
  MutexLock lock(mutex_);
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? CheckpointCount() : found->second->checkpoints();
}

absl::Status Coordinator::Evict(const std::string& job, const std::string& token,
                                const std::string& worker, const std::string& reason) {
  MutexLock lock(mutex_);
  CoordinatedJob* const found = FindLocked(job);
  if (found == nullptr || found->closed()) {
    return absl::NotFoundError(absl::StrCat("no job \"", job, "\" is open here"));
  }
  SYNCGRADS_RETURN_IF_ERROR(found->Evict(token, worker, reason));
  if (found->AllGone()) CloseLocked(*found, "no worker is left");
  return absl::OkStatus();
}

void Coordinator::Register(const MemberKey& member, uint64_t request, const GroupSpec& spec,
                           double link_rate) {
  MutexLock lock(mutex_);
  if (CoordinatedJob* job = FindLocked(member.job))
    job->Register(member.member, request, spec, link_rate);
}

void Coordinator::Refuse(const MemberKey& member, uint64_t request, const absl::Status& error) {
  MutexLock lock(mutex_);
  if (CoordinatedJob* job = FindLocked(member.job)) job->Refuse(member.member, request, error);
}

void Coordinator::End(const MemberKey& member, uint64_t request, GroupId group, Round last_round,
                      bool follows) {
  MutexLock lock(mutex_);
  CoordinatedJob* job = FindLocked(member.job);
  if (job != nullptr) job->End(member.member, request, group, last_round, follows);
}

void Coordinator::Leave(const MemberKey& member, uint64_t request,
                        std::vector<GroupRound> last_rounds) {
  MutexLock lock(mutex_);
  CoordinatedJob* job = FindLocked(member.job);
  if (job == nullptr) return;
  job->Leave(member.member, request, std::move(last_rounds));
  if (job->AllGone()) CloseLocked(*job, "every worker has left");
  ForgetClosedLocked();
}

void Coordinator::LinkBroken(const MemberKey& member, const MemberLink* link) {
  MutexLock lock(mutex_);
  if (CoordinatedJob* job = FindLocked(member.job)) job->LinkBroken(member.member, link);
}

absl::Status Coordinator::AttachServer(const ServerIdentity& server,
                                       std::shared_ptr<ServerLink> link) {
  MutexLock lock(mutex_);
  const bool complete_before = log_.complete();
  bool state_lost = false;
  SYNCGRADS_RETURN_IF_ERROR(log_.Attach(server, std::move(link), state_lost));
  journal_.Note(
      absl::StrCat("server ", ToNumber(server.index), " at ", server.address, " follows"));
  if (state_lost) {
    for (auto& [name, job] : jobs_) {
      CloseLocked(*job,
                  absl::StrCat("server ", ToNumber(server.index), " at ", server.address,
                               " restarted without the job's state"),
                  absl::StatusCode::kDataLoss);
    }
  }
  // After that: a coordinator that dies between the two finds a server that it has
  // not seen, and closes them.
  if (store_ != nullptr) {
    SYNCGRADS_RETURN_IF_ERROR(
        store_->Append(ServerSeen{server.index, server.address, server.incarnation}));
  }
  if (state_lost) ForgetClosedLocked();
  for (auto& [name, job] : jobs_) {
    // It may have started again before its last stream was missed; it says them again.
    job->ForgetReduced(server.index);
    if (!complete_before && log_.complete()) job->ServersComplete();
    job->TellApplied();
    job->TryStart();
  }
  return absl::OkStatus();
}

void Coordinator::DetachServer(ServerIndex server, const ServerLink* link) {
  MutexLock lock(mutex_);
  if (!log_.Detach(server, link)) return;
  const bool is_needed = std::any_of(jobs_.begin(), jobs_.end(),
                                     [](const auto& entry) { return !entry.second->closed(); });
  if (is_needed || !log_.settled()) {
    journal_.Warn(absl::StrCat("server ", ToNumber(server), " is out of reach"));
  } else {
    journal_.Note(absl::StrCat("server ", ToNumber(server), " follows no more; no job is open"));
  }
  for (auto& [name, job] : jobs_) {
    job->ForgetReduced(server);
    job->TellApplied();
  }
  ForgetClosedLocked();
}

void Coordinator::Applied(ServerIndex server, const ServerLink* link, uint64_t sequence) {
  MutexLock lock(mutex_);
  if (!log_.Applied(server, link, sequence)) return;
  for (auto& [name, job] : jobs_) job->TellApplied();
  ForgetClosedLocked();
}

void Coordinator::HasRoom(ServerIndex server, const ServerLink* link, uint64_t bytes) {
  MutexLock lock(mutex_);
  log_.SetAvailable(server, link, bytes);
}

void Coordinator::OpenRounds(ServerIndex server, uint64_t sequence,
                             const std::vector<GroupRound>& rounds) {
  MutexLock lock(mutex_);
  for (auto& [name, job] : jobs_) job->OpenRounds(server, sequence, rounds);
}

void Coordinator::Arrived(ServerIndex server, const std::vector<Arrival>& arrivals) {
  MutexLock lock(mutex_);
  for (const Arrival& arrival : arrivals) {
    CoordinatedJob* job = FindLocked(arrival.job);
    if (job == nullptr) continue;
    job->Arrived(server, arrival);
    job->DecideRounds();
  }
}

void Coordinator::Reduced(ServerIndex server, const std::vector<ReducedChunk>& chunks) {
  MutexLock lock(mutex_);
  for (const ReducedChunk& chunk : chunks) {
    CoordinatedJob* job = FindLocked(chunk.job);
    if (job != nullptr) job->Reduced(server, chunk);
  }
}

void Coordinator::Tick() {
  MutexLock lock(mutex_);
  for (auto& [name, job] : jobs_) {
    if (job->closed()) continue;
    job->DropLost();
    job->DecideRounds();
    if (job->AllGone()) CloseLocked(*job, "no worker is left");
  }
  ForgetClosedLocked();
}

void Coordinator::CloseLocked(CoordinatedJob& job, const std::string& reason,
                              absl::StatusCode code) {
  if (job.closed()) return;
  // A job that never began is no reason for servers to think that all is done.
  // Neither is one whose workers may begin it again.
  const bool last = job.has_begun() && code != absl::StatusCode::kDataLoss &&
                    std::all_of(jobs_.begin(), jobs_.end(), [&job](const auto& entry) {
                      return entry.second.get() == &job || entry.second->closed();
                    });
  job.Close(reason, last, code);
}

void Coordinator::ForgetClosedLocked() {
  const size_t before = jobs_.size();
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    job = job->second->CanBeForgotten() ? jobs_.erase(job) : std::next(job);
  }
  if (jobs_.size() < before) ForgetStoredLocked();
}

void Coordinator::Drain() {
  MutexLock lock(mutex_);
  draining_ = true;
}

void Coordinator::CloseAll(const std::string& reason) {
  MutexLock lock(mutex_);
  for (auto& [name, job] : jobs_) CloseLocked(*job, reason);
}

uint64_t Coordinator::open_jobs() const {
  MutexLock lock(mutex_);
  return jobs_.size();
}

}  // namespace syncgrads::server
