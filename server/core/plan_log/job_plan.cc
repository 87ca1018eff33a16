#include "server/core/plan_log/job_plan.h"

#include <utility>
#include <variant>

#include "common/planted_bug.h"

namespace syncgrads::server {

uint64_t JobPlan::Append(decltype(PlanChange::kind) kind, uint64_t prepared) {
  if (!failure_.ok() && !std::holds_alternative<JobClosed>(kind)) return kNeverApplied;
  PlanChange change{0, job_, generation_, std::move(kind)};
  change.prepared = prepared;
  log_.Number(change);
  const bool send_first =
      (IsPlanted(PlantedBug::kNormsNotStored) && std::holds_alternative<StepNorms>(change.kind)) ||
      (IsPlanted(PlantedBug::kQuorumNotStored) && std::holds_alternative<QuorumSet>(change.kind));
  if (send_first) log_.Send(change);
  // Nothing is sent before it is stored: a restart must not forget it.
  if (absl::Status stored = StoreRecord(change); !stored.ok()) {
    failure_ = std::move(stored);
    return kNeverApplied;
  }
  Follow(change);
  if (!send_first) log_.Send(change);
  return change.sequence;
}

absl::Status JobPlan::Close(const std::string& reason, bool last) {
  closed_by_ = Append(JobClosed{reason, last});
  return closed_by_ == kNeverApplied ? failure_ : absl::OkStatus();
}

void JobPlan::Restore(const PlanChange& change) {
  Follow(change);
  if (std::holds_alternative<JobClosed>(change.kind)) closed_by_ = change.sequence;
}

void JobPlan::Follow(const PlanChange& change) {
  if (const auto* epoch = std::get_if<Epoch>(&change.kind)) {
    roster_.Add(*epoch);
    roster_.KeepNewest(kEarlierEpochs + 1);
  } else if (const auto* ended = std::get_if<MemberEnded>(&change.kind)) {
    roster_.End(*ended);
    ends_[ended->member][ended->group] = {ended->last_round, ended->follows, change.sequence};
  } else if (const auto* gone = std::get_if<MemberGone>(&change.kind)) {
    roster_.Remove(*gone);
    ends_.erase(gone->member);
  }
}

absl::Status JobPlan::StoreRecord(const Stored& record) const {
  return store_ == nullptr ? absl::OkStatus() : store_->Append(record);
}

const JobPlan::End* JobPlan::EndOf(MemberId member, GroupId group) const {
  const auto ends = ends_.find(member);
  if (ends == ends_.end()) return nullptr;
  const auto end = ends->second.find(group);
  return end == ends->second.end() ? nullptr : &end->second;
}

uint64_t JobPlan::applied() const {
  return closed() ? log_.applied_by_connected() : log_.applied_by_all();
}

}  // namespace syncgrads::server
