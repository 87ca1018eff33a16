// One worker's membership in a job, on the control plane.
//
//   joining ──Welcome──▶ admitted ──Epoch──▶ member ──Leave, Done──▶ left
//      │                    │                  │
//      └──── refused, expelled, unreachable for too long ──▶ over
//
// When the stream breaks, a new one is opened with backoff. The same Hello is sent on it, with the
// generation that was joined, followed by all requests that have not been answered. The worker thus
// continues as the same member, unless the coordinator has dropped it in the meantime. After the
// first Welcome, the membership is over when the coordinator has been unreachable for its lease,
// or for Options::server_timeout if that is longer.

#ifndef SYNCGRADS_CLIENT_MEMBERSHIP_MEMBERSHIP_H_
#define SYNCGRADS_CLIENT_MEMBERSHIP_MEMBERSHIP_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/link/backoff.h"
#include "client/link/timers.h"
#include "client/link/transport.h"
#include "common/group/group.h"
#include "common/mutex.h"
#include "common/signals/signals.h"

namespace syncgrads::client {

// Receives the coordinator's signals, in order. Implemented by Session. Called without locks, on
// threads of the transport and of the timers.
class MembershipEvents {
 public:
  virtual ~MembershipEvents() = default;
  // Called once, before the first epoch.
  virtual void OnWelcome(Generation generation, const Welcome& welcome) = 0;
  // The epoch has members, each of them once. The membership is over if the coordinator sends one
  // that has not.
  virtual void OnEpoch(const Epoch& epoch) = 0;
  // The membership is over. Not called after Leave. Only events that were in progress may follow.
  virtual void OnOver(const absl::Status& status) = 0;
  // An operator has requested a checkpoint.
  virtual void OnCheckpointRequested() {}
  // The coordinator has requested a recording.
  virtual void OnTraceRequested(const TraceRequested&) {}
  // Returns the progress to report in the next heartbeat.
  virtual std::vector<GroupRound> Progress() = 0;
};

// Always owned by a shared_ptr. Thread-safe.
class Membership : public std::enable_shared_from_this<Membership> {
 public:
  struct Options {
    std::string coordinator;
    // Sent on every new stream. Its generation is ignored.
    Hello hello;
    // How long the coordinator may be unreachable, if this is longer than the lease.
    absl::Duration server_timeout;
  };

  // `transport`, `timers` and `events` must be valid until AwaitStopped has returned.
  Membership(Options options, Transport& transport, Timers& timers, MembershipEvents& events);

  // Opens the stream and sends the hello. Call it once.
  void Start();

  // Waits for the first epoch.
  //
  // Errors:
  //   DeadlineExceeded  the message names what the call waited for; the wait can be repeated
  //   others            the coordinator's refusal of the hello, or the status given to Stop
  absl::Status AwaitEpoch(absl::Time deadline);

  // Requests the registration of a group. `answer` is called once, without locks, on any thread,
  // before any later event. It receives the plan, the refusal, or the reason why the membership is
  // over; or InvalidArgument if the coordinator has sent the plan of another group. A registration
  // that is refused as Unavailable is sent again every second: a server lacks something that it
  // will have again, for example file descriptors.
  using RegisterAnswer = std::function<void(absl::StatusOr<std::shared_ptr<const GroupPlan>>)>;
  // `link_rate` is RegisterGroup::link_rate.
  void Register(const GroupSpec& spec, double link_rate, RegisterAnswer answer);

  // End, Ready and SetLearningRate send a request and wait for its acknowledgement.
  //
  // Errors:
  //   DeadlineExceeded  not acknowledged yet; the request is still retried
  //   others            the coordinator's refusal, or the reason why the membership is over
  absl::Status End(GroupId group, Round last_round, absl::Time deadline);
  absl::Status Ready(GroupId group, absl::Time deadline);
  absl::Status SetLearningRate(double factor, absl::Time deadline);
  // Sends a report. It is not acknowledged, and it is lost if the stream is broken.
  void Report(CheckpointReport report);
  // Stores the figures that this and all later heartbeats have. If heartbeats are rarer than one a
  // second, a further one is sent a second after the first figures that no heartbeat had.
  void ReportFigures(TrainingFigures figures);
  // Leaves the job, and waits for the acknowledgement. It can be repeated after DeadlineExceeded:
  // that sends another request. Returns OK if this worker has left.
  absl::Status Leave(std::vector<GroupRound> last_rounds, absl::Time deadline);

  // What the coordinator waits for before it answers, as last reported; empty if not reported.
  std::string waiting_for() const;

  // OK while joining and while a member; else the reason why the membership is over.
  absl::Status status() const;

  // Closes the stream. Open requests are answered with `why`, and AwaitEpoch returns `why`.
  void Stop(const absl::Status& why);
  // After Stop: waits until the streams are closed, so that no further event comes.
  void AwaitStopped();

 private:
  class Stream;
  // The plan, if the request was a registration; otherwise null.
  using Result = absl::StatusOr<std::shared_ptr<const GroupPlan>>;
  using Answer = std::function<void(Result)>;
  struct Request {
    WorkerSignal signal;
    Answer answer;
  };

  void Connect();
  void Pump();
  void OnWritten(Stream* stream);
  void OnReceived(Stream* stream, JobSignal signal);
  void OnClosed(Stream* stream, absl::Status status);
  void OnWelcome(Stream* stream, Generation generation, Welcome welcome);
  void Ask(uint64_t request, WorkerSignal signal, const Answer& answer);
  void AnswerRequest(uint64_t request, Result result);
  void OnRefused(uint64_t request, absl::Status error);
  void SendAgain(uint64_t request);
  uint64_t NextRequest();
  absl::Status AskAndWait(uint64_t request, WorkerSignal signal, absl::Time deadline,
                          absl::string_view what);
  void Beat();
  // Queues a heartbeat if there is a stream.
  void SendHeartbeat();
  void Over(absl::Status status);

  const Options options_;
  Transport& transport_;
  Timers& timers_;
  MembershipEvents& events_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  int open_streams_ ABSL_GUARDED_BY(mutex_) = 0;
  Backoff backoff_ ABSL_GUARDED_BY(mutex_);
  std::deque<WorkerSignal> queue_ ABSL_GUARDED_BY(mutex_);  // sent after the welcome
  std::map<uint64_t, Request> requests_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_request_ ABSL_GUARDED_BY(mutex_) = 1;
  Generation generation_ ABSL_GUARDED_BY(mutex_){};
  std::optional<Welcome> welcome_ ABSL_GUARDED_BY(mutex_);
  bool has_epoch_ ABSL_GUARDED_BY(mutex_) = false;
  bool beating_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<TrainingFigures> figures_ ABSL_GUARDED_BY(mutex_);
  // A call of SendHeartbeat because of new figures is under way.
  bool figures_due_ ABSL_GUARDED_BY(mutex_) = false;
  std::string waiting_for_ ABSL_GUARDED_BY(mutex_);
  absl::Status trouble_ ABSL_GUARDED_BY(mutex_);
  absl::Time down_since_ ABSL_GUARDED_BY(mutex_);
  uint64_t leave_request_ ABSL_GUARDED_BY(mutex_) = 0;
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status stopped_for_ ABSL_GUARDED_BY(mutex_);
  absl::Status over_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_MEMBERSHIP_MEMBERSHIP_H_
