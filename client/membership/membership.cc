#include "client/membership/membership.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace syncgrads::client {
namespace {

// How long after its refusal a registration that is worth another attempt is sent again.
constexpr absl::Duration kRegistrationRetry = absl::Seconds(1);
// How long after a change of the figures they are sent, at the latest.
constexpr absl::Duration kFiguresDelay = absl::Seconds(1);

// Checks an epoch that the coordinator has sent: callers divide by the number of its members and
// multiply by its factor.
absl::Status CheckEpoch(const Epoch& epoch) {
  absl::flat_hash_set<uint32_t> ids;
  for (const Member& member : epoch.members) {
    if (ids.insert(ToNumber(member.id)).second) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("member ", ToNumber(member.id), " is listed twice"));
  }
  if (ids.empty()) return absl::InvalidArgumentError("no members");
  return CheckRateFactor(GroupSpec(), epoch.learning_rate.factor);
}

// Checks that a plan is that of the group that this worker registered: the sizes in the plan are
// those of the caller's buffers.
absl::Status CheckPlan(const GroupSpec& registered, const std::shared_ptr<const GroupPlan>& plan) {
  if (plan == nullptr) {
    return absl::InternalError("the coordinator answered a registration without a plan");
  }
  if (plan->spec.name != registered.name) {
    return absl::InvalidArgumentError(
        absl::StrCat("group \"", registered.name,
                     "\" was registered, but the coordinator answered "
                     "with the plan of group \"",
                     plan->spec.name, "\""));
  }
  return CheckAgreement(registered, plan->spec, "whose plan the coordinator has sent");
}

// Returns an error that the coordinator has sent, with the message `absent` if it has none. The
// contract turns an error whose code is OK or not known into Unknown, so the code alone does not
// show that the coordinator sent no reason.
absl::Status WithReason(absl::Status error, absl::string_view absent) {
  if (error.ok()) return absl::UnknownError(absent);
  if (error.message().empty()) return absl::Status(error.code(), absent);
  return error;
}

}  // namespace

// One attempt at a stream. Members that are not constant are guarded by Membership::mutex_.
class Membership::Stream : public ControlStreamEvents,
                           public std::enable_shared_from_this<Membership::Stream> {
 public:
  explicit Stream(std::shared_ptr<Membership> membership) : membership(std::move(membership)) {}

  void OnWritten() override { membership->OnWritten(this); }
  void OnReceived(JobSignal signal) override { membership->OnReceived(this, std::move(signal)); }
  void OnClosed(absl::Status status) override { membership->OnClosed(this, std::move(status)); }

  const std::shared_ptr<Membership> membership;
  std::shared_ptr<ControlStream> control;  // null once closed
  bool writing = false;
  bool welcomed = false;
};

Membership::Membership(Options options, Transport& transport, Timers& timers,
                       MembershipEvents& events)
    : options_(std::move(options)),
      transport_(transport),
      timers_(timers),
      events_(events),
      down_since_(timers.Now()) {}

void Membership::Start() { Connect(); }

void Membership::Connect() {
  auto stream = std::make_shared<Stream>(shared_from_this());
  std::shared_ptr<ControlStream> control = transport_.OpenControl(options_.coordinator, stream);
  Hello hello = options_.hello;
  {
    MutexLock lock(mutex_);
    if (stopped_ || left_ || !over_.ok()) return;  // the stream was not started, and is destroyed
    stream->control = control;
    stream->writing = true;
    stream_ = stream;
    ++open_streams_;
    hello.generation = generation_;
  }
  control->Start();
  control->Write(hello);
}

void Membership::Pump() {
  std::shared_ptr<ControlStream> control;
  std::optional<WorkerSignal> signal;
  {
    MutexLock lock(mutex_);
    if (stream_ == nullptr || stream_->writing || !stream_->welcomed || queue_.empty()) return;
    signal = std::move(queue_.front());
    queue_.pop_front();
    stream_->writing = true;
    control = stream_->control;
  }
  control->Write(*signal);
}

void Membership::OnWritten(Stream* stream) {
  {
    MutexLock lock(mutex_);
    stream->writing = false;
  }
  Pump();
}

