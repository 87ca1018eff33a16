#include "server/service/control/followed_plan.h"

#include <utility>

#include "common/signals/protocol.h"
#include "common/status_macros.h"
#include "server/service/control/signals.h"

namespace syncgrads::server {

FollowedPlan::FollowedPlan(FollowedPlanOptions options, Jobs& jobs)
    : options_(std::move(options)), jobs_(jobs), incarnation_(options_.incarnation) {
  MutexLock lock(mutex_);
  for (const HeldRounds& held : options_.held) held_[held.job] = held;
}

std::vector<v1::ServerSignal> FollowedPlan::Greeting() const {
  std::vector<v1::ServerSignal> signals(1);
  v1::ServerHello hello;
  {
    MutexLock lock(mutex_);
    hello.set_incarnation(ToNumber(incarnation_));
    for (const auto& [job, held] : held_) signals.push_back(ToProto(held));
  }
  hello.set_protocol_version(kProtocolVersion);
  hello.set_index(ToNumber(options_.index));
  hello.set_address(options_.address);
  hello.set_applied(jobs_.applied());
  hello.set_plan(jobs_.plan());
  hello.set_token(options_.server_token);
  *signals.front().mutable_hello() = std::move(hello);
  signals.front().set_available_bytes(options_.available_memory());
  for (v1::Arrived& arrived : ToProto(jobs_.NewestArrivals())) {
    *signals.emplace_back().mutable_arrived() = std::move(arrived);
  }
  for (const StoreFailure& failure : jobs_.StoreFailures()) signals.push_back(ToProto(failure));
  if (const std::vector<ReducedChunk> reduced = jobs_.Reduced(); !reduced.empty()) {
    *signals.emplace_back().mutable_reduced() = ToProto(reduced);
  }
  return signals;
}

absl::StatusOr<std::vector<v1::ServerSignal>> FollowedPlan::Apply(const v1::PlanSignal& signal) {
  if (signal.has_prepare()) {
    SYNCGRADS_ASSIGN_OR_RETURN(const GroupPreparation preparation, PreparationFromProto(signal));
    jobs_.Prepare(preparation);
    return std::vector<v1::ServerSignal>();
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const PlanChange change, FromProto(signal));
  std::vector<GroupRound> open = jobs_.Apply(change);
  SYNCGRADS_RETURN_IF_ERROR(jobs_.status());
  std::vector<v1::ServerSignal> replies;
  if (std::holds_alternative<EpochProposed>(change.kind)) {
    const HeldRounds held = {change.job, change.sequence, std::move(open)};
    replies.push_back(ToProto(held));
    MutexLock lock(mutex_);
    held_[change.job] = held;
  } else if (std::holds_alternative<Epoch>(change.kind) ||
             std::holds_alternative<JobClosed>(change.kind)) {
    MutexLock lock(mutex_);
    held_.erase(change.job);
  }
  v1::ServerSignal& applied = replies.emplace_back();
  applied.set_applied(change.sequence);
  applied.set_available_bytes(options_.available_memory());
  return replies;
}

v1::ServerSignal FollowedPlan::Applied() const {
  v1::ServerSignal applied;
  applied.set_applied(jobs_.applied());
  return applied;
}

void FollowedPlan::Forget() {
  PlanStart start;
  start.incarnation = options_.draw_incarnation();
  {
    MutexLock lock(mutex_);
    held_.clear();
    incarnation_ = start.incarnation;
  }
  jobs_.Reset(start);
}

}  // namespace syncgrads::server
