#include "server/core/job.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/core/chunk_rounds.h"
#include "server/core/chunk_versions.h"
#include "server/state/state_file.h"

namespace syncgrads::server {
namespace {

constexpr size_t kMaxNamedTensors = 10;

constexpr char kCompleteHere[] =
    "all contributions are here, and the coordinator has not said that they are everywhere";
constexpr char kReducedHere[] =
    "all contributions are here, and the coordinator has not told the norms, which take those of "
    "every server";

// Below this, a reduction takes less time than waking another thread for it.
constexpr size_t kMinHandedOnBytes = 64 << 10;

}  // namespace

Job::Job(std::string name, std::string token, Generation generation, ServerIndex self,
         const Clock& clock, Closers* closers, const StateDirectory* state,
         const ToCoordinator* to_coordinator)
    : name_(std::move(name)),
      token_(std::move(token)),
      generation_(generation),
      self_(self),
      clock_(clock),
      closers_(closers),
      state_(state),
      to_coordinator_(to_coordinator),
      roster_(std::make_shared<Roster>()) {}

size_t Job::MemberCount() const {
  MutexLock lock(mutex_);
  const Epoch* epoch = roster_->newest_epoch();
  return epoch == nullptr ? 1 : epoch->members.size();
}

absl::StatusOr<GroupResults> Job::MakeResults(const GroupPlan& plan, uint64_t sequence) const {
  return MakeGroupResults(plan, self_, generation_, sequence, MemberCount(), state_);
}

absl::StatusOr<GroupResults> Job::OpenResults(const GroupPlan& plan, uint64_t sequence) const {
  return OpenGroupResults(plan, self_, generation_, sequence, MemberCount(), *state_);
}

void Job::AddGroup(std::shared_ptr<const GroupPlan> plan, uint64_t sequence,
                   absl::StatusOr<GroupResults> results) {
  MutexLock change(change_mutex_);
  auto group = std::make_shared<Group>(Group{plan, sequence, std::move(results), nullptr, {}});
  if (to_coordinator_ != nullptr && std::holds_alternative<Quorum>(plan->spec.policy)) {
    group->arrivals = std::make_unique<Arrivals>(Arrival{name_, generation_, plan->id, {}, {}},
                                                 to_coordinator_->arrivals);
  }
  MutexLock lock(mutex_);
  size_t position = 0;  // among the chunks of this server
  for (uint32_t c = 0; c < plan->servers.size(); ++c) {
    const bool here = plan->servers[c] == self_ && group->results.ok();
    group->chunks.push_back(here ? MakeChunk(*group, ChunkId{c}, position++) : nullptr);
  }
  if (group->arrivals != nullptr) group->arrivals->SetChunks(position);
  groups_.emplace(plan->id, std::move(group));
}

std::unique_ptr<ServedChunk> Job::MakeChunk(const Group& group, ChunkId chunk,
                                            size_t position) const {
  if (std::holds_alternative<Staleness>(group.plan->spec.policy)) {
    return std::make_unique<ChunkVersions>(*group.plan, chunk, generation_, roster_, clock_,
                                           group.results->source, position, alerts_);
  }
  std::function<void(ReducedChunk)> tell_reduced;
  if (to_coordinator_ != nullptr) {
    // A chunk that is being closed may outlive the job.
    tell_reduced = [relay = &to_coordinator_->reduced, job = name_](ReducedChunk reduced) {
      reduced.job = job;
      relay->Tell(reduced);
    };
  }
  return std::make_unique<ChunkRounds>(*group.plan, chunk, generation_, roster_, clock_,
                                       group.results->source, position, alerts_,
                                       group.arrivals.get(), std::move(tell_reduced));
}

std::vector<std::string> Job::StatePaths() const {
  std::vector<std::string> paths;
  if (state_ == nullptr) return paths;
  for (const std::shared_ptr<const Group>& group : Groups()) {
    paths.push_back(state_->group_path(group->sequence));
  }
  return paths;
}

void Job::RemoveState() const {
  for (const std::string& path : StatePaths()) StateFile::Remove(path);
}

template <typename Change>
void Job::ChangeRoster(Change change) {
  MutexLock changing(change_mutex_);
  std::shared_ptr<const Roster> roster;
  {
    MutexLock lock(mutex_);
    auto changed = std::make_shared<Roster>(*roster_);
    change(*changed);
    roster_ = std::move(changed);
    roster = roster_;
  }
  for (const std::shared_ptr<const Group>& group : Groups()) {
    for (const std::unique_ptr<ServedChunk>& chunk : group->chunks) {
      if (chunk != nullptr) chunk->SetRoster(roster);
    }
  }
}

void Job::AddEpoch(const Epoch& epoch) {
  {
    MutexLock lock(mutex_);
    held_for_.clear();
  }
  ChangeRoster([&epoch](Roster& roster) { roster.Add(epoch); });
  for (const std::shared_ptr<const Group>& group : Groups()) {
    for (const std::unique_ptr<ServedChunk>& chunk : group->chunks) {
      if (chunk != nullptr) chunk->Release();
    }
  }
}

void Job::End(const MemberEnded& ended) {
  ChangeRoster([&ended](Roster& roster) { roster.End(ended); });
}

void Job::Remove(const MemberGone& gone) {
  ChangeRoster([&gone](Roster& roster) { roster.Remove(gone); });
}

void Job::FixQuorum(const QuorumSet& set) {
  const std::shared_ptr<const Group> group = FindGroup(set.group);
  if (group == nullptr) return;
  for (const std::unique_ptr<ServedChunk>& chunk : group->chunks) {
    if (chunk != nullptr && chunk->Fix(set.round, set.members)) Close(group, *chunk);
  }
}

void Job::SetNorms(const StepNorms& norms) {
  const std::shared_ptr<const Group> group = FindGroup(norms.group);
  if (group == nullptr) return;
  for (const std::unique_ptr<ServedChunk>& chunk : group->chunks) {
    if (chunk != nullptr && chunk->SetNorms(norms)) Close(group, *chunk);
  }
}

void Job::Close(const std::shared_ptr<const Group>& group, ServedChunk& chunk) const {
  if (closers_ == nullptr || chunk.result_bytes() < kMinHandedOnBytes) return chunk.Close();
  closers_->Run([chunk = std::shared_ptr<ServedChunk>(group, &chunk)] { chunk->Close(); });
}

std::vector<GroupRound> Job::Hold(const std::string& held_for) {
  {
    MutexLock lock(mutex_);
    held_for_ = held_for;
  }
  std::vector<GroupRound> rounds;
  for (const std::shared_ptr<const Group>& group : Groups()) {
    GroupRound oldest{group->plan->id, FirstRound(group->plan->spec.rule)};
    for (const std::unique_ptr<ServedChunk>& chunk : group->chunks) {
      if (chunk != nullptr) oldest.round = std::max(oldest.round, chunk->Hold());
    }
    rounds.push_back(oldest);
  }
  return rounds;
}

absl::StatusOr<std::shared_ptr<Presence>> Job::Admit(const DataHello& hello) {
  if (hello.token != token_) {
    return absl::PermissionDeniedError(
        absl::StrCat("the token is not that of job \"", name_, "\""));
  }
  {
    MutexLock lock(mutex_);
    const Roster::Entry* entry = roster_->Find(hello.member);
    if (entry == nullptr) {
      return absl::UnavailableError(absl::StrCat("member ", ToNumber(hello.member), " of job \"",
                                                 name_, "\" is not known here yet"));
    }
    if (entry->member.incarnation != hello.incarnation) {
      return absl::FailedPreconditionError(absl::StrCat(
          "incarnation ", ToNumber(hello.incarnation), " of worker \"", entry->member.name,
          "\" is not the present one, ", ToNumber(entry->member.incarnation), "; rejoin"));
    }
  }
  std::shared_ptr<Presence> presence = PresenceOf(hello.member);
  presence->Heard(clock_.Now());
  return presence;
}

void Job::Heard(MemberId member, absl::Time now) { PresenceOf(member)->Heard(now); }

std::shared_ptr<Presence> Job::PresenceOf(MemberId member) {
  MutexLock lock(mutex_);
  std::shared_ptr<Presence>& presence = presence_[member];
  if (presence == nullptr) {
    presence = std::make_shared<Presence>();
    presence->Heard(clock_.Now());
  }
  return presence;
}

void Job::Push(const PushHeader& header, Payload payload, std::shared_ptr<AnswerSink> sink) {
  absl::StatusOr<std::shared_ptr<ServedChunk>> chunk = Route(header, payload);
  if (chunk.ok()) {
    // By what there is to compute: what came may be encoded, or nothing.
    if (closers_ == nullptr || (*chunk)->result_bytes() < kMinHandedOnBytes) {
      return (*chunk)->Push(header, std::move(payload), std::move(sink));
    }
    if ((*chunk)->Seat(header, std::move(payload), std::move(sink))) {
      closers_->Run([chunk = *std::move(chunk)] { chunk->Close(); });
    }
    return;
  }
  UpdateHeader refusal;
  refusal.generation = generation_;
  refusal.group = header.group;
  refusal.chunk = header.chunk;
  refusal.round = header.round;
  refusal.error = chunk.status();
  auto result = std::make_shared<RoundResult>();
  result->round = header.round;
  result->bare_header = EncodeHeader(refusal, 0);
  sink->Send(std::move(result), false);
}

absl::StatusOr<std::shared_ptr<ServedChunk>> Job::Route(const PushHeader& header,
                                                        const Payload& payload) const {
  if (header.generation != generation_) {
    return absl::FailedPreconditionError(
        absl::StrCat("generation ", ToNumber(header.generation), " of job \"", name_,
                     "\" is not the present one, ", ToNumber(generation_), "; rejoin"));
  }
  const std::shared_ptr<const Group> group = FindGroup(header.group);
  if (group == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("job \"", name_, "\" has no group ",
                                                   ToNumber(header.group), "; register it first"));
  }
  const size_t c = ToNumber(header.chunk);
  if (c >= group->chunks.size()) {
    return absl::InvalidArgumentError(absl::StrCat("group \"", group->plan->spec.name, "\" has ",
                                                   group->chunks.size(),
                                                   " chunks; there is no chunk ", c));
  }
  if (!group->results.ok()) return group->results.status();
  if (group->chunks[c] == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk ", c, " of group \"", group->plan->spec.name, "\" is on server ",
                     ToNumber(group->plan->servers[c]), ", not on ", ToNumber(self_)));
  }
  std::string sender = absl::StrCat("member ", ToNumber(header.member));
  SYNCGRADS_RETURN_IF_ERROR(CheckPush(*group->plan, header, payload.pieces, sender));
  return std::shared_ptr<ServedChunk>(group, group->chunks[c].get());
}

