#include "server/core/jobs/job.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/state/state_file.h"

namespace syncgrads::server {
namespace {

bool IsSecretOfMember(const Roster::Entry* entry, absl::string_view secret) {
  return entry != nullptr && !entry->member.secret_hash.empty() &&
         MatchesHash(entry->member.secret_hash, secret);
}

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
      presences_(clock),
      explained_drop_(clock) {}

size_t Job::MemberCount() const {
  const std::shared_ptr<const Roster> roster = this->roster();
  const Epoch* epoch = roster->newest_epoch();
  return epoch == nullptr ? 1 : epoch->members.size();
}

absl::StatusOr<GroupResults> Job::MakeResults(const GroupPlan& plan, uint64_t key,
                                              const AllocationProgress& progress) const {
  return MakeGroupResults(plan, self_, generation_, key, MemberCount(), state_, progress);
}

uint64_t Job::BytesToAllocate(const GroupPlan& plan) const {
  return BytesOfResults(plan, self_, MemberCount());
}

absl::StatusOr<GroupResults> Job::OpenResults(const GroupPlan& plan, uint64_t key) const {
  return OpenGroupResults(plan, self_, generation_, key, MemberCount(), *state_);
}

void Job::AddGroup(std::shared_ptr<const GroupPlan> plan, uint64_t sequence,
                   absl::StatusOr<GroupResults> results) {
  MutexLock changing(change_mutex_);
  const GroupId id = plan->id;
  auto group =
      std::make_shared<ServedGroup>(ServedGroup::Dependencies{name_, generation_, self_, clock_,
                                                              closers_, to_coordinator_, alerts_},
                                    std::move(plan), sequence, std::move(results), roster_);
  {
    MutexLock lock(mutex_);
    groups_.emplace(id, std::move(group));
  }
  CountResultBytes();
}

void Job::CountResultBytes() {
  const size_t members = MemberCount();
  size_t bytes = 0;
  for (const std::shared_ptr<ServedGroup>& group : Groups()) bytes += group->UnreadBytes(members);
  result_bytes_ = bytes;
}

std::vector<std::string> Job::StatePaths() const {
  std::vector<std::string> paths;
  if (state_ == nullptr) return paths;
  for (const std::shared_ptr<ServedGroup>& group : Groups()) {
    paths.push_back(state_->group_path(group->results_key()));
  }
  return paths;
}

void Job::RemoveState() const {
  for (const std::string& path : StatePaths()) StateFile::Remove(path);
}

template <typename Change>
void Job::ChangeRoster(Change change) {
  auto changed = std::make_shared<Roster>(*roster());
  change(*changed);
  roster_->Set(std::move(changed));
}

void Job::AddEpoch(const Epoch& epoch) {
  {
    MutexLock lock(mutex_);
    held_for_.clear();
  }
  MutexLock changing(change_mutex_);
  const std::vector<GroupRound> needed = OldestNeededRounds();
  ChangeRoster([&epoch, &needed](Roster& roster) {
    roster.Add(epoch);
    roster.Forget(needed);
  });
  CountResultBytes();
  const std::shared_ptr<const Roster> roster = this->roster();
  presences_.ForgetUnless(*roster);
  for (const std::shared_ptr<ServedGroup>& group : Groups()) {
    group->ForgetUnless(*roster);
    group->EndHold();
  }
}

void Job::End(const MemberEnded& ended) {
  MutexLock changing(change_mutex_);
  ChangeRoster([&ended](Roster& roster) { roster.End(ended); });
  // A member ends its data in one group. The rounds of other groups do not depend on it.
  if (const std::shared_ptr<ServedGroup> group = FindGroup(ended.group)) group->TakeRoster();
}

void Job::Remove(const MemberGone& gone) {
  {
    MutexLock changing(change_mutex_);
    ChangeRoster([&gone](Roster& roster) { roster.Remove(gone); });
    for (const std::shared_ptr<ServedGroup>& group : Groups()) group->TakeRoster();
  }
  // Contributions of a member that left gracefully may still arrive.
  if (gone.graceful) return;
  // The coordinator sends the reason to the member. Admit also returns it, if the member
  // reconnects.
  presences_.Of(gone.member)
      ->CutStreams(absl::UnavailableError(absl::StrCat(
          "member ", ToNumber(gone.member), " of job \"", name_, "\" was dropped: ", gone.reason)));
}

void Job::EndStreams(const absl::Status& reason) { presences_.EndStreams(reason); }

void Job::FixQuorum(const QuorumSet& set) {
  if (const std::shared_ptr<ServedGroup> group = FindGroup(set.group)) group->Fix(set);
}

void Job::SetNorms(const StepNorms& norms) {
  if (const std::shared_ptr<ServedGroup> group = FindGroup(norms.group)) group->SetNorms(norms);
}

std::vector<GroupRound> Job::Hold(const std::string& held_for) {
  {
    MutexLock lock(mutex_);
    held_for_ = held_for;
  }
  std::vector<GroupRound> rounds;
  for (const std::shared_ptr<ServedGroup>& group : Groups()) {
    rounds.push_back({group->plan().id, group->Hold()});
  }
  return rounds;
}

bool Job::IsSecretOf(MemberId member, absl::string_view secret) const {
  return IsSecretOfMember(roster()->Find(member), secret);
}

absl::StatusOr<std::shared_ptr<Presence>> Job::Admit(const DataHello& hello,
                                                     StreamCredential credential) {
  const std::shared_ptr<const Roster> roster = this->roster();
  const Roster::Entry* const entry = roster->Find(hello.member);
  const bool is_member = IsSecretOfMember(entry, hello.member_secret);
  // A worker without the secret learns nothing about members without the token.
  if (!is_member && credential == StreamCredential::kSecretOrToken && !HasToken(hello.token)) {
    return absl::PermissionDeniedError(absl::StrCat("wrong token for job \"", name_, "\""));
  }
  if (entry == nullptr) {
    return absl::UnavailableError(absl::StrCat("member ", ToNumber(hello.member), " of job \"",
                                               name_, "\" is not known on this server yet"));
  }
  // A worker of an earlier generation of the job may have had this number.
  if (entry->member.incarnation != hello.incarnation) {
    return absl::FailedPreconditionError(absl::StrCat("incarnation ", ToNumber(hello.incarnation),
                                                      " of worker \"", entry->member.name,
                                                      "\" is not the current one; rejoin"));
  }
  const bool has_secret = !entry->member.secret_hash.empty();
  if (!is_member && (has_secret || credential == StreamCredential::kSecret)) {
    return absl::PermissionDeniedError(
        absl::StrCat(has_secret ? "wrong secret for worker \"" : "no secret is known of worker \"",
                     entry->member.name, "\" of job \"", name_, "\""));
  }
  if (entry->gone && !entry->left_gracefully) return entry->Refusal();
  std::shared_ptr<Presence> presence = presences_.Of(hello.member);
  presence->RecordMessage(clock_.Now());
  return presence;
}

void Job::RecordMessage(MemberId member, absl::Time now) {
  presences_.Of(member)->RecordMessage(now);
}

void Job::Push(const PushHeader& header, Payload payload, std::shared_ptr<AnswerSink> sink) {
  const absl::Status seated = Seat(header, std::move(payload), sink);
  if (seated.ok()) return;
  UpdateHeader refusal;
  refusal.generation = generation_;
  refusal.group = header.group;
  refusal.chunk = header.chunk;
  refusal.round = header.round;
  refusal.error = seated;
  auto result = std::make_shared<RoundResult>();
  result->round = header.round;
  result->bare_header = EncodeHeader(refusal, 0);
  sink->Send(std::move(result), false);
}

absl::Status Job::Seat(const PushHeader& header, Payload payload,
                       const std::shared_ptr<AnswerSink>& sink) const {
  if (header.generation != generation_) {
    return absl::FailedPreconditionError(
        absl::StrCat("generation ", ToNumber(header.generation), " of job \"", name_,
                     "\" is not the current one, ", ToNumber(generation_), "; rejoin"));
  }
  const std::shared_ptr<ServedGroup> group = FindGroup(header.group);
  if (group == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("job \"", name_, "\" has no group ",
                                                   ToNumber(header.group), "; register it first"));
  }
  return group->Push(header, std::move(payload), sink);
}

std::shared_ptr<ServedGroup> Job::FindGroup(GroupId id) const {
  MutexLock lock(mutex_);
  const auto group = groups_.find(id);
  return group == groups_.end() ? nullptr : group->second;
}

std::vector<std::shared_ptr<ServedGroup>> Job::Groups() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<ServedGroup>> groups;
  groups.reserve(groups_.size());
  for (const auto& [id, group] : groups_) groups.push_back(group);
  return groups;
}

