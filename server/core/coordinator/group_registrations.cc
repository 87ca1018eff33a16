#include "server/core/coordinator/group_registrations.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace syncgrads::server {
namespace {

// How often workers are sent the allocation progress of the group that they wait for.
constexpr absl::Duration kProgressInterval = absl::Seconds(1);

// Bounds of the postponed requests. A proposal or a preparation takes seconds, and members
// register few groups in that time.
constexpr size_t kMostPostponed = 1024;
constexpr size_t kMostPostponedTensors = 1 << 20;

std::map<ServerIndex, uint64_t> BytesByServer(const GroupPlan& plan) {
  std::map<ServerIndex, uint64_t> bytes;
  for (size_t c = 0; c < plan.servers.size(); ++c) {
    bytes[plan.servers[c]] += plan.layout.chunks()[c].bytes();
  }
  return bytes;
}

}  // namespace

absl::Status GroupRegistrations::CheckGroup(absl::string_view what, GroupId group) const {
  if (ToNumber(group) < size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " ", ToNumber(group), ", but ",
                                                 job_.Quoted(), " has ", size(), " groups"));
}

void GroupRegistrations::Restore(const PlanChange& change) {
  if (const auto* plan = std::get_if<std::shared_ptr<const GroupPlan>>(&change.kind)) {
    groups_.Add({*plan, "a worker before the restart", change.sequence});
  }
}

void GroupRegistrations::Ahead::Compute(const GroupSpec& spec) {
  if (registered != nullptr) {
    agreement = CheckAgreement(spec, registered->spec, by);
  } else {
    draft = GroupRegistry::MakeDraft(spec, servers, path);
  }
}

GroupRegistrations::Ahead GroupRegistrations::LookAhead(const GroupSpec& spec, uint64_t bytes,
                                                        double link_rate) const {
  Ahead ahead;
  if (const auto* registered = groups_.Named(spec.name)) {
    ahead.registered = registered->plan;
    ahead.by = registered->by;
  } else {
    ahead.path = {SharesMemory(), link_rate};
    ahead.servers = groups_.servers();
    // Memory that is being allocated now may be that of this group.
    if (!MustWait()) ahead.fits = groups_.CheckSize(spec.name, bytes, spec.chunk_bytes);
  }
  return ahead;
}

void GroupRegistrations::Register(MemberId id, uint64_t request, const GroupSpec& spec,
                                  double link_rate, const Ahead& ahead) {
  const JobMember* const member = members_.Renew(id);
  if (member == nullptr) return;
  const GroupRegistry::Registration* known = groups_.Named(spec.name);
  if (known != nullptr) {
    const absl::Status agrees = known->plan == ahead.registered
                                    ? ahead.agreement
                                    : CheckAgreement(spec, known->plan->spec, known->by);
    if (!agrees.ok()) return members_.Send(*member, Refused{request, agrees});
    return members_.SendWhenApplied(known->sequence, id, Registered{request, known->plan});
  }
  if (MustWait()) return Postpone(*member, request, spec, link_rate, ahead);
  const GroupRegistry::Path path = {SharesMemory(), link_rate};
  const bool is_drafted = ahead.draft.has_value() && ahead.path == path;
  if (is_drafted && !ahead.draft->ok()) {
    return members_.Send(*member, Refused{request, ahead.draft->status()});
  }
  const auto plan = is_drafted ? groups_.Plan(**ahead.draft) : groups_.Plan(spec, path);
  if (!plan.ok()) return members_.Send(*member, Refused{request, plan.status()});
  Prepare({id, request, nullptr, link_rate, std::nullopt}, *plan);
}

bool GroupRegistrations::MustWait() const {
  return epochs_.is_proposed() || preparation_.has_value();
}

void GroupRegistrations::Postpone(const JobMember& member, uint64_t request, const GroupSpec& spec,
                                  double link_rate, const Ahead& ahead) {
  const bool repeated =
      std::any_of(postponed_.begin(), postponed_.end(), [&](const Request& earlier) {
        return earlier.member == member.member.id && earlier.request == request;
      });
  if (repeated) return;
  std::shared_ptr<const GroupSpec> kept;
  std::string owner;
  std::set<std::shared_ptr<const GroupSpec>> all;
  for (const Request& earlier : postponed_) {
    all.insert(earlier.spec);
    if (kept != nullptr || earlier.spec->name != spec.name) continue;
    kept = earlier.spec;
    if (const JobMember* first = members_.FindKnown(earlier.member)) owner = first->member.name;
  }
  const absl::Status agrees =
      kept == nullptr ? absl::OkStatus() : CheckAgreement(spec, *kept, owner);
  if (!agrees.ok()) return members_.Send(member, Refused{request, agrees});
  size_t tensors = kept == nullptr ? spec.tensors.size() : 0;
  for (const auto& one : all) tensors += one->tensors.size();
  if (postponed_.size() >= kMostPostponed || tensors > kMostPostponedTensors) {
    return members_.Send(
        member,
        Refused{request, absl::ResourceExhaustedError(absl::StrCat(
                             postponed_.size(), " registrations in ", job_.Quoted(),
                             " wait for its next epoch; together with this one, their groups have ",
                             tensors, " tensors; at most ", kMostPostponed, " registrations and ",
                             kMostPostponedTensors, " tensors may wait"))});
  }
  // It is copied only now: many that are refused take no time under the coordinator's lock.
  std::optional<GroupRegistry::Draft> draft;
  if (kept == nullptr) {
    kept = std::make_shared<const GroupSpec>(spec);
    if (ahead.draft.has_value() && ahead.draft->ok()) draft = **ahead.draft;
  }
  postponed_.push_back({member.member.id, request, std::move(kept), link_rate, std::move(draft)});
}

