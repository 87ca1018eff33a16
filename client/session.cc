#include "client/session.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/collectives.h"
#include "client/registered_group.h"
#include "client/state_handover.h"
#include "common/group.h"
#include "common/net/congestion_control.h"
#include "common/shm/host.h"
#include "common/status_macros.h"

namespace syncgrads::client {
namespace {

// How long it may take to share memory with the servers on this host, before
// payloads go over the streams in the meantime.
constexpr absl::Duration kSharingPatience = absl::Seconds(1);

// From here on chunks could be smaller on a slow link. How long a probe of it may take.
constexpr uint64_t kWorthProbing = 1 << 20;
constexpr absl::Duration kProbePatience = absl::Seconds(2);

// A step whose epoch is older than these has ended long ago.
constexpr size_t kKeptEpochs = 64;

std::string HostAndProcess() {
  char host[256] = "";
  if (gethostname(host, sizeof(host) - 1) != 0) return "";
  return absl::StrCat(host, ":", getpid());
}

}  // namespace

Session::Session(ClientOptions options, Surroundings surroundings)
    : options_(std::move(options)),
      incarnation_(surroundings.incarnation),
      transport_(std::move(surroundings.transport)),
      timers_(std::move(surroundings.timers)),
      collectives_(std::make_unique<Collectives>(*this)) {}

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
        Membership::Options membership_options;
        membership_options.coordinator = options_.coordinator;
        Hello& hello = membership_options.hello;
        hello.job = options_.job;
        hello.token = options_.token;
        hello.name = options_.name;
        hello.incarnation = incarnation_;
        hello.rank = options_.rank;
        hello.world_size = options_.world_size;
        hello.host = HostAndProcess();
        hello.max_workers = options_.max_workers;
        hello.min_workers = options_.min_workers;
        hello.step_timeout = options_.step_timeout;
        hello.only_running = options_.only_running;
        if (options_.shared_memory) hello.host_id = HostId();
        membership_ = std::make_shared<Membership>(std::move(membership_options), *transport_,
                                                   *timers_, *this);
        state_ = State::kJoining;
        start = true;
        break;
      }
      case State::kJoining:  // an earlier call's deadline has passed
        break;
      case State::kMember:
        return absl::FailedPreconditionError(
            absl::StrCat("this client has joined job \"", options_.job, "\" already"));
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
  std::shared_ptr<Membership> membership;
  {
    MutexLock lock(mutex_);
    if (state_ == State::kLeft) return absl::OkStatus();
    membership = membership_;
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckMember());
  DataPlane& plane = *data_plane();
  SYNCGRADS_RETURN_IF_ERROR(plane.CheckIdle());
  SYNCGRADS_RETURN_IF_ERROR(membership->Leave(plane.Progress(), deadline));
  {
    MutexLock lock(mutex_);
    state_ = State::kLeft;
  }
  Close(absl::FailedPreconditionError(
      absl::StrCat("this client has left job \"", options_.job, "\"")));
  return absl::OkStatus();
}

void Session::Close(const absl::Status& status) {
  std::shared_ptr<Membership> membership;
  {
    MutexLock lock(mutex_);
    membership = membership_;
  }
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
  // A welcome that was on its way may have come after the first time.
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
  // It knows before it has said so.
  return membership->status();
}

uint32_t Session::rank() const {
  MutexLock lock(mutex_);
  return rank_;
}

uint32_t Session::world_size() const {
  MutexLock lock(mutex_);
  return world_size_;
}

std::string Session::name() const {
  MutexLock lock(mutex_);
  return name_;
}

DataPlane* Session::data_plane() const {
  MutexLock lock(mutex_);
  return data_plane_.get();
}

void Session::RegisterRounds(GroupSpec spec, double link_rate, RegisterAnswer answer) {
  std::shared_ptr<Membership> membership;
  DataPlane* plane;
  {
    MutexLock lock(mutex_);
    membership = membership_;
    plane = data_plane_.get();
  }
  membership->Register(std::move(spec), link_rate,
                       [this, plane, answer = std::move(answer)](absl::StatusOr<GroupPlan> plan) {
                         if (plan.ok()) {
                           const std::optional<Round> first = FirstRoundOf(plan->id);
                           answer(plane->AddGroup(*std::move(plan), first));
                         } else {
                           answer(plan.status());
                         }
                       });
}

double Session::LinkRateFor(const GroupSpec& spec, absl::Time deadline) {
  uint64_t bytes = 0;
  for (const TensorSpec& tensor : spec.tensors) bytes += tensor.bytes();
  if (spec.chunk_bytes > 0 || bytes < kWorthProbing) return 0;
  {
    MutexLock lock(mutex_);
    if (link_rate_.has_value()) return *link_rate_;
  }
  const absl::Duration timeout = std::min(deadline - timers_->Now(), kProbePatience);
  // Each worker has another one to itself, and one on its own host asks elsewhere if it can.
  const std::vector<std::string>& servers = data_plane()->servers();
  const std::string& server = servers[(rank() + 1) % servers.size()];
  const double rate = transport_->MeasureLink(server, timeout).value_or(0);
  MutexLock lock(mutex_);
  link_rate_ = rate;
  return rate;
}

