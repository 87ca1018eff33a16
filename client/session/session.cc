#include "client/session/session.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/session/registered_group.h"
#include "client/session/state_handover.h"
#include "common/group/group.h"
#include "common/names.h"
#include "common/net/congestion_control.h"
#include "common/shm/host.h"
#include "common/status_macros.h"
#include "common/tls/tls_options.h"

namespace syncgrads::client {
namespace {

// How long a call waits until memory is shared with the servers on this host. After that, payloads
// go over the streams until it is.
constexpr absl::Duration kSharingTimeout = absl::Seconds(1);

std::string HostAndProcess() {
  char host[256] = "";
  if (gethostname(host, sizeof(host) - 1) != 0) return "";
  return absl::StrCat(host, ":", getpid());
}

Hello HelloOf(const ClientOptions& options, Incarnation incarnation,
              const std::string& member_secret) {
  Hello hello;
  hello.job = options.job;
  hello.token = options.token;
  hello.name = options.name;
  hello.incarnation = incarnation;
  hello.member_secret = member_secret;
  hello.rank = options.rank;
  hello.world_size = options.world_size;
  hello.host = HostAndProcess();
  hello.max_workers = options.max_workers;
  hello.min_workers = options.min_workers;
  hello.step_timeout = options.step_timeout;
  hello.only_running = options.only_running;
  if (options.shared_memory) hello.host_id = HostId();
  return hello;
}

// Returns the settings that autotune tries, including those of the program. `plane` must outlive
// them.
std::vector<TunedSetting> TunedSettings(const ClientOptions& options, DataPlane& plane) {
  std::vector<TunedSetting> settings = {
      {"connections",
       " to each server",
       {options.connections_per_server, 1, 2, 4},
       [&plane](int value) { plane.SetConnections(value); }},
      {"send window",
       " ms",
       {static_cast<int>(absl::ToInt64Milliseconds(SendWindow::kMoment)), 1, 2, 4},
       [&plane](int value) { plane.SetSendMoment(absl::Milliseconds(value)); }}};
  settings.insert(settings.end(), options.tuned_settings.begin(), options.tuned_settings.end());
  return settings;
}

}  // namespace

Session::Session(ClientOptions options, Dependencies dependencies)
    : options_(std::move(options)),
      incarnation_(dependencies.incarnation),
      member_secret_(std::move(dependencies.member_secret)),
      transport_(std::move(dependencies.transport)),
      timers_(std::move(dependencies.timers)),
      epochs_(options_.coordinator, options_.job),
      link_rate_(*transport_, *timers_),
      autotune_(options_.on_tuned),
      trace_reporter_(options_.coordinator, *transport_) {}

Session::~Session() {
  Abandon();
  timers_->Stop();
}

absl::Status Session::Join(absl::Duration timeout) {
  const absl::Time deadline = timers_->Now() + timeout;
  std::shared_ptr<Membership> membership;
  bool start = false;
  {
    MutexLock lock(mutex_);
    switch (state_) {
      case State::kNew: {
        SYNCGRADS_RETURN_IF_ERROR(CheckCongestionControl(options_.congestion_control));
        SYNCGRADS_RETURN_IF_ERROR(CheckTls(options_.tls, TlsSide::kConnects));
        SYNCGRADS_RETURN_IF_ERROR(CheckName("the job's name", options_.job));
        SYNCGRADS_RETURN_IF_ERROR(CheckName("the worker's name", options_.name));
        membership_ = std::make_shared<Membership>(
            Membership::Options{options_.coordinator,
                                HelloOf(options_, incarnation_, member_secret_),
                                options_.server_timeout},
            *transport_, *timers_, *this);
        state_ = State::kJoining;
        start = true;
        break;
      }
      case State::kJoining:  // the deadline of an earlier call has passed
        break;
      case State::kMember:
        return absl::FailedPreconditionError(
            absl::StrCat("this client has already joined job \"", options_.job, "\""));
      case State::kLeft:
      case State::kAbandoned:
        return absl::FailedPreconditionError(
            absl::StrCat("this client has left job \"", options_.job, "\": make a new one"));
    }
    membership = membership_;
  }
  if (start) membership->Start();
  SYNCGRADS_RETURN_IF_ERROR(membership->AwaitEpoch(deadline));
  MutexLock lock(mutex_);
  if (state_ == State::kJoining) state_ = State::kMember;
  return failure_;
}

absl::Status Session::CheckMember() const {
  MutexLock lock(mutex_);
  if (!failure_.ok()) return failure_;
  switch (state_) {
    case State::kNew:
    case State::kJoining:
      return absl::FailedPreconditionError(absl::StrCat(
          "this client is not a member of job \"", options_.job, "\": call Client::Join first"));
    case State::kMember:
      return absl::OkStatus();
    case State::kLeft:
    case State::kAbandoned:
      break;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("this client has left job \"", options_.job, "\": make a new one and join"));
}

absl::Status Session::Leave(absl::Duration timeout) {
  const absl::Time deadline = timers_->Now() + timeout;
  {
    MutexLock lock(mutex_);
    if (state_ == State::kLeft) return absl::OkStatus();
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckMember());
  DataPlane& plane = *data_plane();
  SYNCGRADS_RETURN_IF_ERROR(plane.CheckIdle());
  // The coordinator takes reports of members only.
  trace_reporter_.Finish(timeout);
  SYNCGRADS_RETURN_IF_ERROR(membership()->Leave(plane.Progress(), deadline));
  {
    MutexLock lock(mutex_);
    state_ = State::kLeft;
  }
  Close(absl::FailedPreconditionError(
      absl::StrCat("this client has left job \"", options_.job, "\"")));
  return absl::OkStatus();
}

void Session::Close(const absl::Status& status) {
  trace_reporter_.Stop();
  const std::shared_ptr<Membership> membership = this->membership();
  if (membership != nullptr) membership->Stop(status);
  DataPlane* plane = data_plane();
  if (plane != nullptr) {
    plane->Fail(status);
    plane->Close();
  }
}

void Session::Abandon() {
  std::shared_ptr<Membership> membership;
  {
    MutexLock lock(mutex_);
    if (state_ == State::kNew || state_ == State::kJoining || state_ == State::kMember) {
      state_ = State::kAbandoned;
    }
    membership = membership_;
  }
  Close(absl::CancelledError("the client has been abandoned"));
  if (membership != nullptr) membership->AwaitStopped();
  DataPlane* plane = data_plane();
  if (plane == nullptr) return;
  // A Welcome that arrived during the first Close may have created the data plane after it.
  plane->Fail(absl::CancelledError("the client has been abandoned"));
  plane->Close();
  plane->AwaitClosed();
}

absl::Status Session::status() const {
  std::shared_ptr<Membership> membership;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok() || membership_ == nullptr) return failure_;
    membership = membership_;
  }
  // The membership sets its status before it calls OnOver.
  return membership->status();
}

