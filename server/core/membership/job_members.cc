#include "server/core/membership/job_members.h"

#include <algorithm>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/secret.h"
#include "server/core/plan/seconds.h"

namespace syncgrads::server {

absl::StatusOr<MemberId> JobMembers::Add(const Hello& hello, bool shares_memory) {
  const MemberId id{next_member_++};
  std::string name = !hello.name.empty() ? hello.name : NameFor(hello.rank, id);
  // Only hashes of secrets are stored.
  Hello to_store = hello;
  to_store.token = job_.token_hash();
  to_store.member_secret = HashSecret(hello.member_secret);
  if (absl::Status stored =
          plan_.StoreRecord(MemberAdmitted{to_store, job_.generation(), id, name, shares_memory});
      !stored.ok()) {
    return stored;
  }
  Enter(to_store, id, shares_memory).member.name = std::move(name);
  ++joins_;
  return id;
}

JobMember& JobMembers::Enter(const Hello& hello, MemberId id, bool shares_memory) {
  JobMember& member = members_[id];
  member.member.id = id;
  member.member.incarnation = hello.incarnation;
  member.member.secret_hash = hello.member_secret;
  member.asked_rank = hello.rank;
  member.host = hello.host;
  member.shares_memory = shares_memory;
  member.pulse = std::make_shared<Pulse>(dependencies_.clock.Now());
  return member;
}

std::string JobMembers::NameFor(std::optional<uint32_t> rank, MemberId id) const {
  const std::string name = absl::StrCat("worker-", rank.value_or(ToNumber(id)));
  // The name of a worker that has gone is free.
  std::set<absl::string_view> taken;
  for (const auto& [other, member] : members_) {
    if (!member.gone) taken.insert(member.member.name);
  }
  std::string free = name;
  for (int number = 2; taken.contains(free); ++number) free = absl::StrCat(name, "-", number);
  return free;
}

void JobMembers::Withdraw(MemberId id) {
  members_.erase(id);
  // An error is not fatal: after a restart the member is there again, until its lease ends.
  const absl::Status stored =
      plan_.StoreRecord(MemberWithdrawn{job_.name(), job_.generation(), id});
  if (!stored.ok()) {
    dependencies_.journal.Warn(absl::StrCat(job_.Quoted(), ": cannot store that member ",
                                            ToNumber(id), " has gone: ", stored.message()));
  }
}

void JobMembers::WithdrawGone() {
  std::vector<MemberId> gone;
  for (const auto& [id, member] : members_) {
    if (member.gone) gone.push_back(id);
  }
  for (MemberId id : gone) Withdraw(id);
}

std::vector<MemberId> JobMembers::RemoveGone(const Epoch& epoch) {
  std::vector<MemberId> removed;
  for (const auto& [id, member] : members_) {
    if (member.gone && member.link == nullptr && !member.awaits_farewell && !epoch.Has(id)) {
      removed.push_back(id);
    }
  }
  for (MemberId id : removed) members_.erase(id);
  return removed;
}

void JobMembers::Restore(const MemberAdmitted& admitted) {
  // The lease is a new one: the member could not renew it while the coordinator was down.
  Enter(admitted.hello, admitted.member, admitted.shares_memory).member.name = admitted.name;
  next_member_ = std::max(next_member_, ToNumber(admitted.member) + 1);
}

void JobMembers::Restore(const MemberGone& gone) {
  const auto member = members_.find(gone.member);
  if (member == members_.end()) return;
  member->second.gone = true;
  // It is not stored whether the Farewell has reached the member, so it may retry.
  member->second.awaits_farewell = member->second.awaits_farewell || gone.graceful;
  member->second.link_broken = dependencies_.clock.Now();
}

void JobMembers::Restore(const JobClosed& /*closed*/) {
  for (auto& [id, member] : members_) member.gone = true;
}

bool JobMembers::AllGone() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const auto& entry) { return entry.second.gone; });
}

bool JobMembers::AnyAwaitsFarewell() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const auto& entry) { return entry.second.awaits_farewell; });
}

bool JobMembers::AllShareMemory() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const auto& entry) { return entry.second.shares_memory; });
}

const JobMember* JobMembers::Find(MemberId id) const {
  const JobMember* const member = FindKnown(id);
  return member == nullptr || member->gone ? nullptr : member;
}

const JobMember* JobMembers::FindKnown(MemberId id) const {
  const auto member = members_.find(id);
  return member == members_.end() ? nullptr : &member->second;
}

const JobMember* JobMembers::FindNamed(absl::string_view name) const {
  for (const auto& [id, member] : members_) {
    if (!member.gone && member.member.name == name) return &member;
  }
  return nullptr;
}

