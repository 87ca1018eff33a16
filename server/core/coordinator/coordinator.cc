#include "server/core/coordinator/coordinator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/core/plan/check_hello.h"
#include "server/core/plan/seconds.h"

namespace syncgrads::server {

Coordinator::Coordinator(CoordinatorOptions options, PlanLog log, Jobs& own, const Clock& clock,
                         Journal& journal)
    : options_(std::move(options)),
      own_(own),
      clock_(clock),
      awake_(clock, options_.longest_gap),
      journal_(journal),
      log_(std::move(log)),
      // Jobs call this in their methods, which run under mutex_.
      budget_(log_.size(), [this](ServerIndex server)
                               ABSL_NO_THREAD_SAFETY_ANALYSIS { return AvailableLocked(server); }),
      jobs_({options_, log_, budget_, own_, awake_, journal_}, clock) {}

void Coordinator::Restore(Store& store, const PlanStart& start,
                          const std::vector<Stored>& records) {
  MutexLock lock(mutex_);
  store_ = &store;
  jobs_.Restore(store, start, records);
}

std::optional<uint64_t> Coordinator::AvailableLocked(ServerIndex server) const {
  if (server != ServerIndex{0}) return log_.Available(server);
  if (!options_.available_memory) return std::nullopt;
  return options_.available_memory();
}

absl::StatusOr<Coordinator::MemberKey> Coordinator::Admit(const Hello& hello,
                                                          std::shared_ptr<MemberLink> link,
                                                          const absl::Status& may_join) {
  MutexLock lock(mutex_);
  SYNCGRADS_RETURN_IF_ERROR(CheckHello(hello));
  if (!may_join.ok()) {
    const CoordinatedJob* const joined = jobs_.Find(hello.job);
    if (joined == nullptr || !joined->IsMember(hello)) return may_join;
  }
  CoordinatedJob* job = jobs_.Find(hello.job);
  if (jobs_.IsUnknownGeneration(hello)) {
    // Without its token, nothing is reported about a job's generations.
    if (job != nullptr) SYNCGRADS_RETURN_IF_ERROR(job->CheckToken(hello.token));
    return absl::DataLossError(absl::StrCat("unknown generation ", ToNumber(hello.generation),
                                            " of job \"", hello.job,
                                            "\": this server has lost its state"));
  }
  if (job == nullptr) {
    SYNCGRADS_ASSIGN_OR_RETURN(job, OpenLocked(hello));
  } else if (job->CanBeReplacedBy(hello)) {
    jobs_.Close(
        *job,
        absl::StrCat("it had no workers left when a worker on ", hello.host, " started it again"),
        absl::StatusCode::kDataLoss);
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const MemberId member, job->Admit(hello, std::move(link)));
  return MemberKey{job->name(), job->generation(), member, job->PulseOf(member)};
}

CoordinatedJob* Coordinator::FindLocked(const MemberKey& member) const {
  CoordinatedJob* const job = jobs_.Find(member.job);
  return job != nullptr && job->generation() == member.generation ? job : nullptr;
}

absl::StatusOr<CoordinatedJob*> Coordinator::OpenLocked(const Hello& hello) {
  if (hello.generation != Generation{}) {
    return absl::FailedPreconditionError(absl::StrCat("job \"", hello.job, "\" has ended"));
  }
  if (hello.only_running) {
    return absl::AbortedError(absl::StrCat("no job \"", hello.job, "\" is running"));
  }
  if (draining_) {
    return absl::UnavailableError("this server is draining and accepts no new jobs");
  }
  return jobs_.Open(hello);
}

void Coordinator::Heartbeat(const MemberKey& member, syncgrads::Heartbeat heartbeat) {
  if (member.pulse == nullptr) return;
  std::vector<GroupRound>& progress = heartbeat.progress;
  // A longer list has duplicates, or groups that do not exist.
  if (progress.size() > options_.group_limits.max_groups) progress.clear();
  member.pulse->Beat(awake_.Now(), std::move(progress), std::move(heartbeat.figures));
  // Stall reports of this server include the time since a member's last heartbeat.
  const std::shared_ptr<Job> here = own_.Find(member.job);
  if (here != nullptr && here->generation() == member.generation) {
    here->RecordMessage(member.member, clock_.Now());
  }
}

void Coordinator::Ready(const MemberKey& member, uint64_t request, GroupId group) {
  MutexLock lock(mutex_);
  if (CoordinatedJob* job = FindLocked(member)) job->Ready(member.member, request, group);
}

absl::StatusOr<uint32_t> Coordinator::RequestCheckpoint(const std::string& job,
                                                        const std::string& token) {
  MutexLock lock(mutex_);
  SYNCGRADS_ASSIGN_OR_RETURN(CoordinatedJob* const found, jobs_.FindOpen(job));
  return found->RequestCheckpoint(token);
}

void Coordinator::Checkpointed(const MemberKey& member, const CheckpointReport& report) {
  MutexLock lock(mutex_);
  if (CoordinatedJob* job = FindLocked(member)) job->Checkpointed(member.member, report);
}

absl::StatusOr<uint64_t> Coordinator::SetLearningRate(const std::string& job,
                                                      const std::string& token, double factor,
                                                      const std::string& by) {
  MutexLock lock(mutex_);
  SYNCGRADS_ASSIGN_OR_RETURN(CoordinatedJob* const found, jobs_.FindOpen(job));
  return found->SetLearningRate(token, factor, by);
}

void Coordinator::SetLearningRate(const MemberKey& member, uint64_t request, double factor) {
  MutexLock lock(mutex_);
  if (CoordinatedJob* job = FindLocked(member)) {
    job->SetLearningRate(member.member, request, factor);
  }
}

absl::StatusOr<std::vector<MemberReport>> Coordinator::RequestTrace(
    const std::string& job, const std::string& token, const std::map<MemberId, uint64_t>& traces,
    absl::Duration length) {
  MutexLock lock(mutex_);
  SYNCGRADS_ASSIGN_OR_RETURN(CoordinatedJob* const found, jobs_.FindOpen(job));
  return found->RequestTrace(token, traces, length);
}

JobReport Coordinator::Report(const std::string& job) const {
  MutexLock lock(mutex_);
  const CoordinatedJob* const found = jobs_.Find(job);
  return found == nullptr ? JobReport() : found->Report();
}

TrainingCurves Coordinator::Curves(const std::string& job) const {
  MutexLock lock(mutex_);
  const CoordinatedJob* const found = jobs_.Find(job);
  return found == nullptr ? TrainingCurves() : found->curves();
}

std::vector<ServerReport> Coordinator::Servers() const {
  MutexLock lock(mutex_);
  const std::vector<std::string> addresses = log_.addresses();
  std::vector<ServerReport> servers;
  for (uint32_t index = 0; index < addresses.size(); ++index) {
    servers.push_back({addresses[index], log_.IsConnected(ServerIndex{index})});
  }
  return servers;
}

absl::Status Coordinator::Evict(const std::string& job, const std::string& token,
                                const std::string& worker, const std::string& reason) {
  MutexLock lock(mutex_);
  SYNCGRADS_ASSIGN_OR_RETURN(CoordinatedJob* const found, jobs_.FindOpen(job));
  SYNCGRADS_RETURN_IF_ERROR(found->Evict(token, worker, reason));
  if (found->AllGone()) jobs_.Close(*found, "no worker is left");
  return absl::OkStatus();
}

absl::Status Coordinator::Readmit(const std::string& job, const std::string& token,
                                  const std::string& worker) {
  MutexLock lock(mutex_);
  SYNCGRADS_ASSIGN_OR_RETURN(CoordinatedJob* const found, jobs_.FindOpen(job));
  return found->Readmit(token, worker);
}

void Coordinator::Register(const MemberKey& member, uint64_t request, const GroupSpec& spec,
                           double link_rate) {
  // Without the mutex: a group has many tensors.
  const absl::Status valid = Validate(spec);
  if (!valid.ok()) return Refuse(member, request, valid);
  uint64_t bytes = 0;
  for (const TensorSpec& tensor : spec.tensors) bytes += tensor.bytes();
  GroupRegistrations::Ahead ahead;
  {
    MutexLock lock(mutex_);
    const CoordinatedJob* const job = FindLocked(member);
    if (job == nullptr) return;
    ahead = job->LookAhead(spec, bytes, link_rate);
  }
  if (!ahead.fits.ok()) return Refuse(member, request, ahead.fits);
  ahead.Compute(spec);
  MutexLock lock(mutex_);
  if (CoordinatedJob* job = FindLocked(member)) {
    job->Register(member.member, request, spec, link_rate, ahead);
  }
}

void Coordinator::Refuse(const MemberKey& member, uint64_t request, const absl::Status& error) {
  MutexLock lock(mutex_);
  if (CoordinatedJob* job = FindLocked(member)) job->Refuse(member.member, request, error);
}

void Coordinator::End(const MemberKey& member, uint64_t request, GroupId group, Round last_round,
                      bool follows) {
  MutexLock lock(mutex_);
  CoordinatedJob* job = FindLocked(member);
  if (job != nullptr) job->End(member.member, request, group, last_round, follows);
}

void Coordinator::Leave(const MemberKey& member, uint64_t request,
                        std::vector<GroupRound> last_rounds) {
  MutexLock lock(mutex_);
  CoordinatedJob* job = FindLocked(member);
  if (job == nullptr) return;
  job->Leave(member.member, request, std::move(last_rounds));
  // Tick closes a job whose state is lost, with that reason.
  if (job->AllGone() && !job->state_lost()) jobs_.Close(*job, "every worker has left");
  jobs_.ForgetClosed();
}

void Coordinator::LinkBroken(const MemberKey& member, const MemberLink* link) {
  MutexLock lock(mutex_);
  if (CoordinatedJob* job = FindLocked(member)) job->LinkBroken(member.member, link);
}

void Coordinator::AttachOwn(std::shared_ptr<ServerLink> link, const std::vector<HeldRounds>& held) {
  MutexLock lock(mutex_);
  log_.AttachOwn(std::move(link));
  for (const HeldRounds& rounds : held) {
    for (auto& [name, job] : jobs_.all())
      job->OpenRounds(ServerIndex{0}, rounds.sequence, rounds.rounds);
  }
  for (auto& [name, job] : jobs_.all()) job->PrepareOn(ServerIndex{0});
}

absl::Status Coordinator::AttachServer(const ServerIdentity& server,
                                       std::shared_ptr<ServerLink> link) {
  MutexLock lock(mutex_);
  const bool complete_before = log_.complete();
  bool state_lost = false;
  SYNCGRADS_RETURN_IF_ERROR(log_.Attach(server, link, state_lost));
  journal_.Record({.kind = EventKind::kServerConnected,
                   .text = absl::StrCat("server ", ToNumber(server.index), " at ", server.address,
                                        " has connected")});
  if (state_lost) {
    for (auto& [name, job] : jobs_.all()) {
      jobs_.Close(*job,
                  absl::StrCat("server ", ToNumber(server.index), " at ", server.address,
                               " restarted without the job's state"),
                  absl::StatusCode::kDataLoss);
    }
  }
  // The identity is stored only after the jobs are closed. If the coordinator dies between the
  // two, the server's incarnation is still unknown after the restart, and the jobs are closed
  // then.
  if (store_ != nullptr && !log_.IsStored(server.index)) {
    absl::Status stored =
        store_->Append(ServerSeen{server.index, server.address, server.incarnation});
    if (!stored.ok()) {
      log_.Detach(server.index, link.get());
      return stored;
    }
    log_.SetStored(server.index);
  }
  if (state_lost) jobs_.ForgetClosed();
  for (auto& [name, job] : jobs_.all()) {
    // The server may have restarted before the end of its previous stream was noticed. It
    // repeats its reports of reduced chunks.
    job->ForgetReduced(server.index);
    job->PrepareOn(server.index);
    if (!complete_before && log_.complete()) job->WelcomeAll();
    job->SendApplied();
    job->TryStart();
  }
  return absl::OkStatus();
}

void Coordinator::DetachServer(ServerIndex server, const ServerLink* link) {
  MutexLock lock(mutex_);
  if (!log_.Detach(server, link)) return;
  const bool is_needed = jobs_.any_open() || !log_.settled();
  journal_.Record(
      {.kind = EventKind::kServerLost,
       .text = absl::StrCat("server ", ToNumber(server),
                            is_needed ? " is unreachable" : " has disconnected; no job is open"),
       .level = is_needed ? LogLevel::kWarning : LogLevel::kDebug});
  for (auto& [name, job] : jobs_.all()) {
    job->ForgetReduced(server);
    job->SendApplied();
  }
  jobs_.ForgetClosed();
}

void Coordinator::Applied(ServerIndex server, const ServerLink* link, uint64_t sequence) {
  MutexLock lock(mutex_);
  if (!log_.Applied(server, link, sequence)) return;
  for (auto& [name, job] : jobs_.all()) job->SendApplied();
  jobs_.ForgetClosed();
}

void Coordinator::HasRoom(ServerIndex server, const ServerLink* link, uint64_t bytes) {
  MutexLock lock(mutex_);
  log_.SetAvailable(server, link, bytes);
}

void Coordinator::Prepared(ServerIndex server, const GroupPrepared& prepared) {
  MutexLock lock(mutex_);
  CoordinatedJob* job = jobs_.Find(prepared.job);
  if (job != nullptr) job->Prepared(server, prepared);
}

void Coordinator::StoreFailed(ServerIndex server, const StoreFailure& failure) {
  MutexLock lock(mutex_);
  CoordinatedJob* job = jobs_.Find(failure.job);
  if (job != nullptr && job->generation() == failure.generation) {
    job->Fail(absl::Status(failure.error.code(), absl::StrCat("server ", ToNumber(server), ": ",
                                                              failure.error.message())));
  }
}

void Coordinator::OpenRounds(ServerIndex server, uint64_t sequence,
                             const std::vector<GroupRound>& rounds) {
  MutexLock lock(mutex_);
  for (auto& [name, job] : jobs_.all()) job->OpenRounds(server, sequence, rounds);
}

void Coordinator::Arrived(ServerIndex server, const std::vector<Arrival>& arrivals) {
  MutexLock lock(mutex_);
  for (const Arrival& arrival : arrivals) {
    CoordinatedJob* job = jobs_.Find(arrival.job);
    if (job == nullptr) continue;
    job->Arrived(server, arrival);
    job->DecideRounds();
  }
}

void Coordinator::Reduced(ServerIndex server, const std::vector<ReducedChunk>& chunks) {
  MutexLock lock(mutex_);
  for (const ReducedChunk& chunk : chunks) {
    CoordinatedJob* job = jobs_.Find(chunk.job);
    if (job != nullptr) job->Reduced(server, chunk);
  }
}

void Coordinator::Tick() {
  MutexLock lock(mutex_);
  const std::string behind_before = log_.behind();
  log_.Watch(clock_.Now());
  if (log_.behind() != behind_before && !log_.behind().empty()) {
    journal_.Warn(log_.behind());
  }
  for (auto& [name, job] : jobs_.all()) {
    if (job->closed()) continue;
    job->DropLost();
    job->DecideRounds();
    job->SendPreparationProgress();
    job->SendReasons();
    job->SampleCurves(clock_.Now());
    if (!job->failure().ok()) {
      jobs_.Close(*job, absl::StrCat("its plan could not be stored: ", job->failure().message()),
                  job->failure().code());
    } else if (job->AllGone()) {
      jobs_.Close(*job, "no worker is left",
                  job->state_lost() ? absl::StatusCode::kDataLoss : absl::StatusCode::kAborted);
    } else if (const absl::Duration ttl =
                   draining_ ? absl::ZeroDuration() : options_.membership.abandoned_job_ttl;
               job->abandoned_for() > ttl) {
      jobs_.Close(*job, absl::StrCat("none of its workers came back within ", Seconds(ttl)));
    }
  }
  jobs_.ForgetClosed();
}

void Coordinator::Drain() {
  MutexLock lock(mutex_);
  draining_ = true;
}

void Coordinator::CloseAll(const std::string& reason) {
  MutexLock lock(mutex_);
  for (auto& [name, job] : jobs_.all()) jobs_.Close(*job, reason);
}

uint64_t Coordinator::open_jobs() const {
  MutexLock lock(mutex_);
  return jobs_.all().size();
}

absl::Status Coordinator::status() const {
  MutexLock lock(mutex_);
  return jobs_.status();
}

PlanStart Coordinator::Position() const {
  MutexLock lock(mutex_);
  return jobs_.Position();
}

}  // namespace syncgrads::server
