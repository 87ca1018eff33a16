#include "server/core/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/optim/optimizer.h"
#include "common/protocol.h"
#include "common/status_macros.h"
#include "server/state/arena.h"

namespace syncgrads::server {
namespace {

std::string Seconds(absl::Duration duration) {
  return absl::StrFormat("%.1fs", absl::ToDoubleSeconds(duration));
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, PlanLog log, Jobs& own, const Clock& clock,
                         Journal& journal)
    : options_(options), own_(own), clock_(clock), journal_(journal), log_(std::move(log)) {}

absl::StatusOr<Coordinator::MemberKey> Coordinator::Admit(const Introduction& introduction,
                                                          std::shared_ptr<MemberLink> link) {
  MutexLock lock(mutex_);
  SYNCGRADS_RETURN_IF_ERROR(CheckLocked(introduction));
  SYNCGRADS_ASSIGN_OR_RETURN(JobState* const job, JobForLocked(introduction));
  const std::string quoted_job = absl::StrCat("job \"", job->name, "\"");
  std::vector<MemberId> superseded;
  size_t present = 0;
  for (auto& [id, member] : job->members) {
    if (member.gone) continue;
    if (member.member.incarnation == introduction.incarnation) {
      return ReturnLocked(*job, member, std::move(link));
    }
    const bool same_name = !introduction.name.empty() && member.member.name == introduction.name;
    const bool same_rank = introduction.rank.has_value() && member.asked_rank == introduction.rank;
    if ((same_name || same_rank) && member.link == nullptr && job->epoch.number == 0) {
      superseded.push_back(id);  // it died before the start, and this is its successor
      continue;
    }
    if (same_name || same_rank) {
      return absl::AlreadyExistsError(
          absl::StrCat(same_name ? absl::StrCat("name \"", introduction.name, "\"")
                                 : absl::StrCat("rank ", *introduction.rank),
                       " of ", quoted_job, " is held by a live worker: \"", member.member.name,
                       "\" on ", member.host, ", incarnation ", ToNumber(member.member.incarnation),
                       ", last heard of ", Seconds(clock_.Now() - member.last_heard), " ago"));
    }
    ++present;
  }
  if (introduction.generation != Generation{}) {
    return absl::FailedPreconditionError(
        absl::StrCat("incarnation ", ToNumber(introduction.incarnation), " is no member of ",
                     quoted_job, " any more; rejoin"));
  }
  if (job->epoch.number != 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        quoted_job, " has begun with its ", job->world_size, " members; no more are admitted"));
  }
  if (present >= job->world_size) {
    return absl::ResourceExhaustedError(
        absl::StrCat(quoted_job, " has ", present, " of ", job->world_size, " members"));
  }
  for (MemberId id : superseded) job->members.erase(id);

  const MemberId id{job->next_member++};
  MemberState& member = job->members[id];
  member.member.id = id;
  member.member.incarnation = introduction.incarnation;
  member.member.name =
      !introduction.name.empty() ? introduction.name : NameForLocked(*job, introduction.rank, id);
  member.asked_rank = introduction.rank;
  member.host = introduction.host;
  member.link = std::move(link);
  member.last_heard = clock_.Now();
  journal_.Note(absl::StrCat(quoted_job, ": worker \"", member.member.name, "\" on ", member.host,
                             " joins as member ", ToNumber(id), ", ", present + 1, " of ",
                             job->world_size));
  if (log_.complete()) WelcomeLocked(*job, member);
  TryStartLocked(*job);
  return MemberKey{job->name, id};
}

