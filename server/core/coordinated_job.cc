#include "server/core/coordinated_job.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/core/seconds.h"

namespace syncgrads::server {

CoordinatedJob::CoordinatedJob(const Introduction& first, Generation generation,
                               const JobSurroundings& surroundings, bool restored)
    : with_(surroundings),
      name_(first.job),
      token_(first.token),
      generation_(generation),
      terms_{first.world_size, first.max_workers, first.min_workers, first.step_timeout},
      groups_(surroundings.log.size(), [this](ServerIndex server) { return Available(server); }) {
  if (restored) return;
  with_.journal.Note(absl::StrCat(Quoted(), " opens for ", terms_.world_size, " workers",
                                  is_elastic() ? absl::StrCat(", at least ", terms_.min_workers,
                                                              " and at most ", terms_.max_workers)
                                               : "",
                                  ", generation ", ToNumber(generation_)));
  Append(JobOpened{token_});
}

std::string CoordinatedJob::Quoted() const { return absl::StrCat("job \"", name_, "\""); }

std::optional<uint64_t> CoordinatedJob::Available(ServerIndex server) const {
  if (server != ServerIndex{0}) return with_.log.Available(server);
  if (!with_.options.available_memory) return std::nullopt;
  return with_.options.available_memory();
}

bool CoordinatedJob::AllGone() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const auto& entry) { return entry.second.gone; });
}

uint64_t CoordinatedJob::Append(decltype(PlanChange::kind) kind, std::vector<GroupRound>* held) {
  PlanChange change{0, name_, generation_, std::move(kind)};
  with_.log.Number(change);
  std::vector<GroupRound> rounds = with_.own.Apply(change);
  if (held != nullptr) *held = std::move(rounds);
  // What could not be stored is not spoken of: this server ends, and is told so.
  if (with_.own.status().ok()) with_.log.Send(change);
  return change.sequence;
}

void CoordinatedJob::Send(const MemberState& member, const JobSignal& signal) const {
  if (member.link != nullptr) member.link->Send(generation_, signal);
}

void CoordinatedJob::TellWhenApplied(uint64_t sequence, MemberId member, JobSignal signal) {
  announcements_.Add({sequence, member, std::move(signal)});
  TellApplied();
}

void CoordinatedJob::TellApplied() {
  // Once the job is closed, a server that is gone has nothing to do with it.
  const uint64_t applied = closed() ? with_.log.applied_by_connected() : with_.log.applied_by_all();
  for (const Announcement& told : announcements_.TakeUpTo(applied)) {
    if (std::holds_alternative<Epoch>(told.signal)) epoch_told_ = true;
    const auto member = members_.find(told.member);
    // A member whose stream is broken asks again on its next.
    if (member == members_.end() || member->second.link == nullptr) continue;
    Send(member->second, told.signal);
    if (std::holds_alternative<Farewell>(told.signal)) {
      member->second.link = nullptr;
      member->second.awaits_farewell = false;
    }
  }
}

CoordinatedJob::MemberState* CoordinatedJob::Find(MemberId id) {
  const auto member = members_.find(id);
  return member == members_.end() || member->second.gone ? nullptr : &member->second;
}

void CoordinatedJob::Heartbeat(MemberId id, const std::vector<GroupRound>& progress) {
  MemberState* member = Find(id);
  if (member == nullptr) return;
  member->last_heard = with_.clock.Now();
  if (state_group_.has_value()) {
    const Round reached = FindRound(progress, *state_group_).value_or(Round{});
    if (reached > member->progress) {
      member->progress = reached;
      member->behind_since = absl::InfiniteFuture();
    }
  }
  if (const std::shared_ptr<Job> here = with_.own.Find(name_)) here->Heard(id, member->last_heard);
}