std::shared_ptr<const Job::Group> Job::FindGroup(GroupId id) const {
  MutexLock lock(mutex_);
  const auto group = groups_.find(id);
  return group == groups_.end() ? nullptr : group->second;
}

std::vector<std::shared_ptr<const Job::Group>> Job::Groups() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<const Group>> groups;
  for (const auto& [id, group] : groups_) groups.push_back(group);
  return groups;
}

absl::StatusOr<FileDescriptor> Job::ShareResults(GroupId id) const {
  const std::shared_ptr<const Group> group = FindGroup(id);
  if (group == nullptr || !group->results.ok() || !group->results->shared) {
    return absl::NotFoundError(
        absl::StrCat("group ", ToNumber(id), " of job \"", name_, "\" has no shared results"));
  }
  return group->results->source->ReadOnlyDescriptor();
}

absl::StatusOr<std::vector<std::shared_ptr<const RoundResult>>> Job::HoldRound(
    Generation generation, GroupId id, Round round) const {
  if (generation != generation_) {
    return absl::FailedPreconditionError(
        absl::StrCat("generation ", ToNumber(generation), " of job \"", name_,
                     "\" is not the present one, ", ToNumber(generation_)));
  }
  const std::shared_ptr<const Group> group = FindGroup(id);
  if (group == nullptr) {
    return absl::NotFoundError(absl::StrCat("job \"", name_, "\" has no group ", ToNumber(id)));
  }
  std::vector<std::shared_ptr<const RoundResult>> results;
  for (const std::unique_ptr<ServedChunk>& chunk : group->chunks) {
    if (chunk == nullptr) continue;
    results.push_back(chunk->Kept(round));
    if (results.back() != nullptr) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "the result of round ", ToNumber(round), " of group \"", group->plan->spec.name,
        "\" is not kept; round ", ToNumber(chunk->open_round()), " is open"));
  }
  return results;
}

