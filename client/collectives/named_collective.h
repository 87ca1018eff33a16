// One operation and name of a collective: its group, which is registered when the name is first
// used, and the calls that go through the group's rounds one after the other.

#ifndef SYNCGRADS_CLIENT_COLLECTIVES_NAMED_COLLECTIVE_H_
#define SYNCGRADS_CLIENT_COLLECTIVES_NAMED_COLLECTIVE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/rounds/group_rounds.h"
#include "client/session/session.h"
#include "common/group/group.h"
#include "common/mutex.h"

namespace syncgrads::client {

// One call of a collective. `outcome` is guarded by NamedCollective::mutex_.
struct CollectiveCall {
  struct Buffer {
    bool skip = false;
    absl::Span<const std::byte> values;
    absl::Span<std::byte> result;  // empty if no result is wanted
  };
  std::vector<Buffer> buffers;  // one for each tensor of the group
  // Returns the value of the call, when every result is in its buffer.
  std::function<absl::StatusOr<uint32_t>(GroupRounds&)> conclude;
  // Owns the memory of the buffers, if the caller does not.
  std::shared_ptr<void> memory;

  std::optional<absl::StatusOr<uint32_t>> outcome;
};

// Always owned by shared_ptrs: those of Collectives, and of operations. Thread-safe.
class NamedCollective : public std::enable_shared_from_this<NamedCollective> {
 public:
  // `session` must outlive every call.
  NamedCollective(GroupSpec spec, Session& session);

  const GroupSpec& spec() const { return spec_; }
  // True if the coordinator refused to register the group.
  bool refused() const;

  // Starts a call and does not wait. FailedPrecondition if an earlier call is in progress.
  absl::Status Begin(std::shared_ptr<CollectiveCall> call);
  bool IsReady(const CollectiveCall& call) const;
  // Waits for the outcome of `call`. After DeadlineExceeded, the wait can be repeated.
  absl::StatusOr<uint32_t> Wait(CollectiveCall& call, absl::Duration timeout);

 private:
  void OnRegistered(absl::StatusOr<std::shared_ptr<GroupRounds>> rounds);
  void Contribute(GroupRounds& rounds, const std::shared_ptr<CollectiveCall>& call);
  // Sets the outcome of a call whose round is over.
  void ConcludeLocked(CollectiveCall& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const GroupSpec spec_;
  Session& session_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool registering_ ABSL_GUARDED_BY(mutex_) = false;
  bool refused_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<GroupRounds> rounds_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<CollectiveCall> current_ ABSL_GUARDED_BY(mutex_);
  // Not OK if a round did not complete or the registration was refused: no later call can succeed.
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_COLLECTIVES_NAMED_COLLECTIVE_H_
