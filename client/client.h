// The library that a trainer links: one worker's membership in a job, its
// training group, and its collectives.
//
//   syncgrads::Client client({.coordinator = "host:7000", .job = "mnist",
//                             .world_size = 4});
//   client.Join(absl::Minutes(1));
//   Group* group = *client.Register({.name = "model", .tensors = specs}, timeout);
//   for each step:
//     for each tensor, as its gradient is ready:
//       group->Push(tensor, gradient, result);
//     group->WaitStep(timeout);
//   group->End(timeout);
//   client.Leave(timeout);
//
// Every call has a deadline and returns a status. A DEADLINE_EXCEEDED says whom
// it waited for. Calls before Join return FAILED_PRECONDITION.

#ifndef SYNCGRADS_CLIENT_CLIENT_H_
#define SYNCGRADS_CLIENT_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/tuned_setting.h"
#include "common/group.h"
#include "common/ids.h"

namespace syncgrads {

namespace client {
class Connections;
class Session;
}  // namespace client

// For ClientOptions::connections.
std::shared_ptr<client::Connections> MakeConnections();

struct ClientOptions {
  // host:port of server 0 of the job. "unix:/path" works too.
  std::string coordinator;
  std::string job;
  // The job's secret; its first worker sets it.
  std::string token;
  // The name to be known by; empty: the coordinator assigns one.
  std::string name;
  // The rank asked for. Members are ranked by this, then by name.
  std::optional<uint32_t> rank;
  // Members that the job starts with.
  uint32_t world_size = 1;
  // With max_workers the job is elastic: workers may join while it runs, up to so
  // many. See Group::RegisterState. All workers of a job agree on these.
  uint32_t max_workers = 0;
  // Of an elastic job: with fewer members no step is closed.
  uint32_t min_workers = 0;
  // Of an elastic job: a worker that has been behind the others' steps for so long
  // is dropped. Zero: never.
  absl::Duration step_timeout;
  // Join fails if no such job is running, and does not begin one.
  bool only_running = false;
  // Data streams to each server, each on a connection of its own.
  int connections_per_server = 2;
  // The TCP congestion control of those; empty: the kernel's default.
  std::string congestion_control;
  // Those of several clients of this process, which then have one set to each server in
  // place of one each. Null: the client's own.
  std::shared_ptr<client::Connections> connections;
  // Whether settings are tried. Before the first step Register tries sizes for the
  // group's chunks, where the spec has none; all workers of the job must have it. In
  // the first steps of the first group, numbers of connections and sizes of the window
  // of what is being sent are tried, each worker for itself, and then the program's own
  // settings. What turns out to be faster stays.
  bool autotune = false;
  std::vector<TunedSetting> tuned_settings;
  // Is told what autotune has found, on the thread that registers, or ends a step.
  std::function<void(const std::string&)> on_tuned;
  // Whether payloads go through shared memory to servers on this host.
  bool shared_memory = true;
  // Whether streams to such a server go over its unix socket, if it has one that can be
  // reached; else over TCP.
  bool unix_socket = true;
  // Is told for each server how payloads go to it, and why: in shared memory, over a unix
  // socket, or over TCP. May be called on any thread; must not call the client.
  std::function<void(const std::string&)> on_path;
  // Is told when a codec of a group loses too much and a milder one is used from then on
  // (GroupSpec::compression). As on_path.
  std::function<void(const std::string&)> on_codec_replaced;
};

// How many members contributed to each element of a tensor. The two differ only
// where a worker died while its contribution was on the way, or where a part of one
// was left out; elements that nobody
// contributed to, in a tensor where somebody contributed to others, become zeros
// (with an optimizer on the servers: stay the parameters that they were).
struct Contributors {
  uint32_t least = 0;
  uint32_t most = 0;
  // A part of what this worker pushed has not been counted: it has a NaN or an
  // infinity, and GroupSpec::non_finite is kSkip.
  bool left_out = false;
};

// A tensor of a tree that is broadcast, or handed over, as a whole. An empty shape is a scalar.
struct NamedTensor {
  TensorSpec spec;
  void* data;
};

// Who takes part in a step. A rank is a position in an epoch's list, and changes
// only between epochs.
struct StepMembers {
  uint64_t epoch = 0;
  uint32_t rank = 0;
  uint32_t world_size = 0;
};

// A step that has ended.
struct StepOutcome {
  uint64_t step = 0;
  // The epoch whose members it was a step of, with their names in rank order.
  uint64_t epoch = 0;
  std::vector<std::string> members;
  // The ranks whose contributions were counted.
  std::vector<uint32_t> contributors;
  // Every one of these was counted in all of its parts. A worker that died in the
  // middle may have been counted in some.
  bool whole = true;
  // If not: the ranks counted in each chunk of the group's layout.
  std::vector<std::vector<uint32_t>> parts;
};

// What an optimizer on the servers keeps of each tensor of its group, in the order of
// registration.
struct OptimizerState {
  struct OfTensor {
    // As many as the optimizer has, each as long as the tensor.
    std::vector<std::vector<std::byte>> slots;
    // How often the tensor has been updated.
    uint64_t updates = 0;
  };
  std::vector<OfTensor> tensors;
};

// The servers' part of the state after a step, which they keep for as long as this
// object lives and has not been read, while further steps are made. Thread-compatible.
class HeldOptimizer {
 public:
  virtual ~HeldOptimizer() = default;