void CoordinatedJob::Register(MemberId id, uint64_t request, const GroupSpec& spec,
                              double link_rate) {
  MemberState* member = Find(id);
  if (member == nullptr) return;
  member->last_heard = with_.clock.Now();
  const auto known = groups_.Find(spec);
  if (!known.ok()) return Send(*member, Refused{request, known.status()});
  if (*known != nullptr) {
    return TellWhenApplied((*known)->sequence, id, Registered{request, (*known)->plan});
  }
  if (absl::Status valid = Validate(spec); !valid.ok()) {
    return Send(*member, Refused{request, valid});
  }
  if (proposal_.has_value()) {
    postponed_.push_back({id, request, spec, link_rate});
    return;
  }
  const auto plan = groups_.Plan(spec, most_workers(), {SharesMemory(), link_rate});
  if (!plan.ok()) return Send(*member, Refused{request, plan.status()});
  with_.journal.Note(absl::StrCat(Quoted(), ": group ", ToNumber((*plan)->id), " \"", spec.name,
                                  "\" of ", spec.tensors.size(), " tensors, ",
                                  (*plan)->layout.total_bytes(), " bytes in ",
                                  (*plan)->layout.chunks().size(), " chunks"));
  const uint64_t sequence = Append(*plan);
  groups_.Add({*plan, member->member.name, sequence});
  BeginTally(*plan);
  TellWhenApplied(sequence, id, Registered{request, *plan});
}

bool CoordinatedJob::SharesMemory() const {
  const std::vector<std::string> servers = with_.log.addresses();
  return std::all_of(members_.begin(), members_.end(),
                     [](const auto& entry) { return entry.second.shares_memory; }) &&
         // The first is this one, and has none if it is not told what to advertise.
         std::all_of(servers.begin() + 1, servers.end(), [](const std::string& server) {
           return absl::StartsWith(server, "127.") || absl::StartsWith(server, "[::1]");
         });
}

void CoordinatedJob::Refuse(MemberId id, uint64_t request, const absl::Status& error) {
  MemberState* member = Find(id);
  if (member == nullptr) return;
  member->last_heard = with_.clock.Now();
  Send(*member, Refused{request, error});
}

void CoordinatedJob::End(MemberId id, uint64_t request, GroupId group, Round last_round,
                         bool follows) {
  MemberState* member = Find(id);
  if (member == nullptr) return;
  member->last_heard = with_.clock.Now();
  if (ToNumber(group) >= groups_.size()) {
    return Send(*member, Refused{request, absl::InvalidArgumentError(absl::StrCat(
                                              "an end of group ", ToNumber(group), ", but ",
                                              Quoted(), " has ", groups_.size(), " groups"))});
  }
  with_.journal.Note(absl::StrCat(Quoted(), ": worker \"", member->member.name, "\" ends group ",
                                  ToNumber(group), " after round ", ToNumber(last_round)));
  if (group == state_group_) member->ended = true;
  TellWhenApplied(Append(MemberEnded{id, group, last_round, follows}), id, Done{request});
}

void CoordinatedJob::Leave(MemberId id, uint64_t request, std::vector<GroupRound> last_rounds) {
  MemberState* member = Find(id);
  if (const auto left = members_.find(id);
      left != members_.end() && left->second.awaits_farewell && left->second.link != nullptr) {
    return TellWhenApplied(0, id, Farewell{request});  // it has come back to ask
  }
  if (member == nullptr) return;
  with_.journal.Note(absl::StrCat(Quoted(), ": worker \"", member->member.name, "\" leaves"));
  if (!has_begun()) {
    Send(*member, Farewell{request});
    return Withdraw(id);
  }
  member->gone = true;
  member->awaits_farewell = true;
  const uint64_t sequence =
      Append(MemberGone{id, member->member.incarnation, "left", true, std::move(last_rounds)});
  TellWhenApplied(sequence, id, Farewell{request});
  // Whoever is left of an elastic job knows that it has become smaller.
  if (is_elastic() && !AllGone() && !IsOver()) GoOnWithout();
}