absl::Status Coordinator::CheckLocked(const Introduction& introduction) const {
  if (introduction.protocol_version != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the worker speaks protocol version ",
                                                      introduction.protocol_version,
                                                      ", this server speaks ", kProtocolVersion));
  }
  if (introduction.job.empty()) return absl::InvalidArgumentError("a worker names no job");
  if (introduction.incarnation == Incarnation{}) {
    return absl::InvalidArgumentError("a worker's incarnation is 0");
  }
  if (introduction.world_size == 0) {
    return absl::InvalidArgumentError("a job of 0 workers; world_size must be set");
  }
  if (introduction.rank.has_value() && *introduction.rank >= introduction.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", *introduction.rank, " of a job of ",
                                                   introduction.world_size, " workers"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Coordinator::JobState*> Coordinator::JobForLocked(const Introduction& introduction) {
  const auto found = jobs_.find(introduction.job);
  if (found != jobs_.end()) {
    JobState& job = found->second;
    if (job.closed_by != 0) {
      return absl::UnavailableError(absl::StrCat("job \"", job.name, "\" is being closed"));
    }
    if (introduction.token != job.token) {
      return absl::PermissionDeniedError(
          absl::StrCat("the token is not that of job \"", job.name, "\""));
    }
    if (introduction.generation != Generation{} && introduction.generation != job.generation) {
      return absl::FailedPreconditionError(
          absl::StrCat("generation ", ToNumber(introduction.generation), " of job \"", job.name,
                       "\" is not the present one, ", ToNumber(job.generation), "; rejoin"));
    }
    if (introduction.world_size != job.world_size) {
      return absl::FailedPreconditionError(
          absl::StrCat("job \"", job.name, "\" has ", job.world_size,
                       " workers, this one was started for ", introduction.world_size));
    }
    return &job;
  }
  if (introduction.generation != Generation{}) {
    return absl::FailedPreconditionError(absl::StrCat("job \"", introduction.job, "\" is over"));
  }
  if (draining_) {
    return absl::UnavailableError("this server is draining and takes no new jobs");
  }
  JobState& job = jobs_[introduction.job];
  job.name = introduction.job;
  job.token = introduction.token;
  Generation& generation = generations_[job.name];
  generation = Generation{ToNumber(generation) + 1};
  job.generation = generation;
  job.world_size = introduction.world_size;
  job.bytes_per_server.resize(log_.size());
  journal_.Note(absl::StrCat("job \"", job.name, "\" opens for ", job.world_size,
                             " workers, generation ", ToNumber(job.generation)));
  AppendLocked(job, JobOpened{job.token});
  return &job;
}

std::string Coordinator::NameForLocked(const JobState& job, std::optional<uint32_t> rank,
                                       MemberId id) const {
  const auto taken = [&job](const std::string& name) {
    return std::any_of(job.members.begin(), job.members.end(),
                       [&name](const auto& entry) { return entry.second.member.name == name; });
  };
  const std::string name = absl::StrCat("worker-", rank.value_or(ToNumber(id)));
  std::string free = name;
  for (int number = 2; taken(free); ++number) free = absl::StrCat(name, "-", number);
  return free;
}

absl::StatusOr<Coordinator::MemberKey> Coordinator::ReturnLocked(JobState& job, MemberState& member,
                                                                 std::shared_ptr<MemberLink> link) {
  journal_.Note(absl::StrCat("job \"", job.name, "\": worker \"", member.member.name,
                             "\" is back on a new stream"));
  member.link = std::move(link);
  member.link_broken = absl::InfiniteFuture();
  member.last_heard = clock_.Now();
  if (log_.complete()) WelcomeLocked(job, member);
  if (job.epoch_told) {
    member.link->Send(job.generation, job.epoch);
  } else {
    TryStartLocked(job);
  }
  return MemberKey{job.name, member.member.id};
}

void Coordinator::WelcomeLocked(const JobState& job, const MemberState& member) {
  if (member.link == nullptr) return;
  member.link->Send(job.generation,
                    Welcome{member.member.id, member.member.name, log_.addresses(),
                            options_.heartbeat_interval, options_.lease, options_.stream_grace});
}

std::string Coordinator::WaitingForLocked(const JobState& job) const {
  if (!log_.complete()) return absl::StrCat("server ", log_.Absent(), " has not started yet");
  const std::string names =
      absl::StrJoin(job.members, ", ", [](std::string* out, const auto& entry) {
        absl::StrAppend(out, "\"", entry.second.member.name, "\"");
      });
  return absl::StrCat(job.members.size(), " of ", job.world_size, " workers have joined: ", names);
}

void Coordinator::TryStartLocked(JobState& job) {
  if (job.epoch.number != 0) return;
  if (!log_.complete() || job.members.size() < job.world_size) {
    const Waiting waiting{WaitingForLocked(job)};
    for (auto& [id, member] : job.members) {
      if (member.link != nullptr) member.link->Send(job.generation, waiting);
    }
    return;
  }
  std::vector<const MemberState*> ranked;
  for (const auto& [id, member] : job.members) ranked.push_back(&member);
  std::sort(ranked.begin(), ranked.end(), [](const MemberState* a, const MemberState* b) {
    const uint32_t last = ~uint32_t{0};
    const uint32_t rank_a = a->asked_rank.value_or(last), rank_b = b->asked_rank.value_or(last);
    return rank_a != rank_b ? rank_a < rank_b : a->member.name < b->member.name;
  });
  Epoch epoch;
  epoch.number = 1;
  for (const MemberState* member : ranked) epoch.members.push_back(member->member);
  BeginEpochLocked(job, std::move(epoch));
}

void Coordinator::BeginEpochLocked(JobState& job, Epoch epoch) {
  journal_.Note(absl::StrCat(
      "job \"", job.name, "\": epoch ", epoch.number, " of ", epoch.members.size(),
      " workers: ", absl::StrJoin(epoch.members, ", ", [](std::string* out, const Member& member) {
        *out += member.name;
      })));
  job.epoch = std::move(epoch);
  job.epoch_told = false;
  const uint64_t sequence = AppendLocked(job, job.epoch);
  for (const Member& member : job.epoch.members) {
    TellWhenAppliedLocked(job, sequence, member.id, job.epoch);
  }
}

uint64_t Coordinator::AppendLocked(const JobState& job, decltype(PlanChange::kind) kind) {
  PlanChange change{0, job.name, job.generation, std::move(kind)};
  log_.Append(change);
  own_.Apply(change);
  return change.sequence;
}

void Coordinator::TellWhenAppliedLocked(JobState& job, uint64_t sequence, MemberId member,
                                        JobSignal signal) {
  job.pending.push_back({sequence, member, std::move(signal)});
  TellAppliedLocked(job);
}

void Coordinator::TellAppliedLocked(JobState& job) {
  // Once the job is closed, a server that is gone has nothing to do with it.
  const uint64_t applied = job.closed_by != 0 ? log_.applied_by_connected() : log_.applied_by_all();
  size_t told = 0;
  for (; told < job.pending.size() && job.pending[told].sequence <= applied; ++told) {
    const Pending& pending = job.pending[told];
    if (std::holds_alternative<Epoch>(pending.signal)) job.epoch_told = true;
    const auto member = job.members.find(pending.member);
    // A member whose stream is broken asks again on its next.
    if (member == job.members.end() || member->second.link == nullptr) continue;
    member->second.link->Send(job.generation, pending.signal);
    if (std::holds_alternative<Farewell>(pending.signal)) member->second.link = nullptr;
  }
  job.pending.erase(job.pending.begin(), job.pending.begin() + static_cast<ptrdiff_t>(told));
}

Coordinator::MemberState* Coordinator::FindLocked(const MemberKey& key, JobState*& job) {
  const auto found = jobs_.find(key.job);
  if (found == jobs_.end()) return nullptr;
  job = &found->second;
  const auto member = job->members.find(key.member);
  return member == job->members.end() || member->second.gone ? nullptr : &member->second;
}

void Coordinator::Heartbeat(const MemberKey& key) {
  MutexLock lock(mutex_);
  JobState* job = nullptr;
  MemberState* member = FindLocked(key, job);
  if (member == nullptr) return;
  member->last_heard = clock_.Now();
  if (const std::shared_ptr<Job> here = own_.Find(key.job)) {
    here->Heard(key.member, member->last_heard);
  }
}

void Coordinator::Register(const MemberKey& key, uint64_t request, const GroupSpec& spec) {
  MutexLock lock(mutex_);
  RegisterLocked(key, request, spec);
}

void Coordinator::RegisterLocked(const MemberKey& key, uint64_t request, const GroupSpec& spec) {
  JobState* job = nullptr;
  MemberState* member = FindLocked(key, job);
  if (member == nullptr) return;
  member->last_heard = clock_.Now();
  const auto refuse = [&](const absl::Status& error) {
    if (member->link != nullptr) member->link->Send(job->generation, Refused{request, error});
  };
  const auto known = job->groups.find(spec.name);
  if (known != job->groups.end()) {
    const Registration& registration = known->second;
    const absl::Status agreement = CheckAgreement(spec, registration.plan->spec, registration.by);
    if (!agreement.ok()) return refuse(agreement);
    return TellWhenAppliedLocked(*job, registration.sequence, key.member,
                                 Registered{request, registration.plan});
  }
  if (absl::Status valid = Validate(spec); !valid.ok()) return refuse(valid);
  if (job->proposal.has_value()) {
    job->postponed.push_back({key, request, spec});
    return;
  }
  absl::StatusOr<Layout> layout = Layout::Create(spec.tensors, spec.chunk_bytes);
  std::vector<uint64_t> bytes_per_server = job->bytes_per_server;
  std::vector<ServerIndex> servers = PlaceChunks(*layout, bytes_per_server);
  auto plan = std::make_shared<const GroupPlan>(
      GroupPlan{GroupId{static_cast<uint32_t>(job->groups.size())}, spec, *std::move(layout),
                std::move(servers)});
  if (absl::Status fits = CheckMemoryLocked(*job, *plan); !fits.ok()) return refuse(fits);
  job->bytes_per_server = std::move(bytes_per_server);
  journal_.Note(absl::StrCat("job \"", job->name, "\": group ", ToNumber(plan->id), " \"",
                             spec.name, "\" of ", spec.tensors.size(), " tensors, ",
                             plan->layout.total_bytes(), " bytes in ", plan->layout.chunks().size(),
                             " chunks"));
  const uint64_t sequence = AppendLocked(*job, plan);
  job->groups[spec.name] = {plan, member->member.name, sequence};
  TellWhenAppliedLocked(*job, sequence, key.member, Registered{request, plan});
}

absl::Status Coordinator::CheckMemoryLocked(const JobState& job, const GroupPlan& plan) const {
  if (!options_.available_memory) return absl::OkStatus();
  std::vector<uint64_t> bytes(log_.size());
  for (size_t c = 0; c < plan.servers.size(); ++c) {
    bytes[ToNumber(plan.servers[c])] += plan.layout.chunks()[c].bytes();
  }
  const uint64_t largest_share = *std::max_element(bytes.begin(), bytes.end());
  const uint64_t members = job.world_size;
  uint64_t arrays_of_results = 1;
  if (std::holds_alternative<Gather>(plan.spec.rule)) arrays_of_results = members;
  if (const auto* optimizer = std::get_if<Optimizer>(&plan.spec.rule)) {
    arrays_of_results += static_cast<uint64_t>(SlotCount(*optimizer));
  }
  const uint64_t arrays = members + Arena::kSets * arrays_of_results;
  const uint64_t available = options_.available_memory();
  // Divided, since the product may not fit a number.
  if (largest_share <= available / arrays) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("group \"", plan.spec.name, "\" needs ", arrays, " times its ", largest_share,
                   " bytes on each of ", log_.size(), " servers, for ", members,
                   " members' contributions and the results; ", available, " bytes are available"));
}