std::string Session::name() const {
  MutexLock lock(mutex_);
  return name_;
}

std::shared_ptr<Membership> Session::membership() const {
  MutexLock lock(mutex_);
  return membership_;
}

DataPlane* Session::data_plane() const {
  MutexLock lock(mutex_);
  return data_plane_.get();
}

void Session::RegisterRounds(const GroupSpec& spec, double link_rate, RegisterAnswer answer) {
  membership()->Register(spec, link_rate,
                         [this, plane = data_plane(), answer = std::move(answer)](
                             absl::StatusOr<std::shared_ptr<const GroupPlan>> plan) {
                           if (plan.ok()) {
                             const std::optional<Round> first = epochs_.FirstRoundOf((*plan)->id);
                             answer(plane->AddGroup(*std::move(plan), first));
                           } else {
                             answer(plan.status());
                           }
                         });
}

absl::StatusOr<std::shared_ptr<GroupRounds>> Session::AwaitRounds(const GroupSpec& spec,
                                                                  absl::Time deadline) {
  struct Answer {
    Mutex mutex;
    CondVar arrived;
    std::optional<absl::StatusOr<std::shared_ptr<GroupRounds>>> rounds ABSL_GUARDED_BY(mutex);
  };
  auto answer = std::make_shared<Answer>();
  const double link_rate = link_rate_.For(spec, data_plane()->servers(), rank(), deadline);
  RegisterRounds(spec, link_rate, [answer](absl::StatusOr<std::shared_ptr<GroupRounds>> rounds) {
    MutexLock lock(answer->mutex);
    answer->rounds = std::move(rounds);
    answer->arrived.NotifyAll();
  });
  MutexLock lock(answer->mutex);
  while (!answer->rounds.has_value()) {
    if (answer->arrived.WaitUntil(answer->mutex, deadline)) continue;
    if (answer->rounds.has_value()) break;
    const std::string waiting_for = membership()->waiting_for();
    return absl::DeadlineExceededError(absl::StrCat("the coordinator at ", options_.coordinator,
                                                    " has not registered group \"", spec.name, "\"",
                                                    waiting_for.empty() ? "" : ": ", waiting_for));
  }
  return *answer->rounds;
}

absl::StatusOr<Group*> Session::Register(const GroupSpec& spec, absl::Duration timeout) {
  const absl::Time deadline = timers_->Now() + timeout;
  SYNCGRADS_RETURN_IF_ERROR(CheckMember());
  SYNCGRADS_RETURN_IF_ERROR(Validate(spec));
  if (std::holds_alternative<Gather>(spec.rule)) {
    return absl::InvalidArgumentError(
        absl::StrCat("group \"", spec.name,
                     "\" has the rule gather, which Register does not support: call AllGather"));
  }
  {
    MutexLock lock(mutex_);
    auto found = groups_.find(spec.name);
    if (found != groups_.end()) {
      SYNCGRADS_RETURN_IF_ERROR(CheckAgreement(spec, found->second->spec(), "this worker"));
      return found->second.get();
    }
  }
  SYNCGRADS_ASSIGN_OR_RETURN(std::shared_ptr<GroupRounds> rounds, AwaitRounds(spec, deadline));
  // Waits for shared memory so that the first step uses the same path as all later steps.
  data_plane()->AwaitShared(std::min(deadline, timers_->Now() + kSharingTimeout));
  if (options_.autotune) autotune_.Begin(rounds->plan().id, TunedSettings(options_, *data_plane()));
  MutexLock lock(mutex_);
  std::unique_ptr<Group>& group = groups_[spec.name];
  if (group == nullptr) group = std::make_unique<RegisteredGroup>(std::move(rounds), *this);
  return group.get();
}