std::vector<RoundWait> Job::Explain(std::optional<GroupId> only) const {
  std::shared_ptr<const Roster> roster;
  std::map<MemberId, std::shared_ptr<Presence>> presence;
  std::string held_for;
  {
    MutexLock lock(mutex_);
    roster = roster_;
    presence = presence_;
    held_for = held_for_;
  }
  const absl::Time now = clock_.Now();
  std::vector<RoundWait> waits;
  for (const std::shared_ptr<const Group>& group : Groups()) {
    const GroupPlan& plan = *group->plan;
    if (only.has_value() && plan.id != *only) continue;
    std::map<Round, RoundWait> by_round;
    std::map<Round, std::vector<TensorId>> tensors;
    std::set<Round> reduced;
    for (uint32_t c = 0; c < group->chunks.size(); ++c) {
      if (group->chunks[c] == nullptr) continue;
      const std::optional<ChunkWait> open = group->chunks[c]->Explain();
      if (!open.has_value()) continue;
      RoundWait& wait = by_round[open->round];
      wait.group = plan.id;
      wait.group_name = plan.spec.name;
      wait.round = open->round;
      wait.held_for = held_for;
      ++wait.open_chunks;
      if (open->reduced) reduced.insert(open->round);
      wait.open_for = std::max(wait.open_for, now - open->since);
      for (const Span& span : plan.layout.chunk(ChunkId{c}).spans) {
        std::vector<TensorId>& named = tensors[open->round];
        if (named.empty() || named.back() != span.tensor) named.push_back(span.tensor);
      }
      for (MemberId id : open->missing) {
        const auto listed =
            std::find_if(wait.missing.begin(), wait.missing.end(),
                         [id](const RoundWait::Missing& missing) { return missing.member == id; });
        if (listed != wait.missing.end()) continue;
        const auto heard = presence.find(id);
        // The chunk may have heard of an epoch since the roster was copied.
        const Roster::Entry* known = roster->Find(id);
        wait.missing.push_back(
            {id, known == nullptr ? absl::StrCat("member ", ToNumber(id)) : known->member.name,
             heard == presence.end() ? wait.open_for : now - heard->second->last_heard()});
      }
    }
    for (auto& [round, wait] : by_round) {
      if (wait.missing.empty() && wait.held_for.empty()) {
        wait.held_for = reduced.contains(round) ? kReducedHere : kCompleteHere;
      }
      const std::vector<TensorId>& named = tensors[round];
      wait.tensor_count = named.size();
      for (size_t t = 0; t < std::min(named.size(), kMaxNamedTensors); ++t) {
        wait.tensors.push_back(plan.layout.tensor(named[t]).name);
      }
      waits.push_back(std::move(wait));
    }
  }
  return waits;
}

