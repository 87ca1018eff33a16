// A registered set of tensors that goes through rounds, and what its methods return.

#ifndef SYNCGRADS_CLIENT_API_GROUP_H_
#define SYNCGRADS_CLIENT_API_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/group/group.h"
#include "common/ids.h"

namespace syncgrads {

// How many members contributed to the elements of a tensor. `least` and `most` differ only if a
// worker died while its contribution was being sent, or if a part of a contribution was left out
// (GroupSpec::non_finite).
//
// If nobody contributed to some elements of a tensor, but somebody contributed to others, the
// former become zeros in the result. With an optimizer on the servers, they keep their values.
struct Contributors {
  uint32_t least = 0;
  uint32_t most = 0;
  // True if a part of this worker's contribution was not counted, because it has a NaN or an
  // infinity and GroupSpec::non_finite is kSkip.
  bool left_out = false;
};

// A tensor of a set that is broadcast (Client::BroadcastAll) or handed over to newcomers
// (Group::RegisterState). An empty shape is a scalar.
struct NamedTensor {
  TensorSpec spec;
  void* data;
};

// The members of a step, and this worker's place among them. A rank is a position in an epoch's
// list of members; it changes only between epochs.
struct StepMembers {
  uint64_t epoch = 0;
  uint32_t rank = 0;
  uint32_t world_size = 0;
};

// The outcome of a step that has ended.
struct StepOutcome {
  uint64_t step = 0;
  // The epoch that the step belonged to, and the names of its members in rank order.
  uint64_t epoch = 0;
  std::vector<std::string> members;
  // The ranks, in that epoch, whose contributions were counted.
  std::vector<uint32_t> contributors;
  // True if every one of `contributors` was counted in all chunks. A worker that died in the middle
  // of the step may have been counted in some chunks only.
  bool whole = true;
  // Only if `whole` is false: the ranks that were counted in each chunk of the group's layout.
  std::vector<std::vector<uint32_t>> parts;
};

// The state of an optimizer on the servers: one entry for each tensor of its group, in the order of
// registration.
struct OptimizerState {
  struct OfTensor {
    // One buffer for each slot of the optimizer, each as long as the tensor.
    std::vector<std::vector<std::byte>> slots;
    // The number of updates that have been applied to the tensor.
    uint64_t updates = 0;
  };
  std::vector<OfTensor> tensors;
};

// A snapshot, on the servers, of the optimizer's state after one step (Group::SnapshotOptimizer).
// The servers keep it until it has been read or this object is destroyed; further steps can be made
// in the meantime. A server discards it if none of it is read for 10 s (ps-server --hello_timeout).
// Thread-compatible.
class OptimizerSnapshot {
 public:
  virtual ~OptimizerSnapshot() = default;

  // Reads the snapshot. May be called once, on any thread. If a worker's death left parts of a
  // tensor with different numbers of updates, `updates` is the largest of them.
  //
  // Errors:
  //   Unavailable       a server was restarted or cannot be reached; names the server
  //   DeadlineExceeded  the timeout that was given to SnapshotOptimizer has passed, or a server has
  //                     discarded the snapshot
  //   DataLoss          a server sent a state that does not fit the group
  virtual absl::StatusOr<OptimizerState> Read() = 0;
};

// A registered set of tensors that go through rounds together: the training group, or any other
// group. A step is one round of every chunk of the group.
//
// Buffers: a buffer that was given to Push or Skip belongs to the library until a wait for its
// tensor returns OK, RestartStep returns OK, or Client::Abandon has returned. `result` may be the
// same memory as `values`.
//
// Owned by the Client. Thread-safe, but all calls for one tensor in one step must come from one
// thread.
class Group {
 public:
  // Passed in place of a result buffer. The result is not copied: it stays where it arrived, in
  // memory shared with a server of this host, or in the received network buffers. (It is copied
  // once if the network cut its elements or if they are not aligned.) InPlaceResult returns where
  // it is. With a buffer in `otherwise`, only what is in shared memory stays in place; what the
  // network brings is copied to the buffer, which belongs to the library as `result` does.
  struct InPlace {
    void* otherwise = nullptr;
  };

  virtual ~Group() = default;