void Coordinator::Refuse(const MemberKey& key, uint64_t request, const absl::Status& error) {
  MutexLock lock(mutex_);
  JobState* job = nullptr;
  MemberState* member = FindLocked(key, job);
  if (member == nullptr) return;
  member->last_heard = clock_.Now();
  if (member->link != nullptr) member->link->Send(job->generation, Refused{request, error});
}

void Coordinator::End(const MemberKey& key, uint64_t request, GroupId group, Round last_round,
                      bool follows) {
  MutexLock lock(mutex_);
  JobState* job = nullptr;
  MemberState* member = FindLocked(key, job);
  if (member == nullptr) return;
  member->last_heard = clock_.Now();
  if (ToNumber(group) >= job->groups.size()) {
    if (member->link == nullptr) return;
    return member->link->Send(
        job->generation,
        Refused{request, absl::InvalidArgumentError(
                             absl::StrCat("an end of group ", ToNumber(group), ", but job \"",
                                          job->name, "\" has ", job->groups.size(), " groups"))});
  }
  journal_.Note(absl::StrCat("job \"", job->name, "\": worker \"", member->member.name,
                             "\" ends group ", ToNumber(group), " after round ",
                             ToNumber(last_round)));
  const uint64_t sequence = AppendLocked(*job, MemberEnded{key.member, group, last_round, follows});
  TellWhenAppliedLocked(*job, sequence, key.member, Done{request});
}