  // To be called once, on any thread. Where a worker's death has left parts of a tensor
  // with different numbers of updates, the largest is taken.
  //
  // Errors:
  //   Unavailable       a server was restarted, or is out of reach: names it
  //   DeadlineExceeded  it took longer than HoldOptimizer was told
  //   DataLoss          a server has sent what does not fit the group
  virtual absl::StatusOr<OptimizerState> Read() = 0;
};

// The training group, or any other registered set of tensors that goes through
// rounds together. A step is one round of every chunk.
//
// A buffer given to Push or Skip belongs to the library until the wait for its
// tensor returns OK, or Client::Abandon has returned. `result` may equal
// `values`.
//
// Thread-safe, except that one step's calls for one tensor come from one thread.
class Group {
 public:
  // In place of a buffer for a result: it stays where it arrives, in memory shared
  // with a server of this host or in what the network delivered, and is not
  // copied (but where the network has cut elements, or not aligned them).
  // InPlaceResult says where that is.
  struct InPlace {};

  virtual ~Group() = default;

  virtual const GroupSpec& spec() const = 0;
  virtual const Layout& layout() const = 0;
  // NotFound for a name that is not registered.
  virtual absl::StatusOr<TensorId> Find(absl::string_view name) const = 0;
  // The step that pushes go to; counts from 1.
  virtual uint64_t step() const = 0;
  // Steps from that one on that have ended without this worker, as far as is known:
  // under a quorum, where it was late. With an average their results are to be applied
  // one after the other; what it would push to them is not counted, so that it had
  // better skip them.
  virtual uint64_t steps_behind() const { return 0; }

  // Sets the weight of this worker in this step's averages, usually its number
  // of samples. Before the step's first push; 1 for steps without it.
  // InvalidArgument unless positive and finite.
  virtual absl::Status SetWeight(double weight) = 0;

  // Of a compressed group: what this worker contributes to this step goes as it is,
  // with all that its contributions have lost before. Where all members' do, so does
  // the result. Nothing is left over then, and codecs begin anew: who goes on from
  // after this step, as from a checkpoint, does so bit-identically. Before the step's
  // first push.
  virtual void SendWhole() {}

  // Contributes `values` to this step and asks for the result, both of the
  // registered dtype and length. A null `result`: it is not wanted. Returns at
  // once. A chunk is sent when all tensors with a span in it have been pushed or
  // skipped.
  //
  // Errors:
  //   InvalidArgument     unknown tensor, or `bytes` is not the tensor's size
  //   FailedPrecondition  the tensor has been pushed or skipped in this step,
  //                       this worker has ended its data, or (optimizer on the
  //                       servers) Broadcast has not been called
  virtual absl::Status Push(TensorId tensor, const void* values, size_t bytes, void* result) = 0;
  virtual absl::Status Push(TensorId tensor, const void* values, size_t bytes, InPlace) = 0;