bool Session::HasRegistered(absl::string_view group) const {
  MutexLock lock(mutex_);
  return groups_.contains(group);
}

absl::StatusOr<void*> Session::AllocateGradients(size_t bytes) {
  SYNCGRADS_RETURN_IF_ERROR(CheckMember());
  SYNCGRADS_ASSIGN_OR_RETURN(const SharedBuffers::Region* region, shared_.Allocate(bytes));
  data_plane()->AwaitShared(timers_->Now() + kSharingTimeout);
  return region->memory->data();
}

absl::Status Session::EndGroup(const GroupRounds& rounds, Round last_round,
                               absl::Duration timeout) {
  return membership()->End(rounds.plan().id, last_round, timers_->Now() + timeout);
}

void Session::OnWelcome(Generation generation, const Welcome& welcome) {
  DataPlane::Options plane;
  plane.servers = welcome.servers;
  // The coordinator does not know the address at which it is reached, so it may send an empty one.
  if (plane.servers[0].empty()) plane.servers[0] = options_.coordinator;
  plane.connections_per_server = options_.connections_per_server;
  plane.hello.protocol_version = welcome.protocol_version;
  plane.hello.job = options_.job;
  plane.hello.token = options_.token;
  plane.hello.member = welcome.member;
  plane.hello.incarnation = incarnation_;
  plane.hello.member_secret = member_secret_;
  plane.generation = generation;
  plane.server_timeout = std::max(welcome.lease, options_.server_timeout);
  if (options_.shared_memory || options_.unix_socket) plane.hello.host_id = HostId();
  if (options_.shared_memory) plane.shared = &shared_;
  plane.unix_socket = options_.unix_socket;
  plane.world_size_of = [this](uint64_t epoch) { return epochs_.WorldSizeOf(epoch); };
  plane.on_path = options_.on_path;
  plane.on_paths = options_.on_paths;
  plane.on_codec_replaced = options_.on_codec_replaced;
  plane.on_lost = [this](absl::Status status) { OnLost(status); };
  epochs_.SetSelf(welcome.member);
  MutexLock lock(mutex_);
  name_ = welcome.name;
  data_plane_ = std::make_unique<DataPlane>(std::move(plane), *transport_, *timers_);
}

void Session::OnEpoch(const Epoch& epoch) {
  const std::optional<EpochHistory::Added> added = epochs_.Add(epoch);
  if (!added.has_value()) return;
  DataPlane* plane = data_plane();
  plane->SetEpoch(epoch.number);
  if (added->first) plane->Start();
  for (const EpochHistory::Listener& listener : added->listeners) listener(epoch);
}

void Session::OnTraceRequested(const TraceRequested& asked) {
  trace_reporter_.Start(asked, epochs_.self());
}

void Session::AddHandover(std::shared_ptr<StateHandover> handover) {
  epochs_.AddListener(
      [handover = std::move(handover)](const Epoch& epoch) { handover->OnEpoch(epoch); });
}

absl::Status Session::ReportReady(GroupId group, absl::Time deadline) {
  return membership()->Ready(group, deadline);
}

absl::Status Session::ReportFigures(TrainingFigures figures) {
  SYNCGRADS_RETURN_IF_ERROR(CheckFigures(figures));
  SYNCGRADS_RETURN_IF_ERROR(CheckMember());
  membership()->ReportFigures(std::move(figures));
  return absl::OkStatus();
}

absl::Status Session::SetLearningRateFactor(double factor, absl::Duration timeout) {
  SYNCGRADS_RETURN_IF_ERROR(CheckMember());
  return membership()->SetLearningRate(factor, timers_->Now() + timeout);
}

void Session::ReportCheckpoint(uint64_t step, const absl::StatusOr<std::string>& path) {
  const std::shared_ptr<Membership> membership = this->membership();
  if (membership != nullptr) membership->Report({step, path});
}

void Session::OnOver(const absl::Status& status) {
  absl::Status failure;
  {
    MutexLock lock(mutex_);
    if (failure_.ok()) failure_ = status;
    failure = failure_;
  }
  epochs_.End(failure);
  Close(status);
}

void Session::OnLost(const absl::Status& status) {
  absl::Status failure;
  {
    MutexLock lock(mutex_);
    if (state_ == State::kLeft || state_ == State::kAbandoned) return;
    if (failure_.ok()) failure_ = status;
    failure = failure_;
  }
  epochs_.End(failure);
  Close(status);
}

std::vector<GroupRound> Session::Progress() {
  DataPlane* plane = data_plane();
  return plane == nullptr ? std::vector<GroupRound>() : plane->Progress();
}

}  // namespace syncgrads::client