std::vector<Arrival> Job::NewestArrivals() const {
  std::vector<Arrival> all;
  for (const std::shared_ptr<const Group>& group : Groups()) {
    if (group->arrivals == nullptr) continue;
    const std::vector<Arrival> newest = group->arrivals->Newest();
    all.insert(all.end(), newest.begin(), newest.end());
  }
  return all;
}

std::vector<ReducedChunk> Job::Reduced() const {
  std::vector<ReducedChunk> all;
  for (const std::shared_ptr<const Group>& group : Groups()) {
    for (const std::unique_ptr<ServedChunk>& chunk : group->chunks) {
      if (chunk == nullptr) continue;
      std::optional<ReducedChunk> reduced = chunk->Reduced();
      if (!reduced.has_value()) continue;
      reduced->job = name_;
      all.push_back(*std::move(reduced));
    }
  }
  return all;
}

std::shared_ptr<const Roster> Job::roster() const {
  MutexLock lock(mutex_);
  return roster_;
}

std::optional<Epoch> Job::epoch() const {
  MutexLock lock(mutex_);
  const Epoch* newest = roster_->newest_epoch();
  if (newest == nullptr) return std::nullopt;
  return *newest;
}

std::vector<GroupProgress> Job::Progress() const {
  std::vector<GroupProgress> progress;
  for (const std::shared_ptr<const Group>& group : Groups()) {
    GroupProgress row{group->plan->id, group->plan->spec.name, 0, Round{~uint64_t{0}}, 0};
    for (const std::unique_ptr<ServedChunk>& chunk : group->chunks) {
      if (chunk == nullptr) continue;
      ++row.chunks;
      row.open = std::min(row.open, chunk->open_round());
      row.late_contributions = std::max(row.late_contributions, chunk->late_contributions());
    }
    if (row.chunks == 0) row.open = FirstRound(group->plan->spec.rule);
    progress.push_back(std::move(row));
  }
  return progress;
}

}  // namespace syncgrads::server
