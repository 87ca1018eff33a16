#include "server/core/plan_log/plan_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace syncgrads::server {
namespace {

// How long a server may apply nothing before it is named.
constexpr absl::Duration kBehind = absl::Seconds(5);

}  // namespace

PlanLog::PlanLog(uint32_t servers, std::string own_address, uint64_t plan)
    : plan_(plan), servers_(servers) {
  servers_[0].address = std::move(own_address);
  servers_[0].incarnation = Incarnation{1};
}

void PlanLog::Restore(const PlanStart& start, const std::vector<PlanChange>& changes,
                      const std::vector<ServerSeen>& servers) {
  plan_ = start.plan;
  newest_ = start.applied;
  for (const PlanChange& change : changes) {
    newest_ = change.sequence;
    changes_.push_back(change);
  }
  servers_[0].applied = newest_;
  const auto see = [this](const ServerSeen& seen) {
    const uint32_t index = ToNumber(seen.server);
    if (index == 0 || index >= servers_.size()) return;
    servers_[index].address = seen.address;
    servers_[index].incarnation = seen.incarnation;
    servers_[index].stored = true;
  };
  std::for_each(start.servers.begin(), start.servers.end(), see);
  std::for_each(servers.begin(), servers.end(), see);
  // Every server has applied the changes before the start.
  for (Server& server : servers_) server.applied = std::max(server.applied, start.applied);
  ForgetApplied();
}

PlanStart PlanLog::Start() const {
  PlanStart start;
  start.plan = plan_;
  start.applied = newest_;
  for (uint32_t index = 1; index < servers_.size(); ++index) {
    const Server& server = servers_[index];
    if (server.incarnation == Incarnation{}) continue;
    start.servers.push_back({ServerIndex{index}, server.address, server.incarnation});
  }
  return start;
}

absl::Status PlanLog::Attach(const ServerIdentity& server, std::shared_ptr<ServerLink> link,
                             bool& state_lost) {
  const uint32_t index = ToNumber(server.index);
  if (index == 0 || index >= servers_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("server index ", index, " of ", servers_.size(),
                                                   " servers; followers are 1 and up"));
  }
  const bool follows_us = server.plan == plan_ && server.applied <= newest_;
  if (server.applied != 0 && !follows_us) {
    return absl::DataLossError(absl::StrCat(
        "server ", index, " at ", server.address, " has applied ", server.applied,
        " changes of plan ", server.plan, "; this is plan ", plan_, " of ", newest_, " changes"));
  }
  Server& known = servers_[index];
  const bool same = known.incarnation == server.incarnation && known.address == server.address;
  if (known.incarnation != server.incarnation) {
    if (known.link != nullptr) {
      return absl::AlreadyExistsError(absl::StrCat("server ", index, " is ", known.address,
                                                   ", which is connected; refused ", server.address,
                                                   ", which has the same index"));
    }
    state_lost = known.incarnation != Incarnation{} && server.applied == 0;
    known.incarnation = server.incarnation;
    // On its first start, the server lacks every change, and the log still has all of them: no
    // change is removed before every server has applied it. If the server has lost its state,
    // the log may lack old changes. The caller then closes their jobs, so none is sent again.
    known.applied = state_lost ? newest_ : server.applied;
  } else {
    state_lost = false;
    known.applied = std::max(known.applied, server.applied);
  }
  known.address = server.address;
  known.stored = known.stored && same;
  known.link = std::move(link);
  SendMissing(known);
  ForgetApplied();
  return absl::OkStatus();
}

void PlanLog::AttachOwn(std::shared_ptr<ServerLink> link) {
  servers_[0].link = std::move(link);
  SendMissing(servers_[0]);
}

void PlanLog::SendMissing(const Server& server) const {
  for (const PlanChange& change : changes_) {
    if (change.sequence > server.applied) server.link->Send(change);
  }
}

bool PlanLog::Detach(ServerIndex index, const ServerLink* link) {
  Server& server = servers_[ToNumber(index)];
  if (server.link.get() != link) return false;
  server.link = nullptr;
  return true;
}