void Membership::OnWelcome(Stream* stream, Generation generation, Welcome welcome) {
  bool first = false;
  bool beat = false;
  absl::Duration interval;
  {
    MutexLock lock(mutex_);
    first = !welcome_.has_value();
    generation_ = generation;
    interval = welcome.heartbeat_interval;
    welcome_ = welcome;
    stream->welcomed = true;
    down_since_ = absl::InfiniteFuture();
    trouble_ = absl::OkStatus();
    backoff_.Reset();
    queue_.clear();
    for (const auto& [id, request] : requests_) queue_.push_back(request.signal);
    beat = !beating_ && interval > absl::ZeroDuration();
    beating_ = beating_ || beat;
  }
  if (first) events_.OnWelcome(generation, welcome);
  if (beat) {
    timers_.After(interval, [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->Beat();
    });
  }
  Pump();
}

void Membership::OnReceived(Stream* stream, JobSignal signal) {
  bool known = true;
  Generation joined;
  {
    MutexLock lock(mutex_);
    if (stopped_ || !over_.ok()) return;
    known = welcome_.has_value();
    joined = generation_;
  }
  if (auto* welcome = std::get_if<Welcome>(&signal.kind)) {
    if (known && signal.generation != joined) {
      Over(absl::FailedPreconditionError(absl::StrCat(
          "job \"", options_.hello.job, "\" is in generation ", ToNumber(signal.generation),
          ", but this worker has joined generation ", ToNumber(joined))));
      return;
    }
    OnWelcome(stream, signal.generation, std::move(*welcome));
    return;
  }
  if (auto* begun = std::get_if<EpochBegun>(&signal.kind)) {
    if (!known) return;
    const Epoch& epoch = *begun->epoch;
    if (const absl::Status valid = CheckEpoch(epoch); !valid.ok()) {
      Over(absl::InvalidArgumentError(absl::StrCat("the coordinator at ", options_.coordinator,
                                                   " has sent an invalid epoch ", epoch.number,
                                                   ": ", valid.message())));
      return;
    }
    events_.OnEpoch(epoch);
    MutexLock lock(mutex_);
    has_epoch_ = true;
    changed_.NotifyAll();
  } else if (auto* registered = std::get_if<Registered>(&signal.kind)) {
    AnswerRequest(registered->request, std::move(registered->plan));
  } else if (auto* done = std::get_if<Done>(&signal.kind)) {
    {
      MutexLock lock(mutex_);
      // After its acknowledgement of the leave, the coordinator may close the stream.
      left_ = left_ || (leave_request_ != 0 && done->request == leave_request_);
    }
    AnswerRequest(done->request, nullptr);
  } else if (auto* refused = std::get_if<Refused>(&signal.kind)) {
    OnRefused(refused->request, WithReason(std::move(refused->error), "refused without a reason"));
  } else if (auto* waiting = std::get_if<Waiting>(&signal.kind)) {
    MutexLock lock(mutex_);
    waiting_for_ = std::move(waiting->reason);
    trouble_ = absl::OkStatus();
  } else if (std::holds_alternative<CheckpointRequested>(signal.kind)) {
    events_.OnCheckpointRequested();
  } else if (const auto* asked = std::get_if<TraceRequested>(&signal.kind)) {
    events_.OnTraceRequested(*asked);
  } else if (auto* expelled = std::get_if<Expelled>(&signal.kind)) {
    Over(WithReason(std::move(expelled->reason), "expelled without a reason"));
  }
}

void Membership::OnRefused(uint64_t request, absl::Status error) {
  bool retry = false;
  {
    MutexLock lock(mutex_);
    const auto found = requests_.find(request);
    retry = found != requests_.end() && absl::IsUnavailable(error) &&
            std::holds_alternative<RegisterGroup>(found->second.signal);
    if (retry) waiting_for_ = std::string(error.message());
  }
  if (!retry) return AnswerRequest(request, std::move(error));
  timers_.After(kRegistrationRetry, [weak = weak_from_this(), request] {
    if (auto self = weak.lock()) self->SendAgain(request);
  });
}

void Membership::SendAgain(uint64_t request) {
  {
    MutexLock lock(mutex_);
    const auto found = requests_.find(request);
    // Without a welcomed stream, the next welcome sends it.
    if (found == requests_.end() || stream_ == nullptr || !stream_->welcomed) return;
    queue_.push_back(found->second.signal);
  }
  Pump();
}

