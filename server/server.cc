#include "server/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/group/layout.h"
#include "common/local/socket_loop.h"
#include "common/memory_limit.h"
#include "common/mutex.h"
#include "common/net/acceptor.h"
#include "common/net/listening_sockets.h"
#include "common/net/open_connections.h"
#include "common/net/strangers.h"
#include "common/random_number.h"
#include "common/rpc/call_counts.h"
#include "common/rpc/credentials.h"
#include "common/rpc/refuse_compressed.h"
#include "common/rpc/taken_connections.h"
#include "common/serial_thread.h"
#include "common/shm/region.h"
#include "common/status_macros.h"
#include "common/tls/tls_copies.h"
#include "server/access/access.h"
#include "server/check_options.h"
#include "server/core/closing/closers.h"
#include "server/core/coordinator/coordinator.h"
#include "server/core/coordinator/local_server.h"
#include "server/core/jobs/jobs.h"
#include "server/core/jobs/recovery.h"
#include "server/message_quota.h"
#include "server/metrics/server_metrics.h"
#include "server/newcomer_pollers.h"
#include "server/service/admin/admin_service.h"
#include "server/service/admin/event_streams.h"
#include "server/service/admin/health_service.h"
#include "server/service/admin/optimizer_stream.h"
#include "server/service/admin/server_status.h"
#include "server/service/calls/stream_deadlines.h"
#include "server/service/calls/unary_answers.h"
#include "server/service/calls/unknown_methods.h"
#include "server/service/control/control_service.h"
#include "server/service/control/follower.h"
#include "server/service/control/plan_store.h"
#include "server/service/data/data_service.h"
#include "server/service/data/memory_exchange.h"
#include "server/service/data/payload_bytes.h"
#include "server/service/events/event_log.h"
#include "server/service/events/stall_watch.h"
#include "server/service/events/tracing.h"
#include "server/state/state_directory.h"
#include "third_party/jemalloc/purge.h"

namespace syncgrads::server {
namespace {

// The interval at which the ticker thread checks leases, the connection to the coordinator, and
// the deadlines of streams.
constexpr absl::Duration kTick = absl::Milliseconds(50);

// If the ticker has not run for longer than this, the process was paused, and leases are not
// charged for the gap. See AwakeClock.
constexpr absl::Duration kLongestGap = absl::Milliseconds(500);

// A connection is closed if its peer's host acknowledges no data for this long, or if the peer
// reads nothing for this long and its buffer is full.
constexpr absl::Duration kUserTimeout = absl::Seconds(10);
// The time after which a silent peer gets a ping. If its host lives, it has the lease to answer: a
// process that is stopped for less is not dropped.
constexpr absl::Duration kKeepalive = absl::Seconds(10);

// The limit of streams on one connection. It does not bind a peer that never acknowledges HTTP/2's
// settings, or that resets streams (kMaxCalls, StreamDeadlines::kMostWithoutHello). Our clients
// have connections of their own; a member has at most Presence::kMaxStreams data streams.
constexpr int kMaxStreams = 200;
// The limit of calls on one connection that have begun and not ended, and of the streams of a
// stranger.
constexpr uint32_t kMaxCalls = 2 * kMaxStreams;
// How long a server that ends waits until its members have been sent the reason. A member that has
// stopped, or is unreachable, does not get it.
constexpr absl::Duration kFarewell = absl::Seconds(5);

// Each of them reads pushes and reduces, so there is one for each processor.
size_t LocalStreamThreads() {
  return std::clamp<size_t>(std::thread::hardware_concurrency(), 2, 16);
}

int DefaultClosers() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

Incarnation DrawIncarnation() { return Incarnation{DrawRandomNumber()}; }

// Returns a time as gRPC's arguments have it.
int ToMilliseconds(absl::Duration time) {
  return static_cast<int>(
      std::min<int64_t>(absl::ToInt64Milliseconds(time), std::numeric_limits<int>::max()));
}

// gRPC offers reflection on every server of a process that contains it.
class WithoutReflection : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments* /*arguments*/) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    std::erase_if(*plugins,
                  [](const auto& plugin) { return plugin->name() == "proto_server_reflection"; });
  }
};