bool PlanLog::Applied(ServerIndex index, const ServerLink* link, uint64_t sequence) {
  Server& server = servers_[ToNumber(index)];
  if (server.link.get() != link) return false;
  // A server cannot have applied a change that was not sent.
  server.applied = std::max(server.applied, std::min(sequence, newest_));
  ForgetApplied();
  return true;
}

void PlanLog::SetAvailable(ServerIndex index, const ServerLink* link, uint64_t bytes) {
  Server& server = servers_[ToNumber(index)];
  if (server.link.get() == link) server.available = bytes;
}

std::optional<uint64_t> PlanLog::Available(ServerIndex index) const {
  return servers_[ToNumber(index)].available;
}

void PlanLog::ForgetApplied() {
  const uint64_t all = applied_by_all();
  while (!changes_.empty() && changes_.front().sequence <= all) changes_.pop_front();
}

void PlanLog::Number(PlanChange& change) const {
  change.sequence = newest_ + 1;
  change.plan = plan_;
}

void PlanLog::Send(const PlanChange& change) {
  newest_ = change.sequence;
  changes_.push_back(change);
  for (const Server& server : servers_) {
    if (server.link != nullptr) server.link->Send(change);
  }
}

void PlanLog::Prepare(ServerIndex server, const GroupPreparation& preparation) const {
  const std::shared_ptr<ServerLink>& link = servers_[ToNumber(server)].link;
  if (link != nullptr) link->Prepare(preparation);
}

uint64_t PlanLog::NewPreparationKey(absl::Time now) {
  constexpr uint64_t kNoSequence = uint64_t{1} << 63;
  newest_key_ =
      std::max(newest_key_ + 1, kNoSequence | static_cast<uint64_t>(absl::ToUnixNanos(now)));
  return newest_key_;
}

uint64_t PlanLog::applied_by_all() const {
  return std::min_element(servers_.begin(), servers_.end(),
                          [](const Server& a, const Server& b) { return a.applied < b.applied; })
      ->applied;
}

uint64_t PlanLog::applied_by_connected() const {
  uint64_t applied = newest_;
  for (const Server& server : servers_) {
    if (server.link != nullptr) applied = std::min(applied, server.applied);
  }
  return applied;
}

bool PlanLog::complete() const {
  return std::all_of(servers_.begin(), servers_.end(),
                     [](const Server& server) { return server.incarnation != Incarnation{}; });
}

std::string PlanLog::Absent() const {
  std::vector<std::string> absent;
  for (size_t index = 1; index < servers_.size(); ++index) {
    if (servers_[index].link != nullptr) continue;
    absent.push_back(servers_[index].address.empty()
                         ? absl::StrCat(index)
                         : absl::StrCat(index, " (", servers_[index].address, ")"));
  }
  return absl::StrJoin(absent, ", ");
}

void PlanLog::Watch(absl::Time now) {
  std::vector<std::string> behind;
  for (size_t index = 0; index < servers_.size(); ++index) {
    Server& server = servers_[index];
    const bool is_behind = server.incarnation != Incarnation{} && server.applied < newest_;
    if (!is_behind) {
      server.behind_since = absl::InfiniteFuture();
    } else if (server.applied != server.watched) {
      server.behind_since = now;
    } else {
      server.behind_since = std::min(server.behind_since, now);
    }
    server.watched = server.applied;
    if (now - server.behind_since < kBehind) continue;
    behind.push_back(absl::StrCat(index, " at ", server.address,
                                  server.link == nullptr ? ", which is not connected" : ""));
  }
  behind_ = behind.empty() ? ""
                           : absl::StrCat("changes of the plan wait for server ",
                                          absl::StrJoin(behind, ", and "));
}

std::vector<std::string> PlanLog::addresses() const {
  std::vector<std::string> addresses;
  for (const Server& server : servers_) addresses.push_back(server.address);
  return addresses;
}

}  // namespace syncgrads::server