  // Contributes nothing to this step and asks for the result. If nobody
  // contributes, `result` is not written.
  virtual absl::Status Skip(TensorId tensor, void* result) = 0;
  virtual absl::Status Skip(TensorId tensor, InPlace) = 0;

  // Waits for the tensor's result to be in its buffer.
  //
  // Errors:
  //   FailedPrecondition  it has not been pushed or skipped; or a tensor that
  //                       shares a chunk with it has not been (named): its
  //                       contribution has not been sent
  //   InvalidArgument     what this worker pushed has a NaN or an infinity, and
  //                       GroupSpec::non_finite is kReject; names tensor, worker,
  //                       index and value. The others' round has gone on without it
  //   DeadlineExceeded    says who has not contributed; the wait can be repeated
  //   others              as the server refused the contribution; another wait
  //                       sends it again
  virtual absl::StatusOr<Contributors> Wait(TensorId tensor, absl::Duration timeout) = 0;

  // Waits for every tensor of this step, in registration order, and begins the
  // next step. Errors as Wait; after an error the step has not ended. Under a quorum,
  // with an optimizer on the servers, a worker that was late gets the newest
  // parameters, and the next step is the one after those.
  // OutOfRange, only after End: no member has data left, there is no such step.
  // Aborted, only in a group of one epoch: see BeginStep.
  virtual absl::StatusOr<std::vector<Contributors>> WaitStep(absl::Duration timeout) = 0;

  // Whether every tensor of this step has been answered: WaitStep waits for nothing more.
  virtual bool IsStepAnswered() const = 0;

  // The newest result of a tensor that was pushed or skipped InPlace, after the
  // wait for it has returned OK and until the tensor is pushed or skipped again:
  // its elements in order, in one or more pieces of whole elements that are aligned
  // to their type. Empty if nobody contributed.
  //
  // Errors:
  //   InvalidArgument     unknown tensor
  //   FailedPrecondition  it has no result in place
  virtual absl::StatusOr<std::vector<absl::Span<const std::byte>>> InPlaceResult(
      TensorId tensor) const = 0;

  // No more data on this worker: the others no longer wait for its contributions.
  // Not between a step's first push and its last. Returns when every server
  // knows. Afterwards, to follow the others' updates, call SkipAll and WaitStep
  // until WaitStep returns OutOfRange: all workers then end with equal
  // parameters. The others get at most one step ahead; a worker that does not
  // want their updates leaves.
  virtual absl::Status End(absl::Duration timeout) = 0;

  // Skips every tensor; `results` in registration order.
  virtual absl::Status SkipAll(absl::Span<void* const> results) = 0;

  // Of an elastic job: says what a worker that joins later needs to go on from where
  // the others are, and gets it if this worker is one that joins. Called once, by
  // every worker, before its first step (after Broadcast, if the group has one, and
  // whatever else the workers that began the job do together: a newcomer does none
  // of that). `state` is everything that a step changes: parameters, optimizer
  // slots, counters, the position in the data; it stays where it is and is read
  // only during WaitStep, in which the caller must not change it. All workers
  // register the same names and shapes.
  //
  // False: this worker began the job, and nothing has changed. True: it has joined,
  // `state` is that of the others before the step that step() now says. With an
  // optimizer on the servers, tensors of the group come from there.
  //
  // Errors:
  //   DeadlineExceeded    says what was waited for
  //   FailedPrecondition  it has been called; or as the membership ended
  //   InvalidArgument     another worker registered another state
  virtual absl::StatusOr<bool> RegisterState(absl::Span<const NamedTensor> state,
                                             absl::Duration timeout) = 0;

  // Who takes part in the step that pushes go to, as far as is known now. In a
  // group of one epoch (GroupSpec::one_epoch) it has to be called before the step's
  // first push; if it turns out that the members are others, WaitStep returns
  // Aborted.
  virtual absl::StatusOr<StepMembers> BeginStep() = 0;

  // After WaitStep has returned Aborted, when the step's members are known; or after
  // a server has refused a contribution, for another one: begins the same step
  // again, with nothing pushed. Of what had been accepted the first push counts.
  virtual absl::Status RestartStep(absl::Duration timeout) = 0;