class GrpcServer : public Server {
 public:
  GrpcServer(const ServerOptions& options, Journal& journal, const Clock& clock)
      : options_(options),
        events_(journal, {.clock = clock}),
        clock_(clock),
        closers_(options.closing_threads > 0 ? options.closing_threads : DefaultClosers()),
        jobs_(ServerIndex{options.index}, clock, &journal_, &closers_),
        stall_watch_(options.stall_warning, jobs_, clock, journal_),
        connections_({options.max_connections, options.max_connections_per_peer,
                      "--max_connections", "--max_connections_per_peer", kMaxCalls},
                     [this](const std::string& line) { journal_.Warn(line); }),
        deadlines_(options.hello_timeout, clock),
        access_({options.tokens_file, !options.tls.client_ca.empty(), options.server_token,
                 &strangers_, options.only_own_user},
                journal_, clock),
        message_quota_(options.memory > 0 ? options.memory : AvailableMemory().value_or(0)) {}

  ~GrpcServer() override {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    const bool has_served = ticker_.joinable();
    if (has_served) ticker_.join();
    if (coordinator_ != nullptr) coordinator_->CloseAll("the server is shutting down");
    plan_thread_.Finish();
    jobs_.arrivals().SetSink(nullptr);
    jobs_.reduced().SetSink(nullptr);
    jobs_.prepared().SetSink(nullptr);
    jobs_.store_failures().SetSink(nullptr);
    if (status_report_ != nullptr) status_report_->SetConnections(nullptr, nullptr);
    follower_ = nullptr;
    acceptor_ = nullptr;
    if (server_ != nullptr) {
      // Members are sent the reason before their streams are cancelled.
      control_->AwaitMembersGone(MonotonicNow() + kFarewell);
      event_streams_->Stop();
      // gRPC cancels the streams that are still open at this deadline.
      server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
      server_->Wait();
    }
    local_streams_ = nullptr;
    // The closures on these threads use jobs, the relays to the coordinator, and the state
    // directory.
    closers_.Stop();
    // Last: a server that is killed before this point and restarted must still find in its
    // state that all jobs are done.
    if (has_served) ForgetWhatIsDone();
  }

