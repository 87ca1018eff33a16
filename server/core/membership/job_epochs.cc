#include "server/core/membership/job_epochs.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace syncgrads::server {
namespace {

// A reason names at most so many workers. A job may have thousands, with names of 255 bytes.
constexpr size_t kMostNames = 8;
constexpr absl::Duration kReasonInterval = absl::Seconds(1);

}  // namespace

void JobEpochs::Restore(const PlanChange& change) {
  if (std::holds_alternative<EpochProposed>(change.kind)) {
    proposal_.emplace(change.sequence, dependencies_.log.size());
  } else if (const auto* epoch = std::get_if<Epoch>(&change.kind)) {
    SetPresent(*epoch);
    sequence_ = change.sequence;
    proposal_.reset();
    if (!epoch->handover.has_value()) return;
    Handover handover = *epoch->handover;
    std::erase_if(handover.to, [this](MemberId id) { return members_.FindKnown(id) == nullptr; });
    holders_.Restore(handover, dependencies_.clock.Now());
  } else if (std::holds_alternative<JobClosed>(change.kind)) {
    proposal_.reset();
  }
}

void JobEpochs::FinishRestore() {
  for (const Member& member : present().members) {
    members_.SendWhenApplied(sequence_, member.id, EpochBegun{present_});
  }
}

bool JobEpochs::AnyGone() const {
  return std::any_of(present().members.begin(), present().members.end(),
                     [this](const Member& member) { return members_.Find(member.id) == nullptr; });
}

bool JobEpochs::IsOutdated() const {
  return std::any_of(present().members.begin(), present().members.end(), [this](const Member& one) {
    const JobMember* const member = members_.FindKnown(one.id);
    if (member == nullptr || !member->gone) return false;
    // A job that is not elastic keeps its epoch when a member leaves gracefully.
    return !member->awaits_farewell || (job_.is_elastic() && !IsOver());
  });
}

bool JobEpochs::IsOver() const {
  bool any = false;
  for (const JobMember* member : members_.Ranked()) {
    if (IsNewcomer(member->member.id)) continue;
    if (!holders_.HasEnded(member->member.id)) return false;
    any = true;
  }
  return any;
}

bool JobEpochs::AnyHasState() const {
  const std::vector<const JobMember*> members = members_.Ranked();
  return std::any_of(members.begin(), members.end(), [this](const JobMember* member) {
    return !IsNewcomer(member->member.id) && !holders_.IsBehind(member->member.id);
  });
}