  virtual const GroupSpec& spec() const = 0;
  virtual const Layout& layout() const = 0;
  // Returns the id of a tensor. NotFound if no tensor of this name is registered.
  virtual absl::StatusOr<TensorId> Find(absl::string_view name) const = 0;
  // The current step, to which pushes contribute. Counts from 1; 0 until Broadcast has returned OK,
  // if the optimizer is on the servers.
  virtual uint64_t step() const = 0;
  // Quorum groups: the number of steps, from the current one on, that are known to have closed
  // without this worker because it was late. If the workers apply the averages themselves, each of
  // these results must be applied, one after the other. Contributions to these steps are not
  // counted, so the worker should skip them.
  virtual uint64_t steps_behind() const { return 0; }

  // The factor by which the job's learning rates are multiplied in the step of the newest result
  // that Wait or WaitStep has returned; 1 before the first one. All workers get the same factor for
  // the same step (policy Staleness: the newest factor that a server has used).
  //
  // GroupSpec::members_scale_rate: an optimizer of the worker's own multiplies its learning rate by
  // this factor when it applies the result. An optimizer on the servers has already done so. 1 in a
  // group that has neither.
  virtual double learning_rate_factor() const { return 1; }

  // Sets this worker's weight in the averages of this step, usually its number of samples. The
  // weight is 1 in steps without this call.
  //
  // Errors:
  //   InvalidArgument     `weight` is not a positive finite number
  //   FailedPrecondition  a tensor has been pushed or skipped in this step, or (optimizer on the
  //                       servers) Broadcast has not been called
  virtual absl::Status SetWeight(double weight) = 0;

  // Compressed groups: sends this worker's contribution to this step uncompressed, with all
  // accumulated compression error added, and resets error feedback for the tensors that it pushes.
  // If all members do so, the result is uncompressed as well. Use it in the step before a
  // checkpoint: a run that resumes after this step is then bit-identical. Call it before the step's
  // first push.
  virtual void SendUncompressed() {}

  // Contributes `values` to this step and requests the result. Both have the registered dtype and
  // length. If `result` is null, no result is requested. Does not wait. A chunk is sent when every
  // tensor with a span in it has been pushed or skipped.
  //
  // Errors:
  //   InvalidArgument     the tensor is unknown, `values` is null, or `bytes` is not the size of
  //                       the tensor
  //   FailedPrecondition  the tensor has been pushed or skipped in this step; this worker has ended
  //                       its data; in a group of one epoch, BeginStep has not been called; or
  //                       (optimizer on the servers) Broadcast has not been called
  //   others              the reason why the membership is over
  virtual absl::Status Push(TensorId tensor, const void* values, size_t bytes, void* result) = 0;
  virtual absl::Status Push(TensorId tensor, const void* values, size_t bytes, InPlace) = 0;

  // Copies `values` to `memory`, which is as long, and does what Push(tensor, memory, bytes,
  // memory) does. `values` are not used after the call, and may be `memory`. After an error nothing
  // has been copied. A long copy bypasses the processor's caches: `memory` is for servers, not for
  // the caller, to read next (Client::AllocateGradients). Errors: those of Push, and
  // InvalidArgument if `memory` is null.
  virtual absl::Status CopyAndPush(TensorId tensor, const void* values, size_t bytes,
                                   void* memory) = 0;
  // The same, but the result is not copied to `memory`: it stays where it arrived.
  virtual absl::Status CopyAndPush(TensorId tensor, const void* values, size_t bytes, void* memory,
                                   InPlace) = 0;

  // Contributes nothing to this step and requests the result. If nobody contributes, `result` is
  // not written. Errors: those of Push that do not concern `values`.
  virtual absl::Status Skip(TensorId tensor, void* result) = 0;
  virtual absl::Status Skip(TensorId tensor, InPlace) = 0;

  // Waits until the tensor's result is in its buffer.
  //
  // Errors:
  //   FailedPrecondition  the tensor has not been pushed or skipped; or another tensor in one of
  //                       its chunks has not been (the message names it), so the chunk was not sent
  //   InvalidArgument     this worker's contribution has a NaN or an infinity, and
  //                       GroupSpec::non_finite is kReject; the message names tensor, worker, index
  //                       and value. The round has continued without this contribution
  //   DeadlineExceeded    names the members that have not contributed; the wait can be repeated
  //   others              a server refused the contribution: another wait sends it again; or the
  //                       reason why the membership is over
  virtual absl::StatusOr<Contributors> Wait(TensorId tensor, absl::Duration timeout) = 0;