absl::StatusOr<std::shared_ptr<GroupRounds>> Session::AwaitRounds(GroupSpec spec,
                                                                  absl::Time deadline) {
  const std::string name = spec.name;
  struct Answer {
    Mutex mutex;
    CondVar arrived;
    std::optional<absl::StatusOr<std::shared_ptr<GroupRounds>>> rounds ABSL_GUARDED_BY(mutex);
  };
  auto answer = std::make_shared<Answer>();
  const double link_rate = LinkRateFor(spec, deadline);
  RegisterRounds(std::move(spec), link_rate,
                 [answer](absl::StatusOr<std::shared_ptr<GroupRounds>> rounds) {
                   MutexLock lock(answer->mutex);
                   answer->rounds = std::move(rounds);
                   answer->arrived.NotifyAll();
                 });
  MutexLock lock(answer->mutex);
  while (!answer->rounds.has_value()) {
    if (answer->arrived.WaitUntil(answer->mutex, deadline)) continue;
    if (answer->rounds.has_value()) break;
    return absl::DeadlineExceededError(
        absl::StrCat("the coordinator at ", options_.coordinator,
                     " has not answered the registration of group \"", name, "\""));
  }
  return *answer->rounds;
}

absl::StatusOr<Group*> Session::Register(const GroupSpec& spec, absl::Duration timeout) {
  const absl::Time deadline = timers_->Now() + timeout;
  SYNCGRADS_RETURN_IF_ERROR(CheckMember());
  SYNCGRADS_RETURN_IF_ERROR(Validate(spec));
  if (std::holds_alternative<Gather>(spec.rule)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "group \"", spec.name, "\" gathers, which Register does not do: call AllGather"));
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
  // So that the first step goes the way of all others.
  data_plane()->AwaitShared(std::min(deadline, timers_->Now() + kSharingPatience));
  MutexLock lock(mutex_);
  if (options_.autotune && !tuner_.has_value()) {
    tuner_.emplace(TunedSettings());
    tuned_group_ = rounds->plan().id;
  }
  std::unique_ptr<Group>& group = groups_[spec.name];
  if (group == nullptr) group = std::make_unique<RegisteredGroup>(std::move(rounds), *this);
  return group.get();
}

std::vector<TunedSetting> Session::TunedSettings() {
  std::vector<TunedSetting> settings = {
      {"connections",
       " to each server",
       {options_.connections_per_server, 1, 2, 4},
       [this](int value) { data_plane()->SetConnections(value); }},
      {"send window",
       " ms",
       {static_cast<int>(absl::ToInt64Milliseconds(SendWindow::kMoment)), 1, 2, 4},
       [this](int value) { data_plane()->SetSendMoment(absl::Milliseconds(value)); }}};
  settings.insert(settings.end(), options_.tuned_settings.begin(), options_.tuned_settings.end());
  return settings;
}

bool Session::HasRegistered(absl::string_view group) const {
  MutexLock lock(mutex_);
  return groups_.contains(group);
}

void Session::OnStepEnded(GroupId group) {
  std::optional<StepTuner::Change> change;
  {
    MutexLock lock(mutex_);
    if (!tuner_.has_value() || group != tuned_group_) return;
    change = tuner_->StepEnded(timers_->Now());
  }
  if (!change.has_value()) return;
  change->use();
  if (!change->found.empty() && options_.on_tuned) options_.on_tuned(change->found);
}

absl::StatusOr<void*> Session::AllocateGradients(size_t bytes) {
  SYNCGRADS_RETURN_IF_ERROR(CheckMember());
  SYNCGRADS_ASSIGN_OR_RETURN(const SharedBuffers::Region* region, shared_.Allocate(bytes));
  data_plane()->AwaitShared(timers_->Now() + kSharingPatience);
  return region->memory->data();
}

absl::Status Session::EndGroup(const GroupRounds& rounds, Round last_round,
                               absl::Duration timeout) {
  std::shared_ptr<Membership> membership;
  {
    MutexLock lock(mutex_);
    membership = membership_;
  }
  return membership->End(rounds.plan().id, last_round, timers_->Now() + timeout);
}

