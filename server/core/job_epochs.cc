// CoordinatedJob: how its epochs begin.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/coordinated_job.h"

namespace syncgrads::server {

std::string CoordinatedJob::WaitingFor() const {
  if (!with_.log.complete()) {
    return absl::StrCat("server ", with_.log.Absent(), " has not started yet");
  }
  const std::string names = absl::StrJoin(members_, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, "\"", entry.second.member.name, "\"");
  });
  return absl::StrCat(members_.size(), " of ", world_size_, " workers have joined: ", names);
}

void CoordinatedJob::TryStart() {
  if (has_begun()) return;
  if (!with_.log.complete() || members_.size() < world_size_) {
    const Waiting waiting{WaitingFor()};
    for (const auto& [id, member] : members_) Send(member, waiting);
    return;
  }
  std::vector<const MemberState*> ranked;
  for (const auto& [id, member] : members_) ranked.push_back(&member);
  std::sort(ranked.begin(), ranked.end(), [](const MemberState* a, const MemberState* b) {
    const uint32_t last = ~uint32_t{0};
    const uint32_t rank_a = a->asked_rank.value_or(last), rank_b = b->asked_rank.value_or(last);
    return rank_a != rank_b ? rank_a < rank_b : a->member.name < b->member.name;
  });
  Epoch epoch;
  epoch.number = 1;
  for (const MemberState* member : ranked) epoch.members.push_back(member->member);
  BeginEpoch(std::move(epoch));
}

void CoordinatedJob::ProposeEpoch() {
  if (proposal_.has_value()) return;  // those who went since are left out at its end
  PlanChange change{0, name_, generation_, EpochProposed{epoch_.number + 1}};
  proposal_.emplace(with_.log.Append(change), with_.log.size());
  proposal_->Answer(ServerIndex{0}, with_.own.Apply(change));
  FinishProposal();
}

void CoordinatedJob::OpenRounds(ServerIndex server, uint64_t sequence,
                                const std::vector<GroupRound>& rounds) {
  if (!proposal_.has_value() || proposal_->sequence() != sequence) return;
  proposal_->Answer(server, rounds);
  FinishProposal();
}

void CoordinatedJob::FinishProposal() {
  if (!proposal_->answered_by_all()) return;
  Epoch epoch;
  epoch.number = epoch_.number + 1;
  for (const Member& member : epoch_.members) {
    if (!members_.at(member.id).gone) epoch.members.push_back(member);
  }
  epoch.first_rounds = proposal_->FirstRounds();
  proposal_.reset();
  BeginEpoch(std::move(epoch));
  for (const RegistrationRequest& late : std::exchange(postponed_, {})) {
    Register(late.member, late.request, late.spec);
  }
}

void CoordinatedJob::BeginEpoch(Epoch epoch) {
  with_.journal.Note(absl::StrCat(
      Quoted(), ": epoch ", epoch.number, " of ", epoch.members.size(),
      " workers: ", absl::StrJoin(epoch.members, ", ", [](std::string* out, const Member& member) {
        *out += member.name;
      })));
  epoch_ = std::move(epoch);
  epoch_told_ = false;
  const uint64_t sequence = Append(epoch_);
  for (const Member& member : epoch_.members) TellWhenApplied(sequence, member.id, epoch_);
}

}  // namespace syncgrads::server
