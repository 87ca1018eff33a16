// The group behind one collective's name, registered when the name is first
// used, and the calls that go through its rounds one after the other.

#ifndef SYNCGRADS_CLIENT_NAMED_COLLECTIVE_H_
#define SYNCGRADS_CLIENT_NAMED_COLLECTIVE_H_

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
#include "client/group_rounds.h"
#include "client/session.h"
#include "common/group.h"
#include "common/mutex.h"

namespace syncgrads::client {

// One call of a collective. Its outcome is guarded by the collective's lock.
struct CollectiveCall {
  struct Buffer {
    bool skip = false;
    absl::Span<const std::byte> values;
    absl::Span<std::byte> result;  // empty: not wanted
  };
  std::vector<Buffer> buffers;  // one for each tensor
  // What the call returns once every result is in place.
  std::function<absl::StatusOr<uint32_t>(GroupRounds&)> conclude;
  // Memory that the buffers lie in, if it is not the caller's.
  std::shared_ptr<void> memory;

  std::optional<absl::StatusOr<uint32_t>> outcome;
};

// Always in a shared_ptr. Thread-safe.
class NamedCollective : public std::enable_shared_from_this<NamedCollective> {
 public:
  // `session` must outlive every call.
  NamedCollective(GroupSpec spec, Session& session);

  const GroupSpec& spec() const { return spec_; }
  // Whether the coordinator refused to register it.
  bool refused() const;

  // FailedPrecondition if an earlier call is under way. Returns at once.
  absl::Status Begin(std::shared_ptr<CollectiveCall> call);
  bool IsReady(const CollectiveCall& call) const;
  // DeadlineExceeded: the wait can be repeated.
  absl::StatusOr<uint32_t> Wait(CollectiveCall& call, absl::Duration timeout);

 private:
  void OnRegistered(absl::StatusOr<std::shared_ptr<GroupRounds>> rounds);
  void Contribute(GroupRounds& rounds, const std::shared_ptr<CollectiveCall>& call);
  // Sets the outcome of a call that is over.
  void ConcludeLocked(CollectiveCall& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const GroupSpec spec_;
  Session& session_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool registering_ ABSL_GUARDED_BY(mutex_) = false;
  bool refused_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<GroupRounds> rounds_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<CollectiveCall> current_ ABSL_GUARDED_BY(mutex_);
  // After this no call can succeed: a round did not complete.
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_NAMED_COLLECTIVE_H_
