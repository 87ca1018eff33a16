// A registered group, as client.h offers it: the Group over one GroupRounds.

#ifndef SYNCGRADS_CLIENT_SESSION_REGISTERED_GROUP_H_
#define SYNCGRADS_CLIENT_SESSION_REGISTERED_GROUP_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/api/group.h"
#include "client/rounds/group_rounds.h"
#include "client/session/state_handover.h"
#include "common/mutex.h"

namespace syncgrads::client {

class Session;

// Owned by Session. Thread-safe as Group describes it. `mutex_` guards only the members below it;
// no other object is called while it is held.
class RegisteredGroup : public Group {
 public:
  // `session` must outlive this object.
  RegisteredGroup(std::shared_ptr<GroupRounds> rounds, Session& session);

  const GroupSpec& spec() const override { return rounds_->plan().spec; }
  const Layout& layout() const override { return rounds_->plan().layout; }
  absl::StatusOr<TensorId> Find(absl::string_view name) const override;
  uint64_t step() const override { return ToNumber(rounds_->round()); }
  uint64_t steps_behind() const override;
  double learning_rate_factor() const override;
  absl::Status SetWeight(double weight) override;
  void SendUncompressed() override { rounds_->SendUncompressed(); }
  absl::Status Push(TensorId tensor, const void* values, size_t bytes, void* result) override;
  absl::Status Push(TensorId tensor, const void* values, size_t bytes, InPlace in_place) override;
  absl::Status CopyAndPush(TensorId tensor, const void* values, size_t bytes,
                           void* memory) override;
  absl::Status CopyAndPush(TensorId tensor, const void* values, size_t bytes, void* memory,
                           InPlace in_place) override;
  absl::Status Skip(TensorId tensor, void* result) override;
  absl::Status Skip(TensorId tensor, InPlace in_place) override;
  absl::StatusOr<Contributors> Wait(TensorId tensor, absl::Duration timeout) override;
  absl::StatusOr<std::vector<Contributors>> WaitStep(absl::Duration timeout) override;
  absl::StatusOr<TensorId> NextCompletion(absl::Duration timeout) override;
  bool IsAnswered(TensorId tensor) const override {
    return !CheckTensor(tensor).ok() || rounds_->IsOver(rounds_->ChunksOf(tensor));
  }
  bool IsStepAnswered() const override { return rounds_->IsOver(rounds_->AllChunks()); }
  absl::StatusOr<std::vector<absl::Span<const std::byte>>> InPlaceResult(
      TensorId tensor) const override;
  std::vector<SharedResults> FindSharedResults() const override;
  absl::Status UseResults(absl::Span<const TensorId> tensors, absl::Span<void*> places) override;
  absl::Status End(absl::Duration timeout) override;
  absl::Status SkipAll(absl::Span<void* const> results) override;
  absl::StatusOr<bool> RegisterState(absl::Span<const NamedTensor> state,
                                     absl::Duration timeout) override;
  absl::StatusOr<StepMembers> BeginStep() override;
  absl::Status RestartStep(absl::Duration timeout) override;
  absl::StatusOr<StepOutcome> LastStep(absl::Duration timeout) const override;
  absl::Status Broadcast(uint32_t root, absl::Span<void* const> tensors,
                         absl::Duration timeout) override;
  absl::Status Restore(uint32_t root, absl::Span<void* const> tensors, const OptimizerState& state,
                       absl::Duration timeout) override;
  absl::StatusOr<std::unique_ptr<OptimizerSnapshot>> SnapshotOptimizer(
      absl::Duration timeout) override;

 private:
  // Returns the tensor's memory at `result`; empty if `result` is null.
  absl::Span<std::byte> ResultOf(TensorId tensor, void* result) const;
  GroupRounds::Destination ResultOf(TensorId tensor, InPlace in_place) const {
    return GroupRounds::Destination::InPlace(ResultOf(tensor, in_place.otherwise));
  }
  absl::Status CheckPush(TensorId tensor, const void* values) const;
  absl::Status CopyAndPush(TensorId tensor, const void* values, size_t bytes, void* memory,
                           GroupRounds::Destination result);
  absl::Status CheckTensor(TensorId tensor) const;
  // FailedPrecondition in round 0, which only Broadcast may use.
  absl::Status CheckBegun() const;
  absl::Status CheckOneForEach(size_t pointers) const;
  std::vector<Contributors> Count();
  // Optimizer on the servers, when the step's chunks are done: if the step closed without this
  // worker, fetches the parameters of the newest closed step, the same step for all chunks.
  absl::Status CatchUp(absl::Time deadline);
  // Quorum groups: keeps the step's compression error for the chunks that counted this worker.
  // `newest_epoch` is the newest epoch in which one of the step's chunks has closed; waits for it.
  absl::Status SettleResiduals(uint64_t newest_epoch, absl::Time deadline);
  // Groups with a learning rate: takes the factor of an epoch, and waits for the epoch.
  absl::Status TakeRateFactor(uint64_t epoch, absl::Time deadline);
  // Newcomers only: receives the others' state.
  absl::Status TakeState(StateHandover& handover, absl::Span<const NamedTensor> state,
                         absl::Time deadline);
  // Fills the tensors of the group with the parameters that the servers hold before `step`.
  absl::Status PullParameters(absl::Span<const NamedTensor> state, Round step, absl::Time deadline);
  std::shared_ptr<StateHandover> handover() const;

  const std::shared_ptr<GroupRounds> rounds_;
  Session& session_;
  const std::map<std::string, TensorId, std::less<>> by_name_;

  mutable Mutex mutex_;
  // Null until the state is registered.
  std::shared_ptr<StateHandover> handover_ ABSL_GUARDED_BY(mutex_);
  Round last_step_ ABSL_GUARDED_BY(mutex_){};
  Round newest_closed_ ABSL_GUARDED_BY(mutex_){};
  GroupRounds::Closing last_closing_ ABSL_GUARDED_BY(mutex_);
  // The learning rate factor, and the epoch that it was taken from.
  double rate_factor_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t rate_epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  // What UseResults has returned addresses of: one for each server on this host and each of its
  // starts.
  std::vector<std::shared_ptr<const MappedResults>> used_results_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_SESSION_REGISTERED_GROUP_H_