  // The step that WaitStep ended last. DeadlineExceeded if this worker has not heard
  // of its epoch yet.
  virtual absl::StatusOr<StepOutcome> LastStep(absl::Duration timeout) const = 0;

  // Optimizer on the servers: round 0. The root's `tensors` (in registration
  // order) become the parameters on the servers and in everybody's `tensors`. Under a
  // quorum, a worker that was out of reach meanwhile may get those of a later step:
  // step() says which it goes on with.
  virtual absl::Status Broadcast(uint32_t root, absl::Span<void* const> tensors,
                                 absl::Duration timeout) = 0;
  // The same, and the optimizer goes on from the root's `state`, which it must keep
  // until this returns; the others' is not looked at.
  virtual absl::Status Restore(uint32_t root, absl::Span<void* const> tensors,
                               const OptimizerState& state, absl::Duration timeout) = 0;

  // Optimizer on the servers: what it keeps after the step that WaitStep ended last. To
  // be called before anything of the next step is pushed. Returns when all servers
  // hold it. `timeout` is for this and for reading it.
  //
  // Errors:
  //   FailedPrecondition  no step has ended, or a server does not keep it any more
  //   InvalidArgument     the group has no optimizer on the servers
  //   others              as HeldOptimizer::Read
  virtual absl::StatusOr<std::unique_ptr<HeldOptimizer>> HoldOptimizer(absl::Duration timeout) = 0;
};

// A caller's array.
struct ConstArray {
  DType dtype;
  const void* data;
  size_t elements;
};
struct Array {
  DType dtype;
  void* data;
  size_t elements;
  operator ConstArray() const { return {dtype, data, elements}; }
};
template <typename T>
ConstArray ArrayOf(absl::Span<const T> values) {
  return {DTypeOf<T>::value, values.data(), values.size()};
}
template <typename T>
Array MutableArrayOf(absl::Span<T> values) {
  return {DTypeOf<T>::value, values.data(), values.size()};
}

// An operation under way. Its buffers belong to the library until Wait returns
// anything but DeadlineExceeded; if it is destroyed without that, until
// Client::Abandon has returned. Moveable.
class Pending {
 public:
  class Operation;
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();

  // Whether Wait would return at once.
  bool Ready() const;
  // The number of members that contributed. DeadlineExceeded says who is missing,
  // and the wait can be repeated.
  absl::StatusOr<uint32_t> Wait(absl::Duration timeout);

 private:
  friend class Client;
  explicit Pending(std::unique_ptr<Operation> operation);
  std::unique_ptr<Operation> operation_;
};

// One worker's membership in a job. Thread-safe.
class Client {
 public:
  explicit Client(ClientOptions options);
  // Abandons what is under way; the servers will take this worker for dead
  // unless Leave was called.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Connects, with retries and backoff until `timeout`, is admitted, and waits
  // until the job has its world_size members.
  //
  // Errors:
  //   DeadlineExceeded    says what was waited for: the server, or members
  //   AlreadyExists       a live worker has this name or rank
  //   PermissionDenied    another token
  //   FailedPrecondition  another protocol version (both named), another
  //                       world_size than the job's, or this client has joined
  //   ResourceExhausted   the job has its members, or has come to its end
  //   Aborted             only_running: there is no such job
  absl::Status Join(absl::Duration timeout);

  // Tells the servers that this worker takes no further part. FailedPrecondition
  // while a step is under way. Idempotent.
  absl::Status Leave(absl::Duration timeout);

  // Gives up everything under way and returns when no buffer is in use. The
  // client is of no use afterwards.
  void Abandon();

  // Not OK once the membership is over: expelled, or the servers are out of
  // reach for longer than the lease.
  absl::Status status() const;

  // Whether this worker joined an elastic job that was running.
  bool is_newcomer() const;

  // In the newest epoch, after Join; 0, 0 and "" before. In an elastic job they
  // change between steps: Group::BeginStep has those of a step.
  uint32_t rank() const;
  uint32_t world_size() const;
  std::string name() const;
  bool is_master() const { return rank() == 0; }

