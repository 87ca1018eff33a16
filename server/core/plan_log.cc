#include "server/core/plan_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace syncgrads::server {

PlanLog::PlanLog(uint32_t servers, std::string own_address) : servers_(servers) {
  servers_[0].address = std::move(own_address);
  servers_[0].incarnation = Incarnation{1};
}

absl::Status PlanLog::Attach(const ServerIdentity& server, std::shared_ptr<ServerLink> link,
                             bool& state_lost) {
  const uint32_t index = ToNumber(server.index);
  if (index == 0 || index >= servers_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("server index ", index, " of ", servers_.size(),
                                                   " servers; followers are 1 and up"));
  }
  Server& known = servers_[index];
  if (known.incarnation != server.incarnation) {
    if (known.link != nullptr) {
      return absl::AlreadyExistsError(absl::StrCat("server ", index, " is ", known.address,
                                                   ", which is connected; ", server.address,
                                                   " wants its place"));
    }
    if (server.applied != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("server ", index, " at ", server.address, " has applied ", server.applied,
                       " changes of another coordinator; restart it"));
    }
    state_lost = known.incarnation != Incarnation{};
    known.incarnation = server.incarnation;
    // Its first start: it lacks everything so far. What is forgotten is what a
    // predecessor had applied.
    known.applied = state_lost ? newest_ : 0;
  } else {
    state_lost = false;
    known.applied = std::max(known.applied, server.applied);
  }
  known.address = server.address;
  known.link = std::move(link);
  for (const PlanChange& change : changes_) {
    if (change.sequence > known.applied) known.link->Send(change);
  }
  return absl::OkStatus();
}

void PlanLog::Detach(ServerIndex index, const ServerLink* link) {
  Server& server = servers_[ToNumber(index)];
  if (server.link.get() == link) server.link = nullptr;
}

bool PlanLog::Applied(ServerIndex index, const ServerLink* link, uint64_t sequence) {
  Server& server = servers_[ToNumber(index)];
  if (server.link.get() != link) return false;
  // What it claims beyond what was sent is nothing to build on.
  server.applied = std::max(server.applied, std::min(sequence, newest_));
  const uint64_t all = applied_by_all();
  while (!changes_.empty() && changes_.front().sequence <= all) changes_.pop_front();
  return true;
}

uint64_t PlanLog::Append(PlanChange& change) {
  change.sequence = ++newest_;
  if (servers_.size() > 1) changes_.push_back(change);
  for (const Server& server : servers_) {
    if (server.link != nullptr) server.link->Send(change);
  }
  servers_[0].applied = newest_;
  return newest_;
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

std::vector<std::string> PlanLog::addresses() const {
  std::vector<std::string> addresses;
  for (const Server& server : servers_) addresses.push_back(server.address);
  return addresses;
}

}  // namespace syncgrads::server