std::string JobEpochs::WaitingFor() const {
  if (!dependencies_.log.complete()) {
    return absl::StrCat("server ", dependencies_.log.Absent(), " has not started yet");
  }
  const auto& all = members_.all();
  std::vector<std::string> names;
  for (auto one = all.begin(); one != all.end() && names.size() < kMostNames; ++one) {
    names.push_back(absl::StrCat("\"", one->second.member.name, "\""));
  }
  const size_t more = all.size() - names.size();
  return absl::StrCat(all.size(), " of ", job_.terms().world_size,
                      " workers have joined: ", absl::StrJoin(names, ", "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

void JobEpochs::FindReason() {
  const std::string& behind = dependencies_.log.behind();
  std::string text;
  if (!has_begun()) {
    text = WaitingFor();
  } else if (!behind.empty()) {
    text = behind;
  } else if (!proposal_.has_value()) {
    const std::string why_not = WhyNoNewcomers();
    if (!why_not.empty()) text = absl::StrCat(job_.Quoted(), " is running: ", why_not);
  } else if (proposal_->answered_by_all()) {
    text = WhatIsMissing(Next().size());
  }
  const bool newcomers_only = has_begun() && behind.empty() && !proposal_.has_value();
  if (text == reason_.text && newcomers_only == reason_.newcomers_only) return;
  reason_ = {std::move(text), newcomers_only, reason_.number + 1};
}

bool JobEpochs::Waits(const JobMember& member) const {
  return !reason_.text.empty() && !member.gone &&
         (!reason_.newcomers_only || IsNewcomer(member.member.id));
}

void JobEpochs::SendReason(MemberId id) {
  const JobMember* const member = members_.Find(id);
  if (member == nullptr || plan_.closed()) return;
  // While a job runs, newcomers wait. To find the reason takes a look at all members.
  if (has_begun() && !is_proposed() && !IsNewcomer(id)) return;
  FindReason();
  if (Waits(*member)) members_.SendReason(id, Waiting{reason_.text}, reason_.number);
}

void JobEpochs::SendReasons() {
  const absl::Time now = dependencies_.clock.Now();
  if (now - reasons_sent_ < kReasonInterval) return;
  reasons_sent_ = now;
  FindReason();
  const Waiting waiting{reason_.text};
  for (const auto& [id, member] : members_.all()) {
    if (!Waits(member) || member.reason_sent == reason_.number) continue;
    if (member.link == nullptr || member.link->has_unread()) continue;
    members_.SendReason(id, waiting, reason_.number);
  }
}

void JobEpochs::TryStart() {
  if (has_begun()) return;
  if (!dependencies_.log.complete() || members_.all().size() < job_.terms().world_size) return;
  Epoch epoch;
  epoch.number = 1;
  for (const JobMember* member : members_.Ranked()) epoch.members.push_back(member->member);
  Begin(std::move(epoch));
}

std::string JobEpochs::WhyNoNewcomers() const {
  for (const JobMember* member : members_.Ranked()) {
    const MemberId id = member->member.id;
    if (IsNewcomer(id) || holders_.IsReady(id)) continue;
    return absl::StrCat("worker \"", member->member.name,
                        holders_.IsBehind(id) ? "\" is not up to date yet"
                                              : "\" has not reported that it is ready for new "
                                                "members");
  }
  return IsOver() ? "its data has ended" : "";
}

std::string JobEpochs::WhatIsMissing(size_t members) const {
  const uint32_t least = job_.terms().min_workers;
  if (members >= least || IsOver()) return "";
  return absl::StrCat(job_.Quoted(), " waits for workers: ", members, " of at least ", least,
                      " are present");
}

// This is asked of every member whenever one reconnects.
bool JobEpochs::IsNewcomer(MemberId member) const {
  return !std::binary_search(present_ids_.begin(), present_ids_.end(), member);
}

void JobEpochs::TakeInNewcomers() {
  const bool any = std::any_of(members_.all().begin(), members_.all().end(), [this](auto& entry) {
    return !entry.second.gone && IsNewcomer(entry.first);
  });
  if (any && WhyNoNewcomers().empty()) Propose();
}

std::vector<const JobMember*> JobEpochs::Next() const {
  std::vector<const JobMember*> members = members_.Ranked();
  if (!WhyNoNewcomers().empty()) {
    std::erase_if(members,
                  [this](const JobMember* member) { return IsNewcomer(member->member.id); });
  }
  return members;
}

void JobEpochs::Propose() {
  const uint64_t sequence =
      plan_.Append(EpochProposed{present().number + 1, WhatIsMissing(Next().size())});
  proposal_.emplace(sequence, dependencies_.log.size());
}

bool JobEpochs::Answer(ServerIndex server, uint64_t sequence,
                       const std::vector<GroupRound>& rounds) {
  if (!proposal_.has_value() || proposal_->sequence() != sequence) return false;
  proposal_->Answer(server, rounds);
  return true;
}

JobEpochs::Outcome JobEpochs::FinishProposal(absl::FunctionRef<void(Epoch&)> complete) {
  // A member that goes while an epoch is proposed is left out here.
  if (!proposal_->answered_by_all()) return Outcome::kWaits;
  const std::vector<const JobMember*> members = Next();
  const std::string missing = WhatIsMissing(members.size());
  if (!missing.empty()) {
    if (held_for_ != missing) {
      dependencies_.journal.Record({.kind = EventKind::kWaiting,
                                    .job = job_.name(),
                                    .text = missing,
                                    .level = LogLevel::kWarning});
    }
    held_for_ = missing;
    return Outcome::kWaits;
  }
  held_for_.clear();
  Epoch epoch;
  epoch.number = present().number + 1;
  epoch.first_rounds = proposal_->FirstRounds();
  complete(epoch);
  proposal_.reset();
  std::vector<MemberId> ids;
  for (const JobMember* member : members) {
    epoch.members.push_back(member->member);
    ids.push_back(member->member.id);
  }
  if (job_.is_elastic()) {
    std::optional<Handover> handover =
        holders_.PlanHandover(ids, present(), epoch.first_rounds, dependencies_.clock.Now());
    if (!handover.has_value()) return Outcome::kStateLost;
    if (!handover->to.empty()) epoch.handover = std::move(handover);
  }
  Begin(std::move(epoch));
  return Outcome::kBegun;
}

void JobEpochs::SetPresent(Epoch epoch) {
  if (has_begun()) earlier_.push_back(std::move(present_));
  if (earlier_.size() > JobPlan::kEarlierEpochs) earlier_.pop_front();
  present_ = std::make_shared<const Epoch>(std::move(epoch));
  present_ids_.clear();
  for (const Member& member : present().members) present_ids_.push_back(member.id);
  std::sort(present_ids_.begin(), present_ids_.end());
}

void JobEpochs::Begin(Epoch epoch) {
  const std::string names = absl::StrJoin(
      epoch.members, ", ", [](std::string* out, const Member& member) { *out += member.name; });
  dependencies_.journal.Record(
      {.kind = EventKind::kEpoch,
       .job = job_.name(),
       .text = absl::StrCat(job_.Quoted(), ": epoch ", epoch.number, " of ", epoch.members.size(),
                            " workers: ", names)});
  SetPresent(std::move(epoch));
  sequence_ = plan_.Append(present());
  for (const Member& member : present().members) {
    members_.SendWhenApplied(sequence_, member.id, EpochBegun{present_});
  }
  for (MemberId removed : members_.RemoveGone(present())) holders_.Forget(removed);
}

void JobEpochs::SendEarlier(const JobMember& member) const {
  for (const std::shared_ptr<const Epoch>& epoch : earlier_) {
    if (epoch->Has(member.member.id)) members_.Send(member, EpochBegun{epoch});
  }
}

bool JobEpochs::SendPresent(const JobMember& member) const {
  if (IsNewcomer(member.member.id) || plan_.applied() < sequence_) return false;
  members_.Send(member, EpochBegun{present_});
  return true;
}

}  // namespace syncgrads::server
