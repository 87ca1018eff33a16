// The epochs that one worker has received, and its place in them.

#ifndef SYNCGRADS_CLIENT_SESSION_EPOCH_HISTORY_H_
#define SYNCGRADS_CLIENT_SESSION_EPOCH_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/signals/membership.h"

namespace syncgrads::client {

// Owned by Session. SetSelf, Add and End are called on threads of the transport and of the timers;
// SetSelf comes before the first epoch. The other methods are called on any thread; AddListener and
// Await on a caller's thread. Thread-safe. No other object is called while `mutex_` is held.
class EpochHistory {
 public:
  // The newest epochs are kept. A step whose epoch is older has ended long ago.
  static constexpr size_t kKeptEpochs = 64;

  // `coordinator` and `job` are named in errors.
  EpochHistory(std::string coordinator, std::string job);

  // Sets which member this worker is.
  void SetSelf(MemberId self);
  MemberId self() const;

  using Listener = std::function<void(const Epoch&)>;
  // The result of Add: its caller calls `listeners` with `epoch` when it is ready for them.
  struct Added {
    bool first = false;
    std::vector<Listener> listeners;
  };
  // Adds an epoch that has arrived, and wakes those that wait for it. nullopt if it is not newer
  // than the newest epoch.
  std::optional<Added> Add(const Epoch& epoch);
  // Calls `listener` with the newest epoch, before this returns. Every later epoch is passed to it
  // by the caller of Add. Requires that an epoch has been added.
  void AddListener(Listener listener);

  // The membership is over: from now on, Await returns `reason` for epochs that have not arrived.
  // Only the first call has an effect.
  void End(const absl::Status& reason);

  // The newest epoch. Without members if there is none.
  Epoch newest() const;
  // Returns the epoch that a round belongs to, as far as this worker has received it.
  //
  // Errors:
  //   NotFound  the round's epoch is older than all that are kept
  absl::StatusOr<Epoch> Of(GroupId group, Round round) const;
  // Waits for epoch `number`. If it is not kept any more, returns the oldest later epoch that is.
  //
  // Errors:
  //   DeadlineExceeded  the coordinator has not sent it
  //   others            the reason given to End
  absl::StatusOr<Epoch> Await(uint64_t number, absl::Time deadline) const;

  // Waits for epoch `number` and returns its learning rate factor.
  //
  // Errors: those of Await, and
  //   FailedPrecondition  the epoch is not kept any more
  absl::StatusOr<double> AwaitRateFactor(uint64_t number, absl::Time deadline) const;

  // This worker's rank in the newest epoch that has it as a member; 0 if there is none.
  uint32_t rank() const;
  // The number of members of the newest epoch.
  uint32_t world_size() const;
  // The number of members of epoch `number`; nullopt if it has not arrived or is not kept any more.
  std::optional<size_t> WorldSizeOf(uint64_t number) const;
  // True if the first epoch that this worker received lists it as a newcomer.
  bool is_newcomer() const;
  // Newcomers only: returns this worker's first round of a group. nullopt if the group begins for
  // this worker where it begins for all.
  std::optional<Round> FirstRoundOf(GroupId group) const;

 private:
  bool IsNewcomerLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string coordinator_;
  const std::string job_;

  mutable Mutex mutex_;
  mutable CondVar changed_;
  MemberId self_ ABSL_GUARDED_BY(mutex_){};
  uint32_t rank_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);
  // The first epoch that this worker received.
  std::optional<Epoch> first_ ABSL_GUARDED_BY(mutex_);
  // In the order of their numbers; at most kKeptEpochs.
  std::vector<Epoch> epochs_ ABSL_GUARDED_BY(mutex_);
  std::vector<Listener> listeners_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_SESSION_EPOCH_HISTORY_H_