const JobMember* JobMembers::FindIncarnation(Incarnation incarnation) const {
  for (const auto& [id, member] : members_) {
    if (member.gone && !member.awaits_farewell) continue;
    if (member.member.incarnation == incarnation) return &member;
  }
  return nullptr;
}

std::vector<const JobMember*> JobMembers::Ranked() const {
  std::vector<const JobMember*> ranked;
  for (const auto& [id, member] : members_) {
    if (!member.gone) ranked.push_back(&member);
  }
  std::sort(ranked.begin(), ranked.end(), [](const JobMember* a, const JobMember* b) {
    const uint32_t last = ~uint32_t{0};
    const uint32_t rank_a = a->asked_rank.value_or(last), rank_b = b->asked_rank.value_or(last);
    return rank_a != rank_b ? rank_a < rank_b : a->member.name < b->member.name;
  });
  return ranked;
}

void JobMembers::Connect(MemberId id, std::shared_ptr<MemberLink> link) {
  JobMember& member = members_.at(id);
  member.link = std::move(link);
  member.link_broken = absl::InfiniteFuture();
  member.reason_sent = 0;
  member.pulse->Renew(dependencies_.clock.Now());
}

void JobMembers::Disconnect(MemberId id, const MemberLink* link) {
  const auto found = members_.find(id);
  if (found == members_.end() || found->second.link.get() != link) return;
  JobMember& member = found->second;
  member.link = nullptr;
  member.link_broken = dependencies_.clock.Now();
  if (member.gone) return;
  dependencies_.journal.Record(
      {.kind = EventKind::kDisconnected,
       .job = job_.name(),
       .worker = member.member.name,
       .text = absl::StrCat(job_.Quoted(), ": the stream of worker \"", member.member.name,
                            "\" broke; it has ", Seconds(dependencies_.options.stream_grace),
                            " to reconnect")});
}

const JobMember* JobMembers::Renew(MemberId id) {
  const JobMember* const member = Find(id);
  if (member != nullptr) member->pulse->Renew(dependencies_.clock.Now());
  return member;
}

void JobMembers::RenewConnected() {
  for (const auto& [id, member] : members_) {
    if (member.link != nullptr) member.pulse->Renew(dependencies_.clock.Now());
  }
}

void JobMembers::RenewAll() {
  const absl::Time now = dependencies_.clock.Now();
  for (auto& [id, member] : members_) {
    if (member.gone) continue;
    member.pulse->Renew(now);
    if (member.link == nullptr) member.link_broken = now;
  }
}

void JobMembers::MarkLeft(MemberId id) {
  JobMember& member = members_.at(id);
  member.gone = true;
  member.awaits_farewell = true;
}

void JobMembers::GiveUpFarewells() {
  const absl::Time now = dependencies_.clock.Now();
  for (auto& [id, member] : members_) {
    if (member.link == nullptr && now - member.link_broken > dependencies_.options.stream_grace) {
      member.awaits_farewell = false;
    }
  }
}

void JobMembers::Expel(MemberId id, const absl::Status& reason) {
  JobMember& member = members_.at(id);
  member.gone = true;
  Send(member, Expelled{reason});
  member.link = nullptr;
}

void JobMembers::ExpelAll(const absl::Status& reason) {
  for (const auto& [id, member] : members_) {
    if (!member.gone) Expel(id, reason);
  }
}

void JobMembers::Send(const JobMember& member, const JobSignal::Kind& signal) const {
  if (member.link != nullptr) member.link->Send(job_.generation(), signal);
}

void JobMembers::SendReason(MemberId id, const Waiting& reason, uint64_t number) {
  JobMember& member = members_.at(id);
  member.reason_sent = number;
  Send(member, reason);
}

void JobMembers::SendWelcome(const JobMember& member) const {
  const MembershipOptions& options = dependencies_.options;
  Send(member, Welcome{.member = member.member.id,
                       .name = member.member.name,
                       .servers = dependencies_.log.addresses(),
                       .heartbeat_interval = options.heartbeat_interval,
                       .lease = options.lease,
                       .stream_grace = options.stream_grace});
}

void JobMembers::SendWhenApplied(uint64_t sequence, MemberId member, JobSignal::Kind signal) {
  if (sequence == JobPlan::kNeverApplied) return;
  announcements_.Add({sequence, member, std::move(signal)});
  SendApplied();
}

void JobMembers::SendApplied() {
  for (const Announcement& due : announcements_.TakeUpTo(plan_.applied())) {
    const auto member = members_.find(due.member);
    if (member == members_.end() || member->second.link == nullptr) continue;
    Send(member->second, due.signal);
    if (std::holds_alternative<Farewell>(due.signal)) {
      member->second.link = nullptr;
      member->second.awaits_farewell = false;
    }
  }
}

}  // namespace syncgrads::server