  // Waits until any tensor that was pushed or skipped in this step has its result or has failed,
  // and returns its id: Wait for this tensor then returns at once. Returns each tensor once in a
  // step, in the order in which results arrive.
  //
  // Errors:
  //   NotFound          every tensor that was pushed or skipped in this step has been returned
  //   DeadlineExceeded  no result has arrived
  virtual absl::StatusOr<TensorId> NextCompletion(absl::Duration timeout) = 0;

  // Waits until every tensor of this step has its result, and begins the next step. Returns the
  // contributors of each tensor, in the order of registration. After an error the step has not
  // ended, and the wait can be repeated.
  //
  // Quorum with an optimizer on the servers: if this worker was late, it receives the newest
  // parameters, and the next step is the one after those.
  //
  // Errors:
  //   OutOfRange          only after End: no member has data left, so this step does not exist
  //   Aborted             groups of one epoch only: the step's members are not those that BeginStep
  //                       returned
  //   others              as listed with Wait
  virtual absl::StatusOr<std::vector<Contributors>> WaitStep(absl::Duration timeout) = 0;

  // True if Wait for this tensor, which has been pushed or skipped in this step, need not wait for
  // answers. For callers that poll because they must not be woken late.
  virtual bool IsAnswered(TensorId tensor) const = 0;
  // True if WaitStep need not wait for answers to this step: every tensor has its result, or a
  // server has refused a contribution. Under a quorum, WaitStep may still have to wait for the
  // newest parameters or for an epoch.
  virtual bool IsStepAnswered() const = 0;

  // The newest result of a tensor that was pushed or skipped with InPlace. It is valid after a wait
  // for the tensor has returned OK, until the tensor is pushed or skipped again. The elements are
  // in order, in one or more pieces; each piece consists of whole elements that are aligned to
  // their type. Empty if nobody contributed.
  //
  // Errors:
  //   InvalidArgument     the tensor is unknown
  //   FailedPrecondition  the tensor has no result in place
  virtual absl::StatusOr<std::vector<absl::Span<const std::byte>>> InPlaceResult(
      TensorId tensor) const = 0;

  // Memory of a server on this host that is mapped for reading, as long as there is an `owner`.
  struct SharedResults {
    std::shared_ptr<const void> owner;
    absl::Span<const std::byte> bytes;
  };
  // Returns the memory in which results in place lie now: one for each server on this host, and
  // during a step in which such a server has restarted, two. For callers that have to prepare
  // memory before they use it, for example for a device.
  virtual std::vector<SharedResults> FindSharedResults() const = 0;

  // Lets the caller change results that are in place. places[i] is memory as large as tensor
  // tensors[i]. If the tensor's result lies in one piece in memory shared with a server, places[i]
  // becomes the address of that piece, which the caller may change: a page that it writes becomes
  // its own copy. Otherwise the result is copied to places[i]; if nobody contributed, nothing is.
  //
  // A result at its own address is valid until the tensor is pushed or skipped again or this worker
  // leaves, and the address as long as the Client. Each call takes back what earlier calls have
  // returned: changes of those results are lost. So it is called once in a step, for all tensors.
  //
  // Errors: those of InPlaceResult, and InvalidArgument if a place is null or there is not one for
  // each tensor. Nothing has been taken back.
  virtual absl::Status UseResults(absl::Span<const TensorId> tensors, absl::Span<void*> places) = 0;

  // Declares that this worker has no more data. The other workers no longer wait for its
  // contributions. Must not be called between a step's first push and its last. Returns when every
  // server has been informed. Can be repeated after DeadlineExceeded.
  //
  // Afterwards this worker can follow the others' updates: call SkipAll and WaitStep until WaitStep
  // returns OutOfRange. All workers then end with equal parameters. The others get at most one step
  // ahead of a worker that follows. A worker that does not want the updates calls Client::Leave
  // instead.
  virtual absl::Status End(absl::Duration timeout) = 0;

  // Skips every tensor. `results` has one pointer for each tensor, in the order of registration.
  virtual absl::Status SkipAll(absl::Span<void* const> results) = 0;