  // Whether a checkpoint has been asked for (Admin.Checkpoint) since the last call.
  bool TakeCheckpointRequest();
  // Tells the coordinator of a checkpoint that this worker has written after `step`, or
  // why there is none, for its log and its status. Returns at once.
  void ReportCheckpoint(uint64_t step, const absl::StatusOr<std::string>& path);

  // Registers a group, or finds it. The pointer lives as long as the client.
  //
  // Errors:
  //   InvalidArgument  the group cannot be served, or another worker registered
  //                    it differently; the message has both values
  //
  // With autotune it waits for all members, unless the group has a size of chunks.
  absl::StatusOr<Group*> Register(const GroupSpec& spec, absl::Duration timeout);

  // Memory for gradients that servers on this host read where it lies: pushing from
  // it costs no copy. Aligned to a page; zeros at first; lives as long as the
  // client. Other memory is copied once.
  //
  // Errors:
  //   ResourceExhausted  there is not so much memory
  absl::StatusOr<void*> AllocateGradients(size_t bytes);

  // Collectives. All members call them with the same name, dtype, and length;
  // a name can be used again once its operation is complete, and calls with
  // different names can be in any order on different workers.

  // Everybody's `output` becomes the reduction of all `input`s in rank order;
  // returns how many contributed. `output` may be `input`'s memory.
  absl::StatusOr<uint32_t> AllReduce(absl::string_view name, ConstArray input, Array output,
                                     Reduction reduction, absl::Duration timeout);
  absl::StatusOr<Pending> AllReduceAsync(absl::string_view name, ConstArray input, Array output,
                                         Reduction reduction);
  // The same without a contribution: the opt-out. With a count of 0, nobody
  // contributed and `output` is as it was.
  absl::StatusOr<uint32_t> AllReduceSkip(absl::string_view name, Array output, Reduction reduction,
                                         absl::Duration timeout);
  absl::StatusOr<Pending> AllReduceSkipAsync(absl::string_view name, Array output,
                                             Reduction reduction);
  // Any associative function: `fold(accumulated, next)` is applied in rank order
  // to the gathered contributions, on every worker alike; accumulated starts as
  // the first one. Both have `input.elements` elements.
  absl::StatusOr<uint32_t> AllReduceWith(
      absl::string_view name, ConstArray input, Array output,
      const std::function<void(void* accumulated, const void* next)>& fold, absl::Duration timeout);

  // Only the root's `output` is written; the others' may be null.
  absl::StatusOr<uint32_t> Reduce(absl::string_view name, ConstArray input, Array output,
                                  Reduction reduction, uint32_t root, absl::Duration timeout);
  absl::StatusOr<Pending> ReduceAsync(absl::string_view name, ConstArray input, Array output,
                                      Reduction reduction, uint32_t root);

  // Everybody's `values` become the root's.
  absl::Status Broadcast(absl::string_view name, Array values, uint32_t root,
                         absl::Duration timeout);
  absl::StatusOr<Pending> BroadcastAsync(absl::string_view name, Array values, uint32_t root);
  // A whole state at once: parameters, optimizer slots, scalars.
  absl::Status BroadcastAll(absl::string_view name, absl::Span<const NamedTensor> tensors,
                            uint32_t root, absl::Duration timeout);

  // `output` has room for world_size * input.elements; contributions follow each
  // other in rank order, without gaps for those who are gone. Returns how many.
  absl::StatusOr<uint32_t> AllGather(absl::string_view name, ConstArray input, Array output,
                                     absl::Duration timeout);
  absl::StatusOr<Pending> AllGatherAsync(absl::string_view name, ConstArray input, Array output);

  // Returns when every member has called it.
  absl::Status Barrier(absl::string_view name, absl::Duration timeout);
  absl::StatusOr<Pending> BarrierAsync(absl::string_view name);

  // Each rank in turn writes a line "time [rank / world_size] text" to its own
  // `stream` and flushes it.
  absl::Status PrintInOrder(std::ostream& stream, absl::string_view text, absl::Duration timeout);

 private:
  // The group with the size of chunks that trials have shown to be the best.
  absl::StatusOr<GroupSpec> Tune(GroupSpec spec, absl::Duration timeout);

  std::unique_ptr<client::Session> session_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_CLIENT_CLIENT_H_