absl::StatusOr<FileDescriptor> Job::ShareResults(GroupId id) const {
  const std::shared_ptr<ServedGroup> group = FindGroup(id);
  const std::shared_ptr<SlotSource> results = group == nullptr ? nullptr : group->shared_results();
  if (results == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("group ", ToNumber(id), " of job \"", name_, "\" has no shared results"));
  }
  return results->ReadOnlyDescriptor();
}

absl::StatusOr<std::vector<std::shared_ptr<const RoundResult>>> Job::HoldRound(
    Generation generation, GroupId id, Round round) const {
  if (generation != generation_) {
    return absl::FailedPreconditionError(
        absl::StrCat("generation ", ToNumber(generation), " of job \"", name_,
                     "\" is not the current one, ", ToNumber(generation_)));
  }
  const std::shared_ptr<ServedGroup> group = FindGroup(id);
  if (group == nullptr) {
    return absl::NotFoundError(absl::StrCat("job \"", name_, "\" has no group ", ToNumber(id)));
  }
  return group->HoldRound(round);
}

std::vector<RoundWait> Job::Explain(std::optional<GroupId> only) const {
  ExplainBudget budget;
  return ExplainWithin(budget, only);
}

std::shared_ptr<const std::vector<RoundWait>> Job::ExplainDrop() {
  return explained_drop_.Get([this] { return Explain(std::nullopt); });
}

