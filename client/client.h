// The client library: one worker's membership in a job, its training group, and its collectives.
// This is the header that a trainer includes.
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
// Every call that waits has a deadline and returns a status; only Client::Abandon and the
// destructor wait without a deadline. The message of a DEADLINE_EXCEEDED names the workers or the
// server that the call waited for. Calls before Join return FAILED_PRECONDITION.

#ifndef SYNCGRADS_CLIENT_CLIENT_H_
#define SYNCGRADS_CLIENT_CLIENT_H_

#include <cstddef>
#include <cstdint>
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
#include "client/api/arrays.h"
#include "client/api/client_options.h"
#include "client/api/group.h"
#include "client/api/pending.h"
#include "common/group/group.h"
#include "common/ids.h"
#include "common/signals/figures.h"
#include "common/tls/tls_options.h"

namespace syncgrads {

namespace client {
class Collectives;
class Connections;
class Session;
}  // namespace client

// Returns a value for ClientOptions::connections. `tls` and `token` are used in place of those in
// ClientOptions.
std::shared_ptr<client::Connections> MakeConnections(const TlsOptions& tls = TlsOptions(),
                                                     const std::string& token = "");

// One worker's membership in a job. Thread-safe.
class Client {
 public:
  explicit Client(ClientOptions options);
  // Abandons everything in progress. Unless Leave has returned OK, the coordinator drops this
  // worker as a dead one when its grace or lease has ended.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Connects, with retries and backoff; is admitted; and waits until the job has its `world_size`
  // members. Can be repeated after DeadlineExceeded.
  //
  // Errors:
  //   DeadlineExceeded    `timeout` has passed; the message names the server that did not answer,
  //                       or the members that are missing
  //   AlreadyExists       a live worker has this name or rank
  //   PermissionDenied    the token is not the job's, or this process may not use the congestion
  //                       control of the options
  //   FailedPrecondition  the protocol version is another one (the message has both), this worker's
  //                       world_size or elastic options differ from the job's, or this client has
  //                       joined before
  //   ResourceExhausted   the job has all its members, or has reached the end of its data
  //   Aborted             only_running: no such job is running; or this worker was evicted
  //   InvalidArgument     the coordinator's address is malformed, a name in the options is too long
  //                       or not printable, or the kernel does not have the congestion control of
  //                       the options; and see CheckTls, which also returns NotFound and
  //                       PermissionDenied
  absl::Status Join(absl::Duration timeout);

  // Leaves the job: the servers no longer wait for this worker. FailedPrecondition while a step is
  // in progress. Idempotent.
  absl::Status Leave(absl::Duration timeout);

  // Aborts everything in progress and returns when no buffer is in use any more. The client
  // cannot be used afterwards.
  void Abandon();

  // Not OK once the membership is over: this worker was dropped, or a server has been unreachable
  // for longer than ClientOptions::server_timeout.
  absl::Status status() const;

  // True if this worker joined an elastic job that was already running.
  bool is_newcomer() const;

  // This worker's rank, the world size, and this worker's name, in the newest epoch. Before Join
  // they are 0, 0 and "". In an elastic job they change between steps: Group::BeginStep returns
  // those of the current step.
  uint32_t rank() const;
  uint32_t world_size() const;
  std::string name() const;
  bool is_master() const { return rank() == 0; }
  // This worker's number among those on its host, for example to choose a device:
  // ClientOptions::local_rank, or if that is not set, rank().
  uint32_t local_rank() const { return local_rank_.value_or(rank()); }

  // True if a checkpoint has been requested (Admin.Checkpoint) since the last call.
  bool TakeCheckpointRequest();
  // Reports to the coordinator, for its log and its status, the checkpoint that this worker has
  // written after `step`, or why there is none. Does not wait. The report is lost if the stream is
  // broken.
  void ReportCheckpoint(uint64_t step, const absl::StatusOr<std::string>& path);
  // Reports to the coordinator, for its status and the live page, what this worker has to show of
  // its training. Only stores the figures: they replace the earlier ones, and are sent with the
  // next heartbeat, or within a second. Cheap enough for a call after each step.
  //
  // Errors:
  //   InvalidArgument  those of CheckFigures; nothing is replaced
  absl::Status ReportFigures(TrainingFigures figures);

  // Sets the factor by which the learning rates of the job are multiplied (psctl set
  // learning-rate-factor): those of optimizers on the servers, and those of the workers in groups
  // with GroupSpec::members_scale_rate. Returns when every server uses it: steps to which no worker
  // has contributed by then have this factor. One worker calls it, for all.
  //
  // Errors:
  //   InvalidArgument     the factor is not from 1e-6 to 1e6, or a learning rate would be too large
  //   FailedPrecondition  no group of the job has a learning rate, or the data of the job has ended
  //   Aborted             another call of this worker has set a factor meanwhile
  //   DeadlineExceeded    a server has not answered; the call can be repeated
  absl::Status SetLearningRateFactor(double factor, absl::Duration timeout);

  // Registers a group. If this client has registered it before, returns the same group. The pointer
  // is valid as long as the client. With autotune, and if `spec` has no chunk size, the call waits
  // for all members.
  //
  // Errors:
  //   InvalidArgument    the group cannot be served, or another worker registered it differently;
  //                      the message has both values
  //   ResourceExhausted  the job has too many groups or chunks, or a server lacks the memory
  //   DeadlineExceeded   the coordinator has not answered; the call can be repeated
  absl::StatusOr<Group*> Register(const GroupSpec& spec, absl::Duration timeout);