  // Elastic jobs only: registers the state that a newcomer needs to continue from where the others
  // are. If this worker is a newcomer, this call also receives that state.
  //
  // Every worker calls it once, before its first step. Workers that began the job call it after
  // Broadcast (if the group has one) and after everything else that they do together at the start;
  // a newcomer does none of that. All workers register the same names and shapes.
  //
  // `state` is everything that a step changes: parameters, optimizer slots, counters, the position
  // in the data. Its memory must stay valid. The library reads it only during WaitStep and
  // RestartStep; the caller must not change it during these calls.
  //
  // Returns false if this worker began the job; `state` has not been changed. Returns true if it is
  // a newcomer: `state` is then the others' state before the step that step() now returns. With an
  // optimizer on the servers, the tensors of the group are received from the servers.
  //
  // Errors:
  //   DeadlineExceeded    the message names what the call waited for
  //   FailedPrecondition  the state has been registered, or this worker is not a member
  //   InvalidArgument     another worker registered a different state, or a tensor's data is null
  //   others              the reason why the membership is over
  virtual absl::StatusOr<bool> RegisterState(absl::Span<const NamedTensor> state,
                                             absl::Duration timeout) = 0;

  // Returns the members of the current step by the newest epoch that this worker has received.
  //
  // Groups of one epoch (GroupSpec::one_epoch): must be called before the step's first push. If the
  // step turns out to have other members, WaitStep returns Aborted.
  virtual absl::StatusOr<StepMembers> BeginStep() = 0;

  // Begins the current step again, with nothing pushed. Call it after WaitStep has returned
  // Aborted: it then waits until the step's new members are known. Or call it after a server has
  // refused a contribution, to make a different one. For parts of the step that had been accepted,
  // the first push counts. FailedPrecondition if neither BeginStep was called nor a contribution
  // was refused.
  virtual absl::Status RestartStep(absl::Duration timeout) = 0;

  // Returns the outcome of the step that WaitStep ended last.
  //
  // Errors:
  //   DeadlineExceeded    this worker has not received the step's epoch yet
  //   FailedPrecondition  no step has ended
  //   InvalidArgument     a server lists a rank that the epoch does not have
  virtual absl::StatusOr<StepOutcome> LastStep(absl::Duration timeout) const = 0;

  // Optimizer on the servers only: sets the initial parameters, in round 0. All members call it
  // with the same root before their first step. The root's `tensors` (in the order of registration)
  // become the parameters on the servers, and every member receives them in its own `tensors`.
  //
  // Under a quorum, a worker that was unreachable in the meantime may receive the parameters of a
  // later step: step() returns the step that it continues with.
  //
  // Errors:
  //   InvalidArgument     the group has no optimizer on the servers, `root` is not a rank, or
  //                       `tensors` does not have one pointer for each tensor
  //   FailedPrecondition  the group has its parameters already
  //   DeadlineExceeded    names the members that have not contributed; the call can be repeated
  virtual absl::Status Broadcast(uint32_t root, absl::Span<void* const> tensors,
                                 absl::Duration timeout) = 0;
  // Does what Broadcast does, and the optimizer also continues from the root's `state`. The root
  // keeps `state` unchanged until this call returns OK or Client::Abandon has returned. The other
  // members' `state` is ignored. InvalidArgument also if the root's `state` does not fit the group.
  virtual absl::Status Restore(uint32_t root, absl::Span<void* const> tensors,
                               const OptimizerState& state, absl::Duration timeout) = 0;

  // Optimizer on the servers only: takes a snapshot of the optimizer's state after the step that
  // WaitStep ended last. Call it before the first push of the next step. Returns when all servers
  // hold the snapshot. `timeout` covers this call and OptimizerSnapshot::Read together.
  //
  // Errors:
  //   FailedPrecondition  no step has ended, or a server does not keep that step any more
  //   InvalidArgument     the group has no optimizer on the servers
  //   ResourceExhausted   a server has 2 snapshots of this job, or 8 of all jobs
  //   others              as listed with OptimizerSnapshot::Read
  virtual absl::StatusOr<std::unique_ptr<OptimizerSnapshot>> SnapshotOptimizer(
      absl::Duration timeout) = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_CLIENT_API_GROUP_H_