void CoordinatedJob::Ready(MemberId id, uint64_t request, GroupId group) {
  MemberState* member = Find(id);
  if (member == nullptr) return;
  member->last_heard = with_.clock.Now();
  if (IsNewcomer(*member)) {
    return Send(
        *member,
        Refused{request, absl::FailedPreconditionError(absl::StrCat(
                             "worker \"", member->member.name, "\" is ready, but in no epoch"))});
  }
  if (!state_group_.has_value()) state_group_ = group;
  if (group != *state_group_) {
    return Send(*member, Refused{request, absl::InvalidArgumentError(absl::StrCat(
                                              "worker \"", member->member.name,
                                              "\" has its state in group ", ToNumber(group),
                                              ", the others in group ", ToNumber(*state_group_)))});
  }
  if (!member->ready) {
    const absl::Status kept = Keep(MemberReady{name_, generation_, id, group});
    if (!kept.ok()) return Send(*member, Refused{request, kept});
  }
  member->ready = true;
  if (std::exchange(member->behind, false)) {
    with_.journal.Note(
        absl::StrCat(Quoted(), ": worker \"", member->member.name, "\" is up to date"));
  }
  Send(*member, Done{request});
  TryGrow();
}

absl::Status CoordinatedJob::Evict(const std::string& token, const std::string& worker,
                                   const std::string& reason) {
  if (token != token_) {
    return absl::PermissionDeniedError(absl::StrCat("the token is not that of ", Quoted()));
  }
  const auto found = std::find_if(members_.begin(), members_.end(), [&worker](const auto& entry) {
    return !entry.second.gone && entry.second.member.name == worker;
  });
  if (found == members_.end()) {
    return absl::NotFoundError(absl::StrCat(Quoted(), " has no worker \"", worker, "\""));
  }
  Drop(found->second, absl::AbortedError(absl::StrCat("evicted: ", reason)));
  if (!AllGone()) GoOnWithout();
  return absl::OkStatus();
}

void CoordinatedJob::LinkBroken(MemberId id, const MemberLink* link) {
  if (const auto left = members_.find(id);
      left != members_.end() && left->second.gone && left->second.link.get() == link) {
    left->second.link = nullptr;
    return;
  }
  MemberState* member = Find(id);
  if (member == nullptr || member->link.get() != link) return;
  member->link = nullptr;
  member->link_broken = with_.clock.Now();
  with_.journal.Note(absl::StrCat(Quoted(), ": the stream of worker \"", member->member.name,
                                  "\" broke; it has ", Seconds(with_.options.stream_grace),
                                  " to come back"));
}

void CoordinatedJob::WatchProgress(absl::Time now) {
  if (terms_.step_timeout == absl::ZeroDuration()) return;
  const bool over = IsOver();
  Round furthest{};
  for (const auto& [id, member] : members_) {
    if (!member.gone) furthest = std::max(furthest, member.progress);
  }
  for (auto& [id, member] : members_) {
    // At the end nobody waits for steps any more.
    if (!member.ready || member.progress == furthest || over) {
      member.behind_since = absl::InfiniteFuture();
    } else {
      member.behind_since = std::min(member.behind_since, now);
    }
  }
}

absl::Status CoordinatedJob::CheckAlive(MemberState& member, absl::Time now) const {
  const CoordinatorOptions& options = with_.options;
  std::string why;
  if (now - member.last_heard > options.lease) {
    why = absl::StrCat("lease of ", Seconds(options.lease), " ended, last heard of ",
                       Seconds(now - member.last_heard), " ago");
  } else if (now - member.link_broken > options.stream_grace) {
    why = absl::StrCat("stream broke ", Seconds(now - member.link_broken), " ago, grace is ",
                       Seconds(options.stream_grace));
  } else if (terms_.step_timeout > absl::ZeroDuration() &&
             now - member.behind_since > terms_.step_timeout) {
    why = absl::StrCat("it is there, but has been behind the others, in step ",
                       ToNumber(member.progress), ", for ", Seconds(now - member.behind_since),
                       "; step_timeout is ", Seconds(terms_.step_timeout));
  } else if (member.behind && now - newcomers_since_ > options.join_timeout) {
    why = absl::StrCat("it was not brought up to date within ", Seconds(options.join_timeout));
  }
  return why.empty() ? absl::OkStatus() : absl::FailedPreconditionError(why);
}