void Membership::OnClosed(Stream* stream, absl::Status status) {
  std::shared_ptr<ControlStream> control;
  std::shared_ptr<Stream> self;
  std::optional<absl::Duration> retry;
  absl::Status over;
  {
    MutexLock lock(mutex_);
    self = stream->shared_from_this();
    control = std::move(stream->control);
    if (stream_ == self) stream_ = nullptr;
    if (!stopped_ && !left_ && over_.ok()) {
      const absl::Time now = timers_.Now();
      trouble_ = status.ok() ? absl::UnavailableError("the coordinator closed the stream") : status;
      if (down_since_ == absl::InfiniteFuture()) down_since_ = now;
      const bool too_long = welcome_.has_value() &&
                            now - down_since_ >= std::max(welcome_->lease, options_.server_timeout);
      if (!IsWorthAnotherAttempt(status)) {
        over = status;
      } else if (too_long) {
        over = absl::UnavailableError(absl::StrCat(
            "the coordinator at ", options_.coordinator, " has been unreachable for ",
            absl::FormatDuration(absl::Trunc(now - down_since_, absl::Milliseconds(1))), ": ",
            trouble_.message()));
      } else {
        retry = backoff_.Next();
      }
    }
  }
  if (retry.has_value()) {
    timers_.After(*retry, [weak = weak_from_this()] {
      if (auto membership = weak.lock()) membership->Connect();
    });
  }
  if (!over.ok()) Over(over);
  control = nullptr;
  MutexLock lock(mutex_);
  --open_streams_;
  changed_.NotifyAll();
}

void Membership::Over(absl::Status status) {
  uint64_t leave = 0;
  std::map<uint64_t, Request> requests;
  std::shared_ptr<ControlStream> control;
  {
    MutexLock lock(mutex_);
    if (!over_.ok() || left_) return;
    // A worker that has requested to leave, and that is no member any more, has left. The
    // acknowledgement may have been lost when the coordinator died.
    leave = leave_request_;
    left_ = leave != 0;
    if (!left_) over_ = status;
    requests.swap(requests_);
    if (stream_ != nullptr) control = stream_->control;
    changed_.NotifyAll();
  }
  if (control != nullptr) control->Cancel();
  for (auto& [id, request] : requests) {
    request.answer(leave != 0 && id == leave ? Result(nullptr) : Result(status));
  }
  if (leave == 0) events_.OnOver(status);
}

void Membership::Beat() {
  absl::Duration interval;
  {
    MutexLock lock(mutex_);
    if (stopped_ || left_ || !over_.ok()) return;
    interval = welcome_->heartbeat_interval;
  }
  SendHeartbeat();
  timers_.After(interval, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->Beat();
  });
}

void Membership::SendHeartbeat() {
  {
    MutexLock lock(mutex_);
    if (stopped_ || left_ || !over_.ok()) return;
    if (stream_ == nullptr || !stream_->welcomed) return;
  }
  std::vector<GroupRound> progress = events_.Progress();
  {
    MutexLock lock(mutex_);
    Heartbeat heartbeat{std::move(progress), figures_};
    // Replaces a heartbeat that is still queued.
    if (!queue_.empty() && std::holds_alternative<Heartbeat>(queue_.back())) queue_.pop_back();
    queue_.push_back(std::move(heartbeat));
  }
  Pump();
}

void Membership::ReportFigures(TrainingFigures figures) {
  {
    MutexLock lock(mutex_);
    if (stopped_ || left_ || !over_.ok()) return;
    figures_ = std::move(figures);
    if (figures_due_ || !welcome_.has_value()) return;
    if (welcome_->heartbeat_interval <= kFiguresDelay) return;
    figures_due_ = true;
  }
  timers_.After(kFiguresDelay, [weak = weak_from_this()] {
    auto self = weak.lock();
    if (self == nullptr) return;
    {
      MutexLock lock(self->mutex_);
      self->figures_due_ = false;
    }
    self->SendHeartbeat();
  });
}

void Membership::Report(CheckpointReport report) {
  {
    MutexLock lock(mutex_);
    if (stopped_ || left_ || !over_.ok() || stream_ == nullptr || !stream_->welcomed) return;
    queue_.push_back(std::move(report));
  }
  Pump();
}

uint64_t Membership::NextRequest() {
  MutexLock lock(mutex_);
  return next_request_++;
}

void Membership::Ask(uint64_t request, WorkerSignal signal, const Answer& answer) {
  absl::Status over;
  {
    MutexLock lock(mutex_);
    over = over_;
    if (over.ok() && (stopped_ || left_)) {
      over = absl::FailedPreconditionError("this client has left the job");
    }
    if (over.ok()) {
      // Before the welcome, the request is only in `requests_`; OnWelcome sends it.
      if (stream_ != nullptr && stream_->welcomed) queue_.push_back(signal);
      requests_[request] = {std::move(signal), answer};
    }
  }
  if (!over.ok()) {
    answer(over);
    return;
  }
  Pump();
}