void Coordinator::Leave(const MemberKey& key, uint64_t request,
                        std::vector<GroupRound> last_rounds) {
  MutexLock lock(mutex_);
  JobState* job = nullptr;
  MemberState* member = FindLocked(key, job);
  if (member == nullptr) return;
  journal_.Note(
      absl::StrCat("job \"", job->name, "\": worker \"", member->member.name, "\" leaves"));
  if (job->epoch.number == 0) {
    if (member->link != nullptr) member->link->Send(job->generation, Farewell{request});
    job->members.erase(key.member);
  } else {
    member->gone = true;
    const uint64_t sequence = AppendLocked(*job, MemberGone{key.member, member->member.incarnation,
                                                            "left", true, std::move(last_rounds)});
    TellWhenAppliedLocked(*job, sequence, key.member, Farewell{request});
  }
  if (AllGoneLocked(*job)) CloseLocked(*job, "every worker has left");
  ForgetClosedLocked();
}

void Coordinator::LinkBroken(const MemberKey& key, const MemberLink* link) {
  MutexLock lock(mutex_);
  JobState* job = nullptr;
  MemberState* member = FindLocked(key, job);
  if (member == nullptr || member->link.get() != link) return;
  member->link = nullptr;
  member->link_broken = clock_.Now();
  journal_.Note(absl::StrCat("job \"", job->name, "\": the stream of worker \"",
                             member->member.name, "\" broke; it has ",
                             Seconds(options_.stream_grace), " to come back"));
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
      CloseLocked(job, absl::StrCat("server ", ToNumber(server.index), " at ", server.address,
                                    " restarted without the job's state"));
    }
    ForgetClosedLocked();
  }
  for (auto& [name, job] : jobs_) {
    if (!complete_before && log_.complete()) {
      for (const auto& [id, member] : job.members) WelcomeLocked(job, member);
    }
    TellAppliedLocked(job);
    TryStartLocked(job);
  }
  return absl::OkStatus();
}