std::vector<RoundWait> Job::ExplainWithin(ExplainBudget& budget,
                                          std::optional<GroupId> only) const {
  std::string held_for;
  {
    MutexLock lock(mutex_);
    held_for = held_for_;
  }
  const std::shared_ptr<const Roster> roster = this->roster();
  const absl::Time now = clock_.Now();
  std::vector<RoundWait> all;
  for (const std::shared_ptr<ServedGroup>& group : Groups()) {
    if (only.has_value() && group->plan().id != *only) continue;
    std::vector<RoundWait> waits = group->Explain(*roster, presences_, held_for, now, budget);
    std::move(waits.begin(), waits.end(), std::back_inserter(all));
  }
  return all;
}

std::vector<RoundWait> Job::Stalled(absl::Duration threshold) const {
  std::vector<RoundWait> stalled;
  ExplainBudget budget;
  for (const std::shared_ptr<ServedGroup>& group : Groups()) {
    const std::optional<absl::Time> oldest = group->OldestWait();
    if (!oldest.has_value() || clock_.Now() - *oldest < threshold) continue;
    for (RoundWait& wait : ExplainWithin(budget, group->plan().id)) {
      if (wait.open_for >= threshold) stalled.push_back(std::move(wait));
    }
  }
  return stalled;
}

std::vector<Arrival> Job::NewestArrivals() const {
  std::vector<Arrival> all;
  for (const std::shared_ptr<ServedGroup>& group : Groups()) {
    const std::vector<Arrival> newest = group->NewestArrivals();
    all.insert(all.end(), newest.begin(), newest.end());
  }
  return all;
}

std::vector<ReducedChunk> Job::Reduced() const {
  std::vector<ReducedChunk> all;
  for (const std::shared_ptr<ServedGroup>& group : Groups()) {
    std::vector<ReducedChunk> reduced = group->Reduced();
    std::move(reduced.begin(), reduced.end(), std::back_inserter(all));
  }
  return all;
}

std::optional<Epoch> Job::epoch() const {
  const std::shared_ptr<const Roster> roster = this->roster();
  const Epoch* newest = roster->newest_epoch();
  if (newest == nullptr) return std::nullopt;
  return *newest;
}

std::vector<GroupProgress> Job::Progress() const {
  std::vector<GroupProgress> progress;
  for (const std::shared_ptr<ServedGroup>& group : Groups()) progress.push_back(group->Progress());
  return progress;
}

absl::Time Job::FirstClosed() const {
  absl::Time first = absl::InfiniteFuture();
  for (const std::shared_ptr<ServedGroup>& group : Groups()) {
    first = std::min(first, group->first_closed());
  }
  return first;
}

bool Job::HasClosed(Round round) const {
  const std::vector<std::shared_ptr<ServedGroup>> groups = Groups();
  return std::any_of(groups.begin(), groups.end(),
                     [round](const auto& group) { return group->HasClosed(round); });
}

uint64_t Job::MemoryBytes() const {
  const size_t members = MemberCount();
  uint64_t bytes = 0;
  for (const std::shared_ptr<ServedGroup>& group : Groups()) bytes += group->MemoryBytes(members);
  return bytes;
}

std::optional<Round> Job::NewestOpenRound(GroupId id) const {
  const std::shared_ptr<ServedGroup> group = FindGroup(id);
  return group == nullptr ? std::nullopt : group->NewestOpenRound();
}

std::vector<GroupRound> Job::OldestNeededRounds() const {
  std::vector<GroupRound> rounds;
  for (const std::shared_ptr<ServedGroup>& group : Groups()) {
    const std::optional<Round> oldest = group->OldestNeededRound();
    if (oldest.has_value()) rounds.push_back({group->plan().id, *oldest});
  }
  return rounds;
}

}  // namespace syncgrads::server
