// The collectives, each a group of its own that goes through the same rounds as
// the training group.
//
// A group's name is made of what is done and the caller's name, not of dtype and
// length: two workers that differ in those are refused by the coordinator, which
// names both.

#ifndef SYNCGRADS_CLIENT_COLLECTIVES_H_
#define SYNCGRADS_CLIENT_COLLECTIVES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "client/named_collective.h"
#include "client/operation.h"
#include "common/mutex.h"

namespace syncgrads::client {

// Each method begins an operation as client.h says and returns at once. Errors of
// all of them: FailedPrecondition before Join, and while an operation of the same
// name is under way; InvalidArgument for arrays that do not fit each other, the
// operation, or an earlier one of the same name.
//
// Thread-safe.
class Collectives {
 public:
  using Started = absl::StatusOr<std::unique_ptr<Pending::Operation>>;

  // `session` must outlive it and every operation's wait.
  explicit Collectives(Session& session) : session_(session) {}

  Started AllReduce(absl::string_view name, ConstArray input, Array output, Reduction reduction);
  Started AllReduceSkip(absl::string_view name, Array output, Reduction reduction);
  // A gather under a name of its own, into `*gathered`, which is made as long as
  // it can become; `gathered` is kept until the operation is over.
  Started GatherForFold(absl::string_view name, ConstArray input,
                        std::shared_ptr<std::vector<std::byte>> gathered);
  Started Reduce(absl::string_view name, ConstArray input, Array output, Reduction reduction,
                 uint32_t root);
  Started Broadcast(absl::string_view name, Array values, uint32_t root);
  Started BroadcastAll(absl::string_view name, absl::Span<const NamedTensor> tensors,
                       uint32_t root);
  Started AllGather(absl::string_view name, ConstArray input, Array output);
  Started Barrier(absl::string_view name);

 private:
  Started Start(GroupSpec spec, CollectiveCall call);
  Started StartGather(std::string group, ConstArray input, absl::Span<std::byte> output,
                      std::shared_ptr<void> memory);
  Started StartBroadcast(std::string group, absl::Span<const NamedTensor> tensors, uint32_t root);
  absl::Status CheckRoot(uint32_t root) const;

  Session& session_;

  Mutex mutex_;
  std::map<std::string, std::shared_ptr<NamedCollective>, std::less<>> by_name_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_COLLECTIVES_H_