void GroupRegistrations::RegisterPostponed() {
  for (Request& late : std::exchange(postponed_, {})) {
    // What still has to wait was checked when it was postponed. Otherwise, many postponed requests
    // would be compared with each other after every group.
    if (MustWait() && !groups_.Has(late.spec->name)) {
      postponed_.push_back(std::move(late));
    } else {
      Ahead ahead;
      if (late.draft.has_value()) {
        ahead.path = late.draft->path;
        ahead.draft = *std::move(late.draft);
      }
      Register(late.member, late.request, *late.spec, late.link_rate, ahead);
    }
  }
}

void GroupRegistrations::Continue() {
  FinishPreparation();
  RegisterPostponed();
}

void GroupRegistrations::Cancel() {
  postponed_.clear();
  preparation_.reset();  // servers free the memory when they apply JobClosed
  groups_.Release();
}

bool GroupRegistrations::SharesMemory() const {
  const std::vector<std::string> servers = dependencies_.log.addresses();
  return members_.AllShareMemory() &&
         // servers[0] is this server, whose address can be empty. Members that share memory are
         // on its host.
         std::all_of(servers.begin() + 1, servers.end(), [](const std::string& server) {
           return absl::StartsWith(server, "127.") || absl::StartsWith(server, "[::1]");
         });
}

void GroupRegistrations::Prepare(const Request& request, std::shared_ptr<const GroupPlan> plan) {
  const std::map<ServerIndex, uint64_t> bytes = BytesByServer(*plan);
  const absl::Time now = dependencies_.clock.Now();
  groups_.Reserve(*plan);
  preparation_ = Preparation{.key = dependencies_.log.NewPreparationKey(now),
                             .plan = std::move(plan),
                             .request = request,
                             .reported = now};
  for (const auto& [server, share] : bytes) {
    preparation_->servers[server].wanted = share;
    PrepareOn(server);
  }
  FinishPreparation();  // at once if no server has a chunk of it
}

void GroupRegistrations::PrepareOn(ServerIndex server) const {
  if (!preparation_.has_value() || !preparation_->servers.contains(server)) return;
  dependencies_.log.Prepare(
      server, {job_.name(), job_.generation(), preparation_->key, preparation_->plan});
}

void GroupRegistrations::Prepared(ServerIndex server, const GroupPrepared& prepared) {
  if (!preparation_.has_value() || prepared.key != preparation_->key ||
      prepared.generation != job_.generation()) {
    return;
  }
  const auto part = preparation_->servers.find(server);
  if (part == preparation_->servers.end()) return;
  part->second = prepared;
  FinishPreparation();
}

void GroupRegistrations::FinishPreparation() {
  // While an epoch is proposed, the group waits: it begins in the next epoch.
  if (!preparation_.has_value() || epochs_.is_proposed()) return;
  const bool done = std::all_of(preparation_->servers.begin(), preparation_->servers.end(),
                                [](const auto& server) { return server.second.done; });
  if (!done) return;
  const Preparation ready = *std::exchange(preparation_, std::nullopt);
  const auto failed = std::find_if(ready.servers.begin(), ready.servers.end(),
                                   [](const auto& server) { return !server.second.error.ok(); });
  if (failed == ready.servers.end()) {
    Commit(ready.request, ready.plan, ready.key);
  } else {
    groups_.GiveUp();
    for (const auto& [server, state] : ready.servers) {
      dependencies_.log.Prepare(server, {job_.name(), job_.generation(), ready.key, nullptr});
    }
    const absl::Status error(
        failed->second.error.code(),
        absl::StrCat("group \"", ready.plan->spec.name, "\" does not fit on server ",
                     ToNumber(failed->first), ": ", failed->second.error.message()));
    dependencies_.journal.WarnAbout(job_.name(),
                                    absl::StrCat(job_.Quoted(), ": ", error.message()));
    if (const JobMember* member = members_.Find(ready.request.member)) {
      members_.Send(*member, Refused{ready.request.request, error});
    }
  }
  RegisterPostponed();
}

void GroupRegistrations::Commit(const Request& request, std::shared_ptr<const GroupPlan> plan,
                                uint64_t key) {
  dependencies_.journal.Debug(absl::StrCat(job_.Quoted(), ": group ", ToNumber(plan->id), " \"",
                                           plan->spec.name, "\" of ", plan->spec.tensors.size(),
                                           " tensors, ", plan->layout.total_bytes(), " bytes in ",
                                           plan->layout.chunks().size(), " chunks"));
  const uint64_t sequence = plan_.Append(plan, key);
  const JobMember* const by = members_.FindKnown(request.member);
  groups_.Add({plan, by == nullptr ? "a worker that has left" : by->member.name, sequence});
  decisions_.Add(plan);
  members_.SendWhenApplied(sequence, request.member, Registered{request.request, std::move(plan)});
}

void GroupRegistrations::SendProgress() {
  const absl::Time now = dependencies_.clock.Now();
  if (!preparation_.has_value() || now - preparation_->reported < kProgressInterval) return;
  preparation_->reported = now;
  const std::string how_far =
      absl::StrJoin(preparation_->servers, ", ", [](std::string* text, const auto& entry) {
        const auto& [server, state] = entry;
        absl::StrAppend(text, "server ", ToNumber(server), " has allocated ", state.made >> 20,
                        " of ", state.wanted >> 20, " MiB");
      });
  const Waiting waiting{
      absl::StrCat("memory for group \"", preparation_->plan->spec.name, "\": ", how_far)};
  std::set<MemberId> waiters = {preparation_->request.member};
  for (const Request& late : postponed_) waiters.insert(late.member);
  for (MemberId id : waiters) {
    if (const JobMember* member = members_.Find(id)) members_.Send(*member, waiting);
  }
}

}  // namespace syncgrads::server
