// A client's session: its membership, its data plane and its groups, put
// together.

#ifndef SYNCGRADS_CLIENT_SESSION_H_
#define SYNCGRADS_CLIENT_SESSION_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/data_plane.h"
#include "client/group_rounds.h"
#include "client/membership.h"
#include "client/shared_buffers.h"
#include "client/signals.h"
#include "client/step_tuner.h"
#include "client/timers.h"
#include "client/transport.h"
#include "common/ids.h"
#include "common/membership.h"
#include "common/mutex.h"

namespace syncgrads::client {

class Collectives;
class StateHandover;

// What a session stands on.
struct Surroundings {
  std::unique_ptr<Transport> transport;
  // Every deadline is counted on their clock.
  std::unique_ptr<Timers> timers;
  // Drawn for this session, and for no other.
  Incarnation incarnation{};
};

// Thread-safe. The methods of the same name do what client.h says.
class Session : public MembershipEvents {
 public:
  Session(ClientOptions options, Surroundings surroundings);
  ~Session() override;

  absl::Status Join(absl::Duration timeout);
  absl::Status Leave(absl::Duration timeout);
  void Abandon();
  absl::Status status() const;
  uint32_t rank() const;
  uint32_t world_size() const;
  std::string name() const;
  absl::StatusOr<Group*> Register(const GroupSpec& spec, absl::Duration timeout);

  const ClientOptions& options() const { return options_; }
  bool HasRegistered(absl::string_view group) const;
  // A step of a registered group has ended.
  void OnStepEnded(GroupId group);

  absl::StatusOr<void*> AllocateGradients(size_t bytes);

  bool TakeCheckpointRequest() { return checkpoint_asked_.exchange(false); }
  void ReportCheckpoint(uint64_t step, const absl::StatusOr<std::string>& path);

  Collectives& collectives() { return *collectives_; }

  bool is_newcomer() const;
  MemberId member() const;
  Timers& timers() { return *timers_; }

  // Epochs as this worker has heard of them. The last ones are kept.
  Epoch newest_epoch() const;
  // The one that a round belongs to, as far as is known.
  //
  // Errors:
  //   NotFound  it was before those that are kept
  absl::StatusOr<Epoch> EpochOf(GroupId group, Round round) const;
  // The epoch of this number, or the oldest after it that is kept.
  //
  // Errors:
  //   DeadlineExceeded  it has not been told of
  //   others            why the membership is over
  absl::StatusOr<Epoch> AwaitEpoch(uint64_t number, absl::Time deadline) const;

  // Is told of every epoch from now on, and of the newest.
  void AddHandover(std::shared_ptr<StateHandover> handover);
  absl::Status SayReady(GroupId group, absl::Time deadline);

  // FailedPrecondition, with what to call, unless this client is a member.
  absl::Status CheckMember() const;
  // Registers a group, or finds it. `answer` is called once, without locks, on
  // any thread, possibly before this returns.
  using RegisterAnswer = std::function<void(absl::StatusOr<std::shared_ptr<GroupRounds>>)>;
  // `link_rate`: bytes a second, 0 if it is not known.
  void RegisterRounds(GroupSpec spec, double link_rate, RegisterAnswer answer);
  // The same, and waits for it. DeadlineExceeded: the coordinator has not answered.
  absl::StatusOr<std::shared_ptr<GroupRounds>> AwaitRounds(GroupSpec spec, absl::Time deadline);
  absl::Status EndGroup(const GroupRounds& rounds, Round last_round, absl::Duration timeout);
  // Not null once this client has been a member.
  DataPlane* data_plane() const;

  void OnWelcome(Generation generation, const Welcome& welcome) override;
  void OnEpoch(const Epoch& epoch) override;
  void OnOver(const absl::Status& status) override;
  void OnCheckpointAsked() override { checkpoint_asked_.store(true); }
  std::vector<GroupRound> Progress() override;

 private:
  enum class State { kNew, kJoining, kMember, kLeft, kAbandoned };

  // A server refuses this worker or is out of reach.
  void OnLost(const absl::Status& status);
  // Everything fails, now and later; no server waits for this worker any longer
  // than its grace.
  void Close(const absl::Status& status);
  // Where a group begins for this worker, if that is not where it begins for all.
  std::optional<Round> FirstRoundOf(GroupId group) const;
  // Those that autotune tries, the program's own included.
  std::vector<TunedSetting> TunedSettings();
  // Bytes a second, for a group that could be cut by it; 0: not known.
  double LinkRateFor(const GroupSpec& spec, absl::Time deadline);

  const ClientOptions options_;
  const Incarnation incarnation_;
  const std::unique_ptr<Transport> transport_;
  SharedBuffers shared_;
  const std::unique_ptr<Timers> timers_;
  std::unique_ptr<Collectives> collectives_;

  std::atomic<bool> checkpoint_asked_{false};

  mutable Mutex mutex_;
  mutable CondVar epoch_changed_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kNew;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  // As it was measured for the first group that is worth it.
  std::optional<double> link_rate_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Membership> membership_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<DataPlane> data_plane_ ABSL_GUARDED_BY(mutex_);  // stays once it is set
  std::string name_ ABSL_GUARDED_BY(mutex_);
  MemberId member_ ABSL_GUARDED_BY(mutex_){};
  uint32_t rank_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t world_size_ ABSL_GUARDED_BY(mutex_) = 0;
  // The first that this worker heard of.
  std::optional<Epoch> first_epoch_ ABSL_GUARDED_BY(mutex_);
  std::vector<Epoch> epochs_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<StateHandover>> handovers_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::unique_ptr<Group>, std::less<>> groups_ ABSL_GUARDED_BY(mutex_);
  // With autotune, by the steps of the group that was registered first.
  std::optional<StepTuner> tuner_ ABSL_GUARDED_BY(mutex_);
  GroupId tuned_group_ ABSL_GUARDED_BY(mutex_){};
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_SESSION_H_