void Coordinator::DetachServer(ServerIndex server, const ServerLink* link) {
  MutexLock lock(mutex_);
  log_.Detach(server, link);
  journal_.Warn(absl::StrCat("server ", ToNumber(server), " is out of reach"));
  for (auto& [name, job] : jobs_) TellAppliedLocked(job);
  ForgetClosedLocked();
}

void Coordinator::Applied(ServerIndex server, const ServerLink* link, uint64_t sequence) {
  MutexLock lock(mutex_);
  if (!log_.Applied(server, link, sequence)) return;
  for (auto& [name, job] : jobs_) TellAppliedLocked(job);
  ForgetClosedLocked();
}

void Coordinator::OpenRounds(ServerIndex server, uint64_t sequence,
                             const std::vector<GroupRound>& rounds) {
  MutexLock lock(mutex_);
  for (auto& [name, job] : jobs_) {
    if (!job.proposal.has_value() || job.proposal->sequence != sequence) continue;
    for (const GroupRound& round : rounds) {
      Round& first = job.proposal->first_rounds[round.group];
      first = std::max(first, round.round);
    }
    job.proposal->answered[ToNumber(server)] = true;
    FinishProposalLocked(job);
  }
}

void Coordinator::Tick() {
  MutexLock lock(mutex_);
  const absl::Time now = clock_.Now();
  for (auto& [name, job] : jobs_) {
    if (job.closed_by != 0) continue;
    std::vector<MemberId> lost;
    for (auto& [id, member] : job.members) {
      if (member.gone) continue;
      if (now - member.last_heard > options_.lease) {
        DropLocked(job, member,
                   absl::StrCat("lease of ", Seconds(options_.lease), " ended, last heard of ",
                                Seconds(now - member.last_heard), " ago"));
        lost.push_back(id);
      } else if (now - member.link_broken > options_.stream_grace) {
        DropLocked(job, member,
                   absl::StrCat("stream broke ", Seconds(now - member.link_broken),
                                " ago, grace is ", Seconds(options_.stream_grace)));
        lost.push_back(id);
      }
    }
    if (lost.empty()) continue;
    if (job.epoch.number == 0) {
      for (MemberId id : lost) job.members.erase(id);
    }
    if (AllGoneLocked(job)) {
      CloseLocked(job, "no worker is left");
    } else if (job.epoch.number == 0) {
      TryStartLocked(job);
    } else {
      ProposeEpochLocked(job);
    }
  }
  ForgetClosedLocked();
}

