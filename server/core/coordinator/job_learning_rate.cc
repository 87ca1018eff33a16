#include "server/core/coordinator/job_learning_rate.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/group/group.h"
#include "common/names.h"
#include "common/status_macros.h"

namespace syncgrads::server {

absl::Status JobLearningRate::Set(double factor, const std::string& by) {
  if (!epochs_.has_begun()) {
    return absl::FailedPreconditionError(
        absl::StrCat(job_.Quoted(), " has not begun: it waits for workers"));
  }
  const std::vector<std::shared_ptr<const GroupPlan>> groups = groups_.WithLearningRate();
  if (groups.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(job_.Quoted(), " has no group with a learning rate among its ", groups_.size(),
                     " groups: a group needs an optimizer on the servers, or members_scale_rate"));
  }
  for (const std::shared_ptr<const GroupPlan>& group : groups) {
    SYNCGRADS_RETURN_IF_ERROR(CheckRateFactor(group->spec, factor));
  }
  if (factor == factor_) return absl::OkStatus();
  if (HasEnded(groups)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the data of ", job_.Quoted(), " has ended: no step would use the factor"));
  }
  SYNCGRADS_RETURN_IF_ERROR(
      plan_.StoreRecord(LearningRateSet{job_.name(), job_.generation(), factor}));
  Record(absl::StrCat("the learning rate factor is set to ", factor, " (before: ", factor_, ") by ",
                      Printable(by, kMaxNameBytes)));
  factor_ = factor;
  return absl::OkStatus();
}

bool JobLearningRate::HasEnded(absl::Span<const std::shared_ptr<const GroupPlan>> groups) const {
  for (const Member& member : epochs_.present().members) {
    if (members_.Find(member.id) == nullptr) continue;
    for (const std::shared_ptr<const GroupPlan>& group : groups) {
      if (plan_.EndOf(member.id, group->id) == nullptr) return false;
    }
  }
  return true;
}

void JobLearningRate::AnswerWhenApplied(MemberId member, uint64_t request) {
  if (!is_pending()) return members_.SendWhenApplied(epochs_.sequence(), member, Done{request});
  const auto [waiting, is_first] = waiting_.try_emplace(member, request);
  if (is_first || waiting->second == request) return;
  const uint64_t earlier = std::exchange(waiting->second, request);
  const absl::Status error =
      absl::AbortedError("the worker has set the learning rate factor again");
  members_.Send(*members_.Find(member), Refused{earlier, error});
}

void JobLearningRate::Complete(Epoch& next) const {
  next.learning_rate = epochs_.present().learning_rate;
  if (!is_pending()) return;
  next.learning_rate = {factor_, {}};
  for (const std::shared_ptr<const GroupPlan>& group : groups_.WithLearningRate()) {
    // Round 0 has no learning rate. A group that the epoch does not list has no round yet.
    const Round first = FindRound(next.first_rounds, group->id).value_or(Round{1});
    next.learning_rate.since.push_back({group->id, std::max(first, Round{1})});
  }
}

void JobLearningRate::EpochBegun(bool changed) {
  for (const auto& [member, request] : std::exchange(waiting_, {})) {
    members_.SendWhenApplied(epochs_.sequence(), member, Done{request});
  }
  if (!changed) return;
  const LearningRate& rate = epochs_.present().learning_rate;
  std::vector<std::string> since;
  for (const std::shared_ptr<const GroupPlan>& group : groups_.WithLearningRate()) {
    const std::optional<Round> first = FindRound(rate.since, group->id);
    if (!first.has_value()) continue;
    since.push_back(
        absl::StrCat("step ", ToNumber(*first), " of group \"", group->spec.name, "\""));
  }
  Record(absl::StrCat("the learning rate factor is ", rate.factor, " from ",
                      absl::StrJoin(since, " and "), " on"));
}

void JobLearningRate::Record(const std::string& text) const {
  journal_.Record({.kind = EventKind::kLearningRate,
                   .job = job_.name(),
                   .text = absl::StrCat(job_.Quoted(), ": ", text)});
}

}  // namespace syncgrads::server