  absl::Status Listen() {
    SYNCGRADS_RETURN_IF_ERROR(CheckOptions(options_));
    SYNCGRADS_RETURN_IF_ERROR(access_.Load());
    SYNCGRADS_RETURN_IF_ERROR(OpenState());
    if (options_.index == 0) {
      coordinator_ = std::make_unique<Coordinator>(
          CoordinatorOptions{
              MembershipOptions{options_.heartbeat_interval, options_.lease, options_.stream_grace,
                                options_.join_timeout, options_.abandoned_job_ttl},
              kLongestGap, [this] { return Available(); }, Generation{options_.first_generation},
              GroupLimits{options_.max_groups, options_.max_chunks}, options_.max_jobs,
              options_.max_workers,
              [this](const std::string& job) { return status_report_->StepsPerSecond(job); }},
          PlanLog(options_.servers, Advertised(options_, Port()).value_or(""), plan_.start.plan),
          jobs_, clock_, journal_);
      if (store_ != nullptr) coordinator_->Restore(*store_, plan_.start, plan_.records);
      jobs_.arrivals().SetSink(
          [this](const Arrival& arrival) { coordinator_->Arrived(ServerIndex{0}, {arrival}); });
      jobs_.prepared().SetSink([this](const GroupPrepared& prepared) {
        coordinator_->Prepared(ServerIndex{0}, prepared);
      });
      jobs_.reduced().SetSink(
          [this](const ReducedChunk& chunk) { coordinator_->Reduced(ServerIndex{0}, {chunk}); });
      coordinator_->AttachOwn(std::make_shared<LocalServer>(jobs_, *coordinator_,
                                                            [this](std::function<void()> closure) {
                                                              plan_thread_.Run(std::move(closure));
                                                            }),
                              held_);
      // Jobs whose state on this server is damaged.
      for (const StoreFailure& failure : jobs_.StoreFailures()) {
        coordinator_->StoreFailed(ServerIndex{0}, failure);
      }
    }
    tracing_ = std::make_unique<Tracing>(jobs_, coordinator_.get());
    event_streams_ = std::make_unique<EventStreams>(events_, ServerIndex{options_.index});
    control_ = std::make_unique<ControlService>(coordinator_.get(), options_.coordinator, access_,
                                                connections_, deadlines_, answers_, *tracing_,
                                                loads_, events_);
    if (options_.shared_memory) {
      absl::StatusOr<std::unique_ptr<MemoryExchange>> exchange = MemoryExchange::Start(
          jobs_, journal_,
          {.credential =
               access_.has_rules() ? StreamCredential::kSecret : StreamCredential::kSecretOrToken});
      if (exchange.ok()) {
        exchange_ = *std::move(exchange);
      } else {
        journal_.Warn(
            absl::StrCat("cannot share memory with workers: ", exchange.status().message()));
      }
    }
    std::string unix_socket;
    FileDescriptor unix_listening;
    if (options_.unix_socket) {
      // The name is random, so that the socket of another process cannot have the same name.
      unix_socket =
          absl::StrCat("syncgrads-streams-", getpid(), "-", absl::Hex(DrawRandomNumber()));
      absl::StatusOr<FileDescriptor> listens = ListenUnix(unix_socket);
      absl::StatusOr<std::unique_ptr<SocketLoop>> loop = SocketLoop::Start(LocalStreamThreads());
      if (listens.ok() && loop.ok()) {
        unix_listening = *std::move(listens);
        local_streams_ = *std::move(loop);
      } else {
        journal_.Warn(absl::StrCat("cannot listen on a unix socket: ",
                                   (listens.ok() ? loop.status() : listens.status()).message()));
        unix_socket.clear();
      }
    }
    data_ = std::make_unique<DataService>(jobs_, exchange_.get(), unix_socket, connections_,
                                          deadlines_, access_, clock_, traffic_);
    status_report_ = std::make_unique<StatusReport>(SourcesOfStatus());
    admin_ = std::make_unique<AdminService>(jobs_, coordinator_.get(), ServerIndex{options_.index},
                                            *status_report_, *tracing_, *event_streams_,
                                            optimizer_streams_, answers_, access_, connections_,
                                            deadlines_, [this] { Drain(); });

    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    // Reflection needs no role, and gRPC parses its requests, however much memory that takes.
    if (!options_.reflection || access_.has_rules()) {
      builder.SetOption(std::make_unique<WithoutReflection>());
    }
    SYNCGRADS_ASSIGN_OR_RETURN(
        ListeningSockets listening,
        ListenTcp({options_.bind, Port(), options_.congestion_control, kUserTimeout}));
    port_ = listening.port;
    // The port is known only now. No worker can have joined before: gRPC is not started yet.
    if (coordinator_ != nullptr) coordinator_->Advertise(Advertised(options_, port_).value_or(""));
    if (unix_listening.valid()) listening.sockets.push_back(std::move(unix_listening));
    tls_.emplace(options_.tls, SideOf(options_),
                 [this](const std::string& line) { journal_.Warn(line); });
    taken_connections_.emplace(builder, ServerCredentialsOf(tls_->options()));
    builder.RegisterService(control_.get());
    builder.RegisterService(data_.get());
    builder.RegisterService(admin_.get());
    builder.RegisterService(&health_);
    builder.RegisterCallbackGenericService(&unknown_methods_);
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    message_quota_.Fit(jobs_.MemoryBytes());
    message_quota_.Apply(builder);
    // The time to complete the TLS handshake and to send the first frame of HTTP/2.
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                               ToMilliseconds(options_.hello_timeout));
    // Without bandwidth probing, as on the client's side, a connection's window stays small:
    // received bytes are then still in a CPU cache when they are read.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4 << 20);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 4 << 20);
    RefuseCompressedMessages(builder);
    CountCalls(builder);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
    // Members and followers send keepalive pings to detect a dead link. These settings permit
    // the pings.
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, ToMilliseconds(kKeepalive));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                               ToMilliseconds(std::max(options_.lease, kKeepalive)));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::UnavailableError("gRPC could not start the server");
    acceptor_ = std::make_unique<Acceptor>(
        std::move(listening.sockets), connections_, &strangers_, CallsOfNewestServer(),
        [this](const std::string& line) { journal_.Warn(line); },
        [this](FileDescriptor connection, bool is_local, size_t taker) {
          if (is_local) return data_->ExchangeLocally(std::move(connection), *local_streams_);
          newcomer_pollers_.Unpark();
          taken_connections_->Take(std::move(connection), taker);
        });
    if (state_ != nullptr) {
      // If the disk is full, the port stored before stays, and the next start uses that one.
      const absl::Status kept = state_->KeepPort(port_);
      if (!kept.ok()) {
        journal_.Warn(absl::StrCat("cannot store the port for a restart: ", kept.message()));
      }
    }
    if (options_.index > 0) {
      follower_ = std::make_unique<Follower>(
          FollowerOptions{options_.coordinator,
                          options_.coordinator_timeout,
                          {ServerIndex{options_.index},
                           options_.advertise.empty() ? absl::StrCat(":", port_)
                                                      : Advertised(options_, port_).value_or(""),
                           plan_.start.incarnation, options_.server_token, held_, DrawIncarnation,
                           [this] { return Available(); }},
                          [this] { return status_report_->Load(); },
                          ChannelSecurity(tls_->options())},
          jobs_, clock_, journal_);
      jobs_.arrivals().SetSink(
          [follower = follower_.get()](const Arrival& arrival) { follower->Arrived(arrival); });
      jobs_.prepared().SetSink([follower = follower_.get()](const GroupPrepared& prepared) {
        follower->Prepared(prepared);
      });
      jobs_.reduced().SetSink(
          [follower = follower_.get()](const ReducedChunk& chunk) { follower->Reduced(chunk); });
      jobs_.store_failures().SetSink([follower = follower_.get()](const StoreFailure& failure) {
        follower->StoreFailed(failure);
      });
    }
    status_report_->SetConnections(&connections_, follower_.get());
    ReportReadiness();
    ticker_ = std::thread([this] { Tick(); });
    stall_watch_.Start();
    return absl::OkStatus();
  }

  uint16_t port() const override { return port_; }

  absl::Status CheckPage(const std::string& peer, const std::vector<std::string>& names,
                         const std::string& token) override {
    return access_.Check({peer, names, token}, Action::kPage, kAllJobs);
  }

  void FillStatus(v1::GetStatusReply& reply) const override {
    status_report_->FillStatus(reply);
    // The pages are for viewers.
    if (access_.has_rules()) HidePaths(reply);
  }
  void FillReadiness(v1::GetStatusReply& reply) const override {
    status_report_->FillReadiness(reply);
  }
  void ReportReadiness() override {
    MutexLock lock(ready_mutex_);
    v1::GetStatusReply status;
    FillReadiness(status);
    health_.Set(HealthService::kReady, ReadinessOf(status).ok());
  }
  void FillCurves(v1::Curves& curves) const override { status_report_->FillCurves(curves); }
  void FillEvents(v1::EventsReply& events) const override {
    // The pages are for viewers.
    events = NewestEvents(events_, ServerIndex{options_.index}, kShownEvents,
                          /*with_details=*/!access_.has_rules());
  }

  void Drain() override {
    if (coordinator_ != nullptr) coordinator_->Drain();
    if (status_report_->SetDraining()) {
      journal_.Record({.kind = EventKind::kDraining, .text = "new jobs are refused from now on"});
    }
    health_.Set(HealthService::kProcess, false);
    ReportReadiness();
  }

  bool has_open_jobs() const override { return !jobs_.All().empty(); }

  bool all_jobs_done() const override {
    // In this order: when the coordinator has no open job, this server has applied the end of
    // the last one, and jobs_ reports it.
    return (coordinator_ == nullptr || coordinator_->open_jobs() == 0) && jobs_.all_done();
  }

  absl::Status status() const override {
    if (absl::Status stored = jobs_.status(); !stored.ok()) return stored;
    if (coordinator_ != nullptr) return coordinator_->status();
    return follower_ == nullptr ? absl::OkStatus() : follower_->status();
  }

 private:
  // The port to listen on. Without --port it is the port of the last start, at which workers and
  // servers reconnect after a crash. 0: any free port.
  uint16_t Port() const {
    return options_.port != 0 || state_ == nullptr ? options_.port : state_->last_port();
  }

  // Restores the plan and the jobs from the state directory, or starts with an empty plan. If
  // the plan and its copy are damaged, moves all files to the subdirectory "unusable" and starts
  // with an empty plan.
  absl::Status OpenState() {
    plan_.start.plan = DrawRandomNumber();
    plan_.start.incarnation = DrawIncarnation();
    if (options_.state.empty()) return absl::OkStatus();
    SYNCGRADS_ASSIGN_OR_RETURN(state_, StateDirectory::Own(options_.state));
    if (!state_->damage().ok()) {
      journal_.Warn(
          absl::StrCat("the port of the last start is not known: ", state_->damage().message()));
    }
    StoredPlan stored;
    const PlanStoreOptions options = {.oldest_epochs = [this] { return jobs_.OldestEpochs(); }};
    absl::StatusOr<std::unique_ptr<PlanStore>> store =
        PlanStore::Open(state_->plan_path(), stored, options);
    if (store.ok()) {
      if (!stored.replaced.ok()) {
        journal_.Warn(
            absl::StrCat("the plan was restored from its copy: ", stored.replaced.message()));
      }
      std::vector<PlanChange> changes;
      for (const Stored& record : stored.records) {
        if (const auto* change = std::get_if<PlanChange>(&record)) changes.push_back(*change);
      }
      SYNCGRADS_ASSIGN_OR_RETURN(
          held_, jobs_.Restore({state_.get(), StoreOfJobs(**store)}, stored.start, changes));
      recovery_ = std::make_unique<Recovery>(jobs_.All(), started_);
      plan_ = std::move(stored);
      store_ = *std::move(store);
      journal_.Note(absl::StrCat("start ", state_->start(), " on the state in ", state_->path(),
                                 ": ", plan_.records.size(), " records, ", jobs_.All().size(),
                                 " open jobs"));
      return absl::OkStatus();
    }
    if (!absl::IsNotFound(store.status()) && !absl::IsDataLoss(store.status())) {
      return store.status();
    }
    if (absl::IsDataLoss(store.status())) {
      journal_.Warn(absl::StrCat("the state is damaged and is not used: ", store.status().message(),
                                 "; it has been moved to ", state_->path(), "/unusable"));
      SYNCGRADS_RETURN_IF_ERROR(state_->SetAside());
    }
    state_->RemoveGroups();
    SYNCGRADS_ASSIGN_OR_RETURN(store_,
                               PlanStore::Create(state_->plan_path(), plan_.start, options));
    SYNCGRADS_ASSIGN_OR_RETURN(
        held_, jobs_.Restore({state_.get(), StoreOfJobs(*store_)}, plan_.start, {}));
    return absl::OkStatus();
  }

  // The store that Jobs appends changes to. Null on server 0, where the coordinator stores each
  // change before any server applies it.
  Store* StoreOfJobs(Store& store) const { return options_.index == 0 ? nullptr : &store; }

  // If no job is open, replaces the stored plan by one that has no records and is not `all_done`: a
  // server that has ended gracefully does not report all_jobs_done() at its next start.
  void ForgetWhatIsDone() {
    if (store_ == nullptr || !jobs_.All().empty()) return;
    PlanStart start = plan_.start;
    if (coordinator_ != nullptr) {
      start = coordinator_->Position();
    } else {
      start.plan = jobs_.plan();
      start.applied = jobs_.applied();
      start.incarnation = store_->incarnation();
    }
    start.all_done = false;
    const absl::Status stored = store_->Reset(start);
    if (!stored.ok()) journal_.Warn(absl::StrCat("cannot compact the plan: ", stored.message()));
  }

  // Returns the bytes that new groups may take: the available memory, and, if there is a state
  // directory, which then has the results, at most its free space. If the available memory
  // cannot be read, uses the last value that was read. Called on any thread.
  uint64_t Available() const {
    const absl::StatusOr<uint64_t> read = AvailableMemory();
    if (read.ok()) available_memory_ = *read;
    const uint64_t memory = available_memory_;
    return state_ == nullptr ? memory : std::min(memory, state_->room());
  }

  // Returns the bytes that Available is a part of; 0 if they are not known.
  uint64_t Total() const {
    const uint64_t memory = TotalMemory().value_or(0);
    const uint64_t state = state_ == nullptr ? 0 : state_->file_system_bytes();
    return memory == 0 || state == 0 ? std::max(memory, state) : std::min(memory, state);
  }

  StatusSources SourcesOfStatus() const {
    StatusSources sources{.self = ServerIndex{options_.index},
                          .jobs = jobs_,
                          .coordinator = coordinator_.get(),
                          .traffic = traffic_,
                          .clock = clock_,
                          .memory_free = [this] { return Available(); }};
    sources.memory_total = [this] { return Total(); };
    sources.state = state_.get();
    sources.recovery = recovery_.get();
    sources.coordinator_address = options_.coordinator;
    if (coordinator_ != nullptr) sources.loads = &loads_;
    sources.shares_memory = exchange_ != nullptr;
    sources.congestion_control = options_.congestion_control;
    sources.wrong_tokens = [this] { return access_.wrong_tokens(); };
    return sources;
  }

  void Tick() {
    MutexLock lock(mutex_);
    absl::Time next_second = MonotonicNow() + absl::Seconds(1);
    absl::Time next = MonotonicNow() + kTick;
    while (!stopping_) {
      changed_.WaitUntil(mutex_, next);
      if (stopping_) return;
      if (MonotonicNow() < next) continue;
      next = MonotonicNow() + kTick;
      mutex_.Unlock();
      if (coordinator_ != nullptr) coordinator_->Tick();
      if (follower_ != nullptr) follower_->Tick();
      newcomer_pollers_.Tick();
      deadlines_.Tick();
      jobs_.ReportAlerts();
      if (recovery_ != nullptr) recovery_->duration();
      status_report_->Ticked();
      ReportReadiness();
      if (MonotonicNow() >= next_second) {
        message_quota_.Fit(jobs_.MemoryBytes());
        GiveBackMemoryOfJobs();
        events_.ReportLeftOut();
        next_second = MonotonicNow() + absl::Seconds(1);
      }
      mutex_.Lock();
    }
  }

  // After a job has closed: a group of the next job is admitted if there is memory for it now, not
  // in ten seconds. Called once a second: if a thousand jobs close one after the other, what is
  // given back takes page faults again.
  void GiveBackMemoryOfJobs() {
    const size_t open_jobs = jobs_.All().size();
    if (std::exchange(open_jobs_, open_jobs) > open_jobs) PurgeFreedMemory();
  }

  const ServerOptions options_;
  EventLog events_;
  // The same, as a journal.
  Journal& journal_ = events_;
  // Set when the options have been checked.
  std::optional<TlsCopies> tls_;
  const Clock& clock_;
  const absl::Time started_ = clock_.Now();
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Mutex ready_mutex_;  // held while it is determined, so that the newest result stays
  Closers closers_;
  std::unique_ptr<StateDirectory> state_;
  std::unique_ptr<PlanStore> store_;
  // The plan as it was stored when this process started.
  StoredPlan plan_;
  // The rounds that are held since before the restart, for epochs that were proposed.
  std::vector<HeldRounds> held_;
  Jobs jobs_;
  // Null unless the plan was read from the state directory.
  std::unique_ptr<Recovery> recovery_;
  StallWatch stall_watch_;
  OpenConnections connections_;
  StreamDeadlines deadlines_;
  Strangers strangers_{{.streams = kMaxCalls}};
  NewcomerPollers newcomer_pollers_{strangers_};
  Access access_;
  ServerLoads loads_;
  // Used by the ticker thread only, once that runs.
  MessageQuota message_quota_;
  size_t open_jobs_ = 0;
  mutable std::atomic<uint64_t> available_memory_{0};
  std::unique_ptr<Coordinator> coordinator_;
  // The thread on which server 0 applies its own plan. Finished before anything above is
  // destroyed.
  SerialThread plan_thread_;
  std::unique_ptr<Follower> follower_;
  std::unique_ptr<MemoryExchange> exchange_;
  std::unique_ptr<Tracing> tracing_;
  std::unique_ptr<EventStreams> event_streams_;
  OptimizerStreams optimizer_streams_{jobs_, deadlines_};
  UnaryAnswers answers_;
  HealthService health_{connections_, deadlines_};
  UnknownMethods unknown_methods_{connections_};
  std::unique_ptr<ControlService> control_;
  Traffic traffic_;
  std::unique_ptr<DataService> data_;
  std::unique_ptr<StatusReport> status_report_;
  std::unique_ptr<AdminService> admin_;
  std::unique_ptr<SocketLoop> local_streams_;
  // Passes accepted TCP connections to `server_`. Outlives `acceptor_`.
  std::optional<TakenConnections> taken_connections_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Acceptor> acceptor_;
  uint16_t port_ = 0;
  std::thread ticker_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      Journal& journal, const Clock& clock) {
  auto server = std::make_unique<GrpcServer>(options, journal, clock);
  SYNCGRADS_RETURN_IF_ERROR(server->Listen());
  return server;
}

}  // namespace syncgrads::server