void Membership::AnswerRequest(uint64_t request, Result result) {
  Answer answer;
  {
    MutexLock lock(mutex_);
    auto found = requests_.find(request);
    if (found == requests_.end()) return;
    answer = std::move(found->second.answer);
    requests_.erase(found);
    waiting_for_.clear();
  }
  answer(std::move(result));
}

void Membership::Register(const GroupSpec& spec, double link_rate, RegisterAnswer answer) {
  const uint64_t request = NextRequest();
  Ask(request, RegisterGroup{request, spec, link_rate},
      [spec, answer = std::move(answer)](Result result) {
        absl::Status status = result.status();
        if (status.ok()) status = CheckPlan(spec, *result);
        if (status.ok()) {
          answer(*std::move(result));
        } else {
          answer(std::move(status));
        }
      });
}

absl::Status Membership::AskAndWait(uint64_t request, WorkerSignal signal, absl::Time deadline,
                                    absl::string_view what) {
  struct Reply {
    Mutex mutex;
    CondVar arrived;
    std::optional<absl::Status> status ABSL_GUARDED_BY(mutex);
  };
  auto reply = std::make_shared<Reply>();
  Ask(request, std::move(signal), [reply](Result result) {
    MutexLock lock(reply->mutex);
    reply->status = result.status();
    reply->arrived.NotifyAll();
  });
  MutexLock lock(reply->mutex);
  while (!reply->status.has_value()) {
    if (!reply->arrived.WaitUntil(reply->mutex, deadline)) break;
  }
  if (reply->status.has_value()) return *reply->status;
  return absl::DeadlineExceededError(
      absl::StrCat("the coordinator at ", options_.coordinator, " has not answered ", what));
}

absl::Status Membership::End(GroupId group, Round last_round, absl::Time deadline) {
  const uint64_t request = NextRequest();
  return AskAndWait(request, EndGroup{request, group, last_round}, deadline, "the end of the data");
}

absl::Status Membership::Ready(GroupId group, absl::Time deadline) {
  const uint64_t request = NextRequest();
  return AskAndWait(request, syncgrads::Ready{request, group}, deadline, "that it is ready");
}

absl::Status Membership::SetLearningRate(double factor, absl::Time deadline) {
  const uint64_t request = NextRequest();
  return AskAndWait(request, syncgrads::SetLearningRate{request, factor}, deadline,
                    "the learning rate factor");
}

absl::Status Membership::Leave(std::vector<GroupRound> last_rounds, absl::Time deadline) {
  const uint64_t request = NextRequest();
  {
    MutexLock lock(mutex_);
    if (left_) return absl::OkStatus();
    leave_request_ = request;
  }
  return AskAndWait(request, syncgrads::Leave{request, std::move(last_rounds)}, deadline,
                    "the leave");
}

absl::Status Membership::AwaitEpoch(absl::Time deadline) {
  MutexLock lock(mutex_);
  while (over_.ok() && !has_epoch_) {
    if (stopped_) return stopped_for_;
    if (changed_.WaitUntil(mutex_, deadline)) continue;
    if (!over_.ok() || has_epoch_ || stopped_) continue;
    if (!welcome_.has_value()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the coordinator at ", options_.coordinator, " has not admitted this worker: ",
          !trouble_.ok()          ? trouble_.message()
          : !waiting_for_.empty() ? absl::string_view(waiting_for_)
                                  : "no answer"));
    }
    return absl::DeadlineExceededError(absl::StrCat(
        "admitted as \"", welcome_->name, "\" to job \"", options_.hello.job,
        "\", but not yet part of an epoch: ",
        waiting_for_.empty() ? "the coordinator has not reported the reason" : waiting_for_));
  }
  return over_;
}

std::string Membership::waiting_for() const {
  MutexLock lock(mutex_);
  return waiting_for_;
}

absl::Status Membership::status() const {
  MutexLock lock(mutex_);
  return over_;
}

void Membership::Stop(const absl::Status& why) {
  std::map<uint64_t, Request> requests;
  std::shared_ptr<ControlStream> control;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    stopped_for_ = why;
    changed_.NotifyAll();
    requests.swap(requests_);
    if (stream_ != nullptr) control = stream_->control;
  }
  if (control != nullptr) control->Cancel();
  for (auto& [id, request] : requests) request.answer(why);
}

void Membership::AwaitStopped() {
  MutexLock lock(mutex_);
  while (open_streams_ > 0) changed_.WaitUntil(mutex_, absl::InfiniteFuture());
}

}  // namespace syncgrads::client
