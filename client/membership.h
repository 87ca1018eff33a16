// One worker's membership in a job, on the control plane.
//
//   joining ──Welcome──▶ admitted ──Epoch──▶ member ──Leave, Done──▶ left
//      │                    │                  │
//      └──── refused, expelled, out of reach for a lease ──▶ over
//
// When the stream breaks, the same Hello goes out on a new one, with the
// generation that was joined, and requests without an answer behind it; so the
// worker goes on as the same member, until its lease has ended.

#ifndef SYNCGRADS_CLIENT_MEMBERSHIP_H_
#define SYNCGRADS_CLIENT_MEMBERSHIP_H_

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
#include "client/backoff.h"
#include "client/signals.h"
#include "client/timers.h"
#include "client/transport.h"
#include "common/mutex.h"

namespace syncgrads::client {

// Hears of what the coordinator says, in that order. Called without locks.
class MembershipEvents {
 public:
  virtual ~MembershipEvents() = default;
  // Before the first epoch.
  virtual void OnWelcome(Generation generation, const Welcome& welcome) = 0;
  virtual void OnEpoch(const Epoch& epoch) = 0;
  // The membership is over; not after Leave. The last call but for events that
  // are already on their way.
  virtual void OnOver(const absl::Status& status) = 0;
  // Somebody has asked for a checkpoint.
  virtual void OnCheckpointAsked() {}
  // For a heartbeat.
  virtual std::vector<GroupRound> Progress() = 0;
};

// Always in a shared_ptr. Thread-safe.
class Membership : public std::enable_shared_from_this<Membership> {
 public:
  struct Options {
    std::string coordinator;
    // Its generation is ignored.
    Hello hello;
  };

  // All must outlive AwaitStopped.
  Membership(Options options, Transport& transport, Timers& timers, MembershipEvents& events);

  // Connects and says hello.
  void Start();

  // Waits for the first epoch.
  //
  // Errors:
  //   DeadlineExceeded  says what was waited for; the wait can be repeated
  //   others            as the coordinator refused the hello, or as Stop was told
  absl::Status AwaitEpoch(absl::Time deadline);

  // Asks for a group. `answer` is called once, without locks, on any thread, and
  // before any later event: the plan, or the refusal, or why the membership is
  // over.
  using RegisterAnswer = std::function<void(absl::StatusOr<GroupPlan>)>;
  // `link_rate` as RegisterGroup's.
  void Register(GroupSpec spec, double link_rate, RegisterAnswer answer);

  // Errors: DeadlineExceeded (the request goes on); others as refused, or why the
  // membership is over.
  absl::Status End(GroupId group, Round last_round, absl::Time deadline);
  absl::Status Ready(GroupId group, absl::Time deadline);
  // Is not answered; lost where the stream is broken.
  void Report(CheckpointReport report);
  // Repeated, it waits for the same answer.
  absl::Status Leave(std::vector<GroupRound> last_rounds, absl::Time deadline);

  // OK while joining and while a member.
  absl::Status status() const;

  // Closes the stream. Requests are answered with `why`, and so is who waits for the
  // first epoch.
  void Stop(const absl::Status& why);
  // After Stop: waits until no event will come.
  void AwaitStopped();

 private:
  class Stream;
  // The plan, if it was a group that was asked for.
  using Result = absl::StatusOr<std::optional<GroupPlan>>;
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
  void Ask(uint64_t request, WorkerSignal signal, Answer answer);
  void AnswerRequest(uint64_t request, Result result);
  uint64_t NextRequest();
  absl::Status AskAndWait(uint64_t request, WorkerSignal signal, absl::Time deadline,
                          absl::string_view what);
  void Beat();
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
  std::deque<WorkerSignal> queue_ ABSL_GUARDED_BY(mutex_);  // behind the hello
  std::map<uint64_t, Request> requests_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_request_ ABSL_GUARDED_BY(mutex_) = 1;
  Generation generation_ ABSL_GUARDED_BY(mutex_){};
  std::optional<Welcome> welcome_ ABSL_GUARDED_BY(mutex_);
  bool has_epoch_ ABSL_GUARDED_BY(mutex_) = false;
  bool beating_ ABSL_GUARDED_BY(mutex_) = false;
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

#endif  // SYNCGRADS_CLIENT_MEMBERSHIP_H_
