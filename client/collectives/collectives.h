// The collectives. Each operation and name is a group of its own, which goes through the same
// rounds as the training group.
//
// A group's name consists of the operation and the caller's name, without dtype and length. If two
// workers disagree on these, the coordinator refuses the registration, and the message has both
// values.

#ifndef SYNCGRADS_CLIENT_COLLECTIVES_COLLECTIVES_H_
#define SYNCGRADS_CLIENT_COLLECTIVES_COLLECTIVES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/api/arrays.h"
#include "client/api/group.h"
#include "client/api/operation.h"
#include "client/collectives/named_collective.h"
#include "common/mutex.h"

namespace syncgrads::client {

// Each method starts the operation that client.h describes and does not wait.
//
// Errors of all methods:
//   FailedPrecondition  called before Join, or an operation of the same name is in progress
//   InvalidArgument     the arrays do not fit each other, the operation, or an earlier operation of
//                       the same name
//
// Owned by Session. Thread-safe.
class Collectives {
 public:
  using Started = absl::StatusOr<std::unique_ptr<Pending::Operation>>;

  // `session` must outlive this object and every wait for an operation.
  explicit Collectives(Session& session) : session_(session) {}

  // `memory`, if it is not null, owns the arrays; it is kept until the operation is over.
  Started AllReduce(absl::string_view name, ConstArray input, Array output, Reduction reduction,
                    std::shared_ptr<void> memory = nullptr);
  Started AllReduceSkip(absl::string_view name, Array output, Reduction reduction);
  Started AllReduceWith(absl::string_view name, ConstArray input, Array output, Fold fold);
  Started AllReduceWithSkip(absl::string_view name, Array output, Fold fold);
  Started Reduce(absl::string_view name, ConstArray input, Array output, Reduction reduction,
                 uint32_t root);
  Started Broadcast(absl::string_view name, Array values, uint32_t root);
  Started BroadcastAll(absl::string_view name, absl::Span<const NamedTensor> tensors,
                       uint32_t root);
  Started AllGather(absl::string_view name, ConstArray input, Array output);
  Started Barrier(absl::string_view name);

 private:
  Started Start(GroupSpec spec, CollectiveCall call);
  // Gathers arrays like `mine` from the members that contribute. `memory`, if it is not null, owns
  // `output`.
  Started StartGather(std::string group, ConstArray mine, bool skip, absl::Span<std::byte> output,
                      std::shared_ptr<void> memory);
  Started StartFold(absl::string_view name, ConstArray mine, bool skip, Array output, Fold fold);
  Started StartBroadcast(std::string group, absl::Span<const NamedTensor> tensors, uint32_t root);
  absl::Status CheckRoot(uint32_t root) const;

  Session& session_;

  Mutex mutex_;
  std::map<std::string, std::shared_ptr<NamedCollective>, std::less<>> by_name_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_COLLECTIVES_COLLECTIVES_H_