  // Allocates memory for gradients that servers on this host read in place: pushing from it costs
  // no copy. Other memory is copied once. The memory is aligned to a page, filled with zeros, and
  // valid as long as the client.
  //
  // Errors:
  //   ResourceExhausted  there is not enough memory
  absl::StatusOr<void*> AllocateGradients(size_t bytes);

  // Collectives. All members call them with the same name, dtype, and length. Calls with different
  // names can be in any order on different workers. A name can be used again when its operation is
  // complete.
  //
  // Each operation and name is a group of the job, on this worker and on the servers, until the job
  // is closed. A job has at most 1,024 groups (ps-server --max_groups); a further name is refused
  // with ResourceExhausted. A loop therefore uses one name ("loss") in every step, not a name for
  // each step ("loss/17"). The name with its operation as a prefix ("all_reduce/sum/") has at most
  // 255 bytes of printable UTF-8.
  //
  // If a call that waits returns DeadlineExceeded, the operation continues, and its buffers belong
  // to the library until Client::Abandon has returned. Use an Async variant to be able to wait
  // again.

  // Every member's `output` becomes the reduction of all members' `input`, in rank order. Returns
  // how many members contributed. `output` may be the same memory as `input`.
  absl::StatusOr<uint32_t> AllReduce(absl::string_view name, ConstArray input, Array output,
                                     Reduction reduction, absl::Duration timeout);
  absl::StatusOr<Pending> AllReduceAsync(absl::string_view name, ConstArray input, Array output,
                                         Reduction reduction);
  // Takes part in an AllReduce without a contribution and receives the result. Returns how many
  // members contributed; if that is 0, `output` is not written.
  absl::StatusOr<uint32_t> AllReduceSkip(absl::string_view name, Array output, Reduction reduction,
                                         absl::Duration timeout);
  absl::StatusOr<Pending> AllReduceSkipAsync(absl::string_view name, Array output,
                                             Reduction reduction);
  // All-reduces with any associative function. The contributions are gathered on every worker, and
  // `fold(accumulated, next)` is applied to them in rank order; `accumulated` starts as the first
  // contribution. Both point to `output.elements` elements. `fold` is called by the thread that
  // waits.
  absl::StatusOr<uint32_t> AllReduceWith(absl::string_view name, ConstArray input, Array output,
                                         Fold fold, absl::Duration timeout);
  absl::StatusOr<Pending> AllReduceWithAsync(absl::string_view name, ConstArray input, Array output,
                                             Fold fold);
  // Takes part in an AllReduceWith without a contribution, as AllReduceSkip in an AllReduce.
  absl::StatusOr<uint32_t> AllReduceWithSkip(absl::string_view name, Array output, Fold fold,
                                             absl::Duration timeout);
  absl::StatusOr<Pending> AllReduceWithSkipAsync(absl::string_view name, Array output, Fold fold);

  // Reduces to the root: only the root's `output` is written; other members may pass a null one.
  absl::StatusOr<uint32_t> Reduce(absl::string_view name, ConstArray input, Array output,
                                  Reduction reduction, uint32_t root, absl::Duration timeout);
  absl::StatusOr<Pending> ReduceAsync(absl::string_view name, ConstArray input, Array output,
                                      Reduction reduction, uint32_t root);

  // Copies the root's `values` to every member's `values`.
  absl::Status Broadcast(absl::string_view name, Array values, uint32_t root,
                         absl::Duration timeout);
  absl::StatusOr<Pending> BroadcastAsync(absl::string_view name, Array values, uint32_t root);
  // Broadcasts several tensors in one operation, such as parameters, optimizer slots, and scalars.
  absl::Status BroadcastAll(absl::string_view name, absl::Span<const NamedTensor> tensors,
                            uint32_t root, absl::Duration timeout);
  absl::StatusOr<Pending> BroadcastAllAsync(absl::string_view name,
                                            absl::Span<const NamedTensor> tensors, uint32_t root);

  // Writes all contributions to `output`, in rank order and without gaps for members that are gone.
  // `output` has room for world_size * input.elements elements. Returns the number of
  // contributions.
  absl::StatusOr<uint32_t> AllGather(absl::string_view name, ConstArray input, Array output,
                                     absl::Duration timeout);
  absl::StatusOr<Pending> AllGatherAsync(absl::string_view name, ConstArray input, Array output);

  // Returns when every member has called it.
  absl::Status Barrier(absl::string_view name, absl::Duration timeout);
  absl::StatusOr<Pending> BarrierAsync(absl::string_view name);

  // Each rank in turn writes a line "time [rank / world_size] text" to its own `stream` and flushes
  // it.
  absl::Status PrintInOrder(std::ostream& stream, absl::string_view text, absl::Duration timeout);

 private:
  // Tries chunk sizes together with all members and returns `spec` with the fastest one.
  absl::StatusOr<GroupSpec> Tune(GroupSpec spec, absl::Duration timeout);

  const std::optional<uint32_t> local_rank_;
  // Destroyed after the session, whose threads may still be completing its operations.
  std::unique_ptr<client::Collectives> collectives_;
  std::unique_ptr<client::Session> session_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_CLIENT_CLIENT_H_