void Coordinator::DropLocked(JobState& job, MemberState& member, const std::string& reason) {
  journal_.Warn(absl::StrCat("job \"", job.name, "\": worker \"", member.member.name, "\" on ",
                             member.host, " is dropped: ", reason));
  member.gone = true;
  if (job.epoch.number != 0) {
    AppendLocked(job, MemberGone{member.member.id, member.member.incarnation, reason, false, {}});
  }
  if (member.link != nullptr) {
    member.link->Send(job.generation,
                      Expelled{absl::FailedPreconditionError(absl::StrCat(
                          "worker \"", member.member.name, "\" was dropped: ", reason))});
    member.link = nullptr;
  }
}

void Coordinator::ProposeEpochLocked(JobState& job) {
  if (job.proposal.has_value()) return;  // those who went since are left out at its end
  job.proposal = Proposal{0, std::vector<bool>(log_.size(), false), {}};
  PlanChange change{0, job.name, job.generation, EpochProposed{job.epoch.number + 1}};
  job.proposal->sequence = log_.Append(change);
  for (const GroupRound& round : own_.Apply(change)) {
    job.proposal->first_rounds[round.group] = round.round;
  }
  job.proposal->answered[0] = true;
  FinishProposalLocked(job);
}

void Coordinator::FinishProposalLocked(JobState& job) {
  const std::vector<bool>& answered = job.proposal->answered;
  if (!std::all_of(answered.begin(), answered.end(), [](bool answer) { return answer; })) return;
  Epoch epoch;
  epoch.number = job.epoch.number + 1;
  for (const Member& member : job.epoch.members) {
    if (!job.members.at(member.id).gone) epoch.members.push_back(member);
  }
  for (const auto& [group, round] : job.proposal->first_rounds) {
    epoch.first_rounds.push_back({group, round});
  }
  job.proposal.reset();
  BeginEpochLocked(job, std::move(epoch));
  for (const RegistrationRequest& late : std::exchange(job.postponed, {})) {
    RegisterLocked(late.member, late.request, late.spec);
  }
}

bool Coordinator::AllGoneLocked(const JobState& job) const {
  return std::all_of(job.members.begin(), job.members.end(),
                     [](const auto& entry) { return entry.second.gone; });
}

void Coordinator::CloseLocked(JobState& job, const std::string& reason) {
  if (job.closed_by != 0) return;
  journal_.Note(absl::StrCat("job \"", job.name, "\" is closed: ", reason));
  for (auto& [id, member] : job.members) {
    if (std::exchange(member.gone, true) || member.link == nullptr) continue;
    member.link->Send(
        job.generation,
        Expelled{absl::AbortedError(absl::StrCat("job \"", job.name, "\" is closed: ", reason))});
    member.link = nullptr;
  }
  // A job that never began is no reason for servers to think that all is done.
  const bool last =
      job.epoch.number != 0 && std::all_of(jobs_.begin(), jobs_.end(), [&job](const auto& entry) {
        return &entry.second == &job || entry.second.closed_by != 0;
      });
  job.proposal.reset();
  job.postponed.clear();
  job.closed_by = AppendLocked(job, JobClosed{reason, last});
  TellAppliedLocked(job);
}

void Coordinator::ForgetClosedLocked() {
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    // A farewell, or a server, may still have to hear of it.
    const bool told = job->second.closed_by != 0 && job->second.pending.empty() &&
                      job->second.closed_by <= log_.applied_by_connected();
    job = told ? jobs_.erase(job) : std::next(job);
  }
}

void Coordinator::Drain() {
  MutexLock lock(mutex_);
  draining_ = true;
}

void Coordinator::CloseAll(const std::string& reason) {
  MutexLock lock(mutex_);
  for (auto& [name, job] : jobs_) CloseLocked(job, reason);
}

uint64_t Coordinator::open_jobs() const {
  MutexLock lock(mutex_);
  return jobs_.size();
}

}  // namespace syncgrads::server