void CoordinatedJob::DropLost() {
  const absl::Time now = with_.clock.Now();
  WatchProgress(now);
  bool lost = false;
  for (auto& [id, member] : members_) {
    if (member.gone) continue;
    const absl::Status alive = CheckAlive(member, now);
    if (alive.ok()) continue;
    Drop(member, alive);
    lost = true;
  }
  if (lost && !AllGone()) GoOnWithout();
}

void CoordinatedJob::GoOnWithout() {
  if (!has_begun()) {
    std::vector<MemberId> gone;
    for (const auto& [id, member] : members_) {
      if (member.gone) gone.push_back(id);
    }
    for (MemberId id : gone) Withdraw(id);
    return TryStart();
  }
  const bool smaller =
      std::any_of(epoch_.members.begin(), epoch_.members.end(),
                  [this](const Member& member) { return Find(member.id) == nullptr; });
  if (smaller) ProposeEpoch();
}

void CoordinatedJob::Drop(MemberState& member, const absl::Status& why) {
  with_.journal.Warn(absl::StrCat(Quoted(), ": worker \"", member.member.name, "\" on ",
                                  member.host, " is dropped: ", why.message()));
  member.gone = true;
  if (has_begun()) {
    Append(MemberGone{
        member.member.id, member.member.incarnation, std::string(why.message()), false, {}});
  }
  Send(member, Expelled{absl::Status(why.code(), absl::StrCat("worker \"", member.member.name,
                                                              "\" was dropped: ", why.message()))});
  member.link = nullptr;
}

absl::StatusOr<uint32_t> CoordinatedJob::AskForCheckpoint(const std::string& token) const {
  if (token != token_) {
    return absl::PermissionDeniedError(absl::StrCat("the token is not that of ", Quoted()));
  }
  uint32_t asked = 0;
  for (const Member& one : epoch_.members) {
    const auto member = members_.find(one.id);
    if (member == members_.end() || member->second.gone || member->second.link == nullptr) continue;
    Send(member->second, CheckpointAsked{});
    ++asked;
  }
  if (asked > 0) return asked;
  return absl::FailedPreconditionError(absl::StrCat(Quoted(), " has no worker that trains"));
}

void CoordinatedJob::Checkpointed(MemberId id, const CheckpointReport& report) {
  const MemberState* member = Find(id);
  if (member == nullptr) return;
  if (report.path.ok()) {
    ++checkpoints_.written;
    checkpoints_.last_step = report.step;
    checkpoints_.last_path = *report.path;
    with_.journal.Note(absl::StrCat(Quoted(), ": worker \"", member->member.name,
                                    "\" has written the checkpoint after step ", report.step,
                                    " to ", *report.path));
    return;
  }
  ++checkpoints_.failed;
  checkpoints_.last_error = std::string(report.path.status().message());
  with_.journal.Warn(absl::StrCat(Quoted(), ": worker \"", member->member.name,
                                  "\" could not write the checkpoint after step ", report.step,
                                  ": ", report.path.status().message()));
}

void CoordinatedJob::Close(const std::string& reason, bool last, absl::StatusCode code) {
  with_.journal.Note(absl::StrCat(Quoted(), " is closed: ", reason));
  proposal_.reset();
  postponed_.clear();
  closed_at_ = with_.clock.Now();
  // Stored before anybody hears of it: who has may not find the job open again.
  closed_by_ = Append(JobClosed{reason, last});
  for (auto& [id, member] : members_) {
    if (std::exchange(member.gone, true) || member.link == nullptr) continue;
    Send(member, Expelled{absl::Status(code, absl::StrCat(Quoted(), " is closed: ", reason))});
    member.link = nullptr;
  }
  TellApplied();
}

bool CoordinatedJob::CanBeForgotten() const {
  if (!closed() || !announcements_.empty()) return false;
  const bool awaited = std::any_of(members_.begin(), members_.end(),
                                   [](const auto& entry) { return entry.second.awaits_farewell; });
  if (!awaited && closed_by_ <= with_.log.applied_by_all()) return true;
  // Who is out of reach may come back to hear of it, as long as any member may.
  return closed_by_ <= with_.log.applied_by_connected() &&
         with_.clock.Now() - closed_at_ > with_.options.stream_grace;
}

}  // namespace syncgrads::server
