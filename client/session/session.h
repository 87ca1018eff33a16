// A client's session: it connects the membership, the data plane, and the groups of one Client.

#ifndef SYNCGRADS_CLIENT_SESSION_SESSION_H_
#define SYNCGRADS_CLIENT_SESSION_SESSION_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/api/client_options.h"
#include "client/api/group.h"
#include "client/link/timers.h"
#include "client/link/transport.h"
#include "client/membership/membership.h"
#include "client/memory/shared_buffers.h"
#include "client/rounds/group_rounds.h"
#include "client/session/data_plane.h"
#include "client/session/epoch_history.h"
#include "client/session/link_rate.h"
#include "client/session/trace_reporter.h"
#include "client/tuning/autotune.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/signals/figures.h"
#include "common/signals/membership.h"
#include "common/signals/signals.h"

namespace syncgrads::client {

class StateHandover;

// What a session depends on. A simulation injects its own.
struct Dependencies {
  std::unique_ptr<Transport> transport;
  // All deadlines of the session use their clock.
  std::unique_ptr<Timers> timers;
  // A random number that no other session has.
  Incarnation incarnation{};
  // See Hello::member_secret.
  std::string member_secret = {};
};

// Owned by Client. Methods that Client has as well have the contracts in client.h. MembershipEvents
// are called by the membership, on threads of the transport and of the timers. Thread-safe.
//
// `mutex_` guards the client's state between Join and Leave, and the objects that belong to it.
// They are constructed while it is held; the constructor of DataPlane takes the lock of
// SharedBuffers. Membership, DataPlane, EpochHistory, LinkRate, Autotune and TraceReporter are
// called without it.
class Session : public MembershipEvents {
 public:
  Session(ClientOptions options, Dependencies dependencies);
  ~Session() override;

  absl::Status Join(absl::Duration timeout);
  absl::Status Leave(absl::Duration timeout);
  void Abandon();
  absl::Status status() const;
  uint32_t rank() const { return epochs_.rank(); }
  uint32_t world_size() const { return epochs_.world_size(); }
  bool is_newcomer() const { return epochs_.is_newcomer(); }
  std::string name() const;
  absl::StatusOr<Group*> Register(const GroupSpec& spec, absl::Duration timeout);

  const ClientOptions& options() const { return options_; }
  bool HasRegistered(absl::string_view group) const;
  // Called by a registered group, on the caller's thread, when one of its steps has ended.
  void OnStepEnded(GroupId group) { autotune_.StepEnded(group, timers_->Now()); }

  absl::StatusOr<void*> AllocateGradients(size_t bytes);

  bool TakeCheckpointRequest() { return checkpoint_requested_.exchange(false); }
  void ReportCheckpoint(uint64_t step, const absl::StatusOr<std::string>& path);
  absl::Status ReportFigures(TrainingFigures figures);
  absl::Status SetLearningRateFactor(double factor, absl::Duration timeout);

  Timers& timers() { return *timers_; }

  // The epochs that this worker has received.
  const EpochHistory& epochs() const { return epochs_; }
  // Passes the newest epoch, and every later one, to `handover`.
  void AddHandover(std::shared_ptr<StateHandover> handover);
  // Reports to the coordinator that this worker has the state of `group`, and waits for the
  // acknowledgement.
  absl::Status ReportReady(GroupId group, absl::Time deadline);

  // FailedPrecondition unless this client is a member; the message names the call that is missing.
  absl::Status CheckMember() const;
  // Registers a group. If it is registered, finds it. `answer` is called once, without locks, on
  // any thread, possibly before this call returns.
  using RegisterAnswer = std::function<void(absl::StatusOr<std::shared_ptr<GroupRounds>>)>;
  // `link_rate` is in bytes per second; 0 if it is not known.
  void RegisterRounds(const GroupSpec& spec, double link_rate, RegisterAnswer answer);
  // Registers a group and waits for its rounds. DeadlineExceeded if the coordinator has not
  // answered.
  absl::StatusOr<std::shared_ptr<GroupRounds>> AwaitRounds(const GroupSpec& spec,
                                                           absl::Time deadline);
  absl::Status EndGroup(const GroupRounds& rounds, Round last_round, absl::Duration timeout);
  // Not null once this client has been a member. Stays valid as long as the session.
  DataPlane* data_plane() const;

  void OnWelcome(Generation generation, const Welcome& welcome) override;
  void OnEpoch(const Epoch& epoch) override;
  void OnOver(const absl::Status& status) override;
  void OnCheckpointRequested() override { checkpoint_requested_.store(true); }
  void OnTraceRequested(const TraceRequested& asked) override;
  std::vector<GroupRound> Progress() override;

 private:
  enum class State { kNew, kJoining, kMember, kLeft, kAbandoned };

  // Called by the data plane when a server refuses this worker or has been unreachable for too
  // long.
  void OnLost(const absl::Status& status);
  // Fails everything in progress, and every later call, with `status`, and closes the streams. A
  // server then waits for this worker no longer than its stream grace.
  void Close(const absl::Status& status);
  // Null before Join.
  std::shared_ptr<Membership> membership() const;

  const ClientOptions options_;
  const Incarnation incarnation_;
  const std::string member_secret_;
  const std::unique_ptr<Transport> transport_;
  SharedBuffers shared_;
  const std::unique_ptr<Timers> timers_;

  std::atomic<bool> checkpoint_requested_{false};

  mutable Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kNew;
  // The reason why the membership is over. EpochHistory::End receives the same reason.
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  // Never replaced once they are set. `membership_` is set first.
  std::shared_ptr<Membership> membership_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<DataPlane> data_plane_ ABSL_GUARDED_BY(mutex_);
  std::string name_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::unique_ptr<Group>, std::less<>> groups_ ABSL_GUARDED_BY(mutex_);

  // They have locks of their own. The listeners of `epochs_` use the data plane's groups, so they
  // are destroyed before it.
  EpochHistory epochs_;
  LinkRate link_rate_;
  Autotune autotune_;
  TraceReporter trace_reporter_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_SESSION_SESSION_H_
