// Sends a donor's state to newcomers. The state has a group of its own, beside the group that it
// belongs to. A round of this group closes with the first contribution, which is the donor's, and
// the members that skip it receive it as the result.
//
// The epoch (Handover) names the donor, the newcomers, and the round. The donor sends its state
// while its caller waits for the result of the newcomers' first step. During that wait the state is
// the one before that step: the step does not close without the newcomers.

#ifndef SYNCGRADS_CLIENT_SESSION_STATE_HANDOVER_H_
#define SYNCGRADS_CLIENT_SESSION_STATE_HANDOVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/api/group.h"
#include "client/link/timers.h"
#include "client/rounds/group_rounds.h"
#include "common/group/group.h"
#include "common/mutex.h"
#include "common/signals/membership.h"

namespace syncgrads::client {

class Session;

// Returns the group that carries the state of group `of`: the caller's tensors, and the number of
// the first step after that state.
GroupSpec StateSpec(const GroupSpec& of, absl::Span<const NamedTensor> state);

// Always owned by a shared_ptr. The group calls Open, Close and Take on its caller's thread.
// Session calls OnEpoch, usually on a thread of the transport; the retries come on the timers'
// thread. Neither may wait for a caller's thread, because the transport needs both to release
// buffers. Thread-safe. No other object is called while `mutex_` is held.
class StateHandover : public std::enable_shared_from_this<StateHandover> {
 public:
  // `rounds` are the rounds of the group StateSpec(of, state). `timers` and the memory of `state`
  // must outlive this object.
  StateHandover(GroupId of, std::shared_ptr<GroupRounds> rounds,
                absl::Span<const NamedTensor> state, MemberId self, Timers& timers);

  // Called with each new epoch, which may request the state from this worker.
  void OnEpoch(const Epoch& epoch);

  // From now on, until Close, the state is the one before the result of `step` and may be sent.
  void Open(Round step);
  // Ends what Open has begun. Returns when the state's memory is not read any more.
  //
  // Errors:
  //   DeadlineExceeded  the state is still being sent; the call can be repeated
  absl::Status Close(absl::Time deadline);

  // Newcomers only: fills the state with the donor's state before `step`. If a donor dies,
  // continues with the donor that the next epoch names.
  //
  // Errors:
  //   DeadlineExceeded    the message names what the call waited for
  //   FailedPrecondition  the epoch does not list this worker as a newcomer
  //   others              the reason why the membership is over
  absl::Status Take(Round step, absl::Time deadline, Session& session);

 private:
  // The round in which the state is sent, and the epoch that requests it. A newer epoch may request
  // the same round.
  struct Request {
    Round round{};
    uint64_t epoch = 0;
    friend bool operator==(const Request&, const Request&) = default;
  };
  // One attempt to fulfill a request.
  struct Attempt {
    Request request;
    Round step{};        // the state is the one before this step
    bool first = false;  // no earlier request has been fulfilled since Open, or Close gave it up
  };

  // Sends the state if the newest epoch requests it from this worker and it is open. Never waits:
  // if another thread is sending, that thread finds the newest request when it has finished.
  void Give();
  // Returns what has to be sent now, and sets `giving_`; nullopt if nothing has to be sent, or
  // another thread is sending.
  std::optional<Attempt> BeginGiving();
  // Clears `giving_`. `sent` is true if the request has been fulfilled.
  void EndGiving(const Attempt& attempt, bool sent);
  // DeadlineExceeded if an earlier round of the handover, which a newer epoch has replaced, still
  // uses its buffers.
  absl::Status Send(const Attempt& attempt);
  // Calls Give after a delay, when an earlier round of the handover may have released its buffers.
  void GiveLater();

  const GroupId of_;
  const std::shared_ptr<GroupRounds> rounds_;
  const MemberId self_;
  Timers& timers_;
  std::vector<absl::Span<std::byte>> tensors_;
  // Sent with the tensors. Used only by the thread that set `giving_`, and by Take.
  int64_t step_ = 0;

  Mutex mutex_;
  CondVar changed_;
  std::optional<Round> open_at_ ABSL_GUARDED_BY(mutex_);
  Epoch epoch_ ABSL_GUARDED_BY(mutex_);
  // The request that was fulfilled last. The state's memory may be read until Close returns OK.
  std::optional<Request> given_ ABSL_GUARDED_BY(mutex_);
  // A Close that returned an error gave up what was sent for `given_`.
  bool is_given_up_ ABSL_GUARDED_BY(mutex_) = false;
  // True while a thread is sending. Close waits until it is false.
  bool giving_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_SESSION_STATE_HANDOVER_H_
