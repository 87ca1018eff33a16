// A client's session: its membership, its data plane and its groups, put
// together.

#ifndef SYNCGRADS_CLIENT_SESSION_H_
#define SYNCGRADS_CLIENT_SESSION_H_

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
#include "client/client.h"
#include "client/data_plane.h"
#include "client/group_rounds.h"
#include "client/membership.h"
#include "client/shared_buffers.h"
#include "client/signals.h"
#include "client/timers.h"
#include "client/transport.h"
#include "common/mutex.h"

namespace syncgrads::client {

class Collectives;

// Thread-safe. The methods of the same name do what client.h says.
class Session : public MembershipEvents {
 public:
  Session(ClientOptions options, std::unique_ptr<Transport> transport);
  ~Session() override;

  absl::Status Join(absl::Duration timeout);
  absl::Status Leave(absl::Duration timeout);
  void Abandon();
  absl::Status status() const;
  uint32_t rank() const;
  uint32_t world_size() const;
  std::string name() const;
  absl::StatusOr<Group*> Register(const GroupSpec& spec, absl::Duration timeout);

  absl::StatusOr<void*> AllocateGradients(size_t bytes);

  Collectives& collectives() { return *collectives_; }

  // FailedPrecondition, with what to call, unless this client is a member.
  absl::Status CheckMember() const;
  // Registers a group, or finds it. `answer` is called once, without locks, on
  // any thread, possibly before this returns.
  using RegisterAnswer = std::function<void(absl::StatusOr<std::shared_ptr<GroupRounds>>)>;
  void RegisterRounds(GroupSpec spec, RegisterAnswer answer);
  absl::Status EndGroup(const GroupRounds& rounds, Round last_round, absl::Duration timeout);
  // Not null once this client has been a member.
  DataPlane* data_plane() const;

  void OnWelcome(Generation generation, const Welcome& welcome) override;
  void OnEpoch(const Epoch& epoch) override;
  void OnOver(const absl::Status& status) override;
  std::vector<GroupRound> Progress() override;

 private:
  enum class State { kNew, kJoining, kMember, kLeft, kAbandoned };

  // A server refuses this worker or is out of reach.
  void OnLost(const absl::Status& status);
  // Everything fails, now and later; no server waits for this worker any longer
  // than its grace.
  void Close(const absl::Status& status);

  const ClientOptions options_;
  const Incarnation incarnation_;
  const std::unique_ptr<Transport> transport_;
  SharedBuffers shared_;
  ThreadTimers timers_;
  std::unique_ptr<Collectives> collectives_;

  mutable Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kNew;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Membership> membership_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<DataPlane> data_plane_ ABSL_GUARDED_BY(mutex_);  // stays once it is set
  std::string name_ ABSL_GUARDED_BY(mutex_);
  MemberId member_ ABSL_GUARDED_BY(mutex_){};
  uint32_t rank_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t world_size_ ABSL_GUARDED_BY(mutex_) = 0;
  bool has_epoch_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, std::unique_ptr<Group>> groups_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_SESSION_H_