void Session::OnWelcome(Generation generation, const Welcome& welcome) {
  DataPlane::Options plane;
  plane.servers = welcome.servers;
  // The coordinator does not know by which address it is reached.
  if (plane.servers[0].empty()) plane.servers[0] = options_.coordinator;
  plane.connections_per_server = options_.connections_per_server;
  plane.hello.protocol_version = welcome.protocol_version;
  plane.hello.job = options_.job;
  plane.hello.token = options_.token;
  plane.hello.member = welcome.member;
  plane.hello.incarnation = incarnation_;
  plane.generation = generation;
  plane.lease = welcome.lease;
  if (options_.shared_memory || options_.unix_socket) plane.hello.host_id = HostId();
  if (options_.shared_memory) plane.shared = &shared_;
  plane.unix_socket = options_.unix_socket;
  plane.on_path = options_.on_path;
  plane.on_codec_replaced = options_.on_codec_replaced;
  plane.on_lost = [this](absl::Status status) { OnLost(status); };
  MutexLock lock(mutex_);
  name_ = welcome.name;
  member_ = welcome.member;
  data_plane_ = std::make_unique<DataPlane>(std::move(plane), *transport_, *timers_);
}

void Session::OnEpoch(const Epoch& epoch) {
  bool first;
  DataPlane* plane;
  std::vector<std::shared_ptr<StateHandover>> handovers;
  {
    MutexLock lock(mutex_);
    if (!epochs_.empty() && epoch.number <= epochs_.back().number) return;
    first = !first_epoch_.has_value();
    if (first) first_epoch_ = epoch;
    epochs_.push_back(epoch);
    if (epochs_.size() > kKeptEpochs) epochs_.erase(epochs_.begin());
    plane = data_plane_.get();
    handovers = handovers_;
    world_size_ = static_cast<uint32_t>(epoch.members.size());
    rank_ = epoch.RankOf(member_).value_or(rank_);
    epoch_changed_.NotifyAll();
  }
  plane->SetEpoch(epoch.number);
  if (first) plane->Start();
  for (const std::shared_ptr<StateHandover>& handover : handovers) handover->OnEpoch(epoch);
}

bool Session::is_newcomer() const {
  MutexLock lock(mutex_);
  if (!first_epoch_.has_value() || !first_epoch_->handover.has_value()) return false;
  const std::vector<MemberId>& newcomers = first_epoch_->handover->to;
  return std::find(newcomers.begin(), newcomers.end(), member_) != newcomers.end();
}

std::optional<Round> Session::FirstRoundOf(GroupId group) const {
  if (!is_newcomer()) return std::nullopt;
  MutexLock lock(mutex_);
  return FindRound(first_epoch_->handover->rounds, group);
}

MemberId Session::member() const {
  MutexLock lock(mutex_);
  return member_;
}

Epoch Session::newest_epoch() const {
  MutexLock lock(mutex_);
  return epochs_.empty() ? Epoch() : epochs_.back();
}

absl::StatusOr<Epoch> Session::EpochOf(GroupId group, Round round) const {
  MutexLock lock(mutex_);
  const Epoch* epoch = FindEpoch(epochs_, group, round);
  if (epoch != nullptr) return *epoch;
  return absl::NotFoundError(absl::StrCat("the epoch of step ", ToNumber(round), " of group ",
                                          ToNumber(group), " is no longer known"));
}

absl::StatusOr<Epoch> Session::AwaitEpoch(uint64_t number, absl::Time deadline) const {
  MutexLock lock(mutex_);
  while (true) {
    for (const Epoch& epoch : epochs_) {
      if (epoch.number >= number) return epoch;
    }
    if (!failure_.ok()) return failure_;
    if (epoch_changed_.WaitUntil(mutex_, deadline)) continue;
    if (!epochs_.empty() && epochs_.back().number >= number) continue;
    return absl::DeadlineExceededError(absl::StrCat("the coordinator at ", options_.coordinator,
                                                    " has not told of epoch ", number, " of job \"",
                                                    options_.job, "\""));
  }
}

void Session::AddHandover(std::shared_ptr<StateHandover> handover) {
  Epoch newest;
  {
    MutexLock lock(mutex_);
    handovers_.push_back(handover);
    newest = epochs_.back();
  }
  handover->OnEpoch(newest);
}

absl::Status Session::SayReady(GroupId group, absl::Time deadline) {
  std::shared_ptr<Membership> membership;
  {
    MutexLock lock(mutex_);
    membership = membership_;
  }
  return membership->Ready(group, deadline);
}

void Session::ReportCheckpoint(uint64_t step, const absl::StatusOr<std::string>& path) {
  std::shared_ptr<Membership> membership;
  {
    MutexLock lock(mutex_);
    membership = membership_;
  }
  if (membership != nullptr) membership->Report({step, path});
}

void Session::OnOver(const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    if (failure_.ok()) failure_ = status;
    epoch_changed_.NotifyAll();
  }
  Close(status);
}

void Session::OnLost(const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    if (state_ == State::kLeft || state_ == State::kAbandoned) return;
    if (failure_.ok()) failure_ = status;
    epoch_changed_.NotifyAll();
  }
  Close(status);
}

std::vector<GroupRound> Session::Progress() {
  DataPlane* plane = data_plane();
  return plane == nullptr ? std::vector<GroupRound>() : plane->Progress();
}

}  // namespace syncgrads::client
