#include "server/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/layout.h"
#include "common/memory_limit.h"
#include "common/mutex.h"
#include "common/net/congestion_control.h"
#include "common/shm/fd_socket.h"
#include "common/status_macros.h"
#include "server/core/closers.h"
#include "server/core/coordinator.h"
#include "server/core/jobs.h"
#include "server/service/admin_service.h"
#include "server/service/control_service.h"
#include "server/service/data_service.h"
#include "server/service/follower.h"
#include "server/service/memory_exchange.h"
#include "server/service/plan_store.h"
#include "server/service/stall_watch.h"
#include "server/state/state_directory.h"
#include "third_party/grpc/socket_mutator.h"

namespace syncgrads::server {
namespace {

// How often leases, connections and waits are looked at.
constexpr absl::Duration kTick = absl::Milliseconds(50);

// Of a push: a chunk, in round 0 with two slots of an optimizer, and a header that may
// list many absent spans.
constexpr int kMaxReceivedBytes = 3 * kMaxChunkBytes + (8 << 20);

uint64_t Draw() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;
}

int DefaultClosers() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

Incarnation DrawIncarnation() { return Incarnation{Draw()}; }

absl::Status Check(const ServerOptions& options) {
  if (options.index == 0 && options.servers == 0) {
    return absl::InvalidArgumentError("servers is 0; there is at least this one");
  }
  if (options.index == 0 && !options.coordinator.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "server 0 is the coordinator itself, and was told to follow ", options.coordinator));
  }
  if (options.index > 0 && options.coordinator.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("server ", options.index, " needs the coordinator's address"));
  }
  return CheckCongestionControl(options.congestion_control);
}

class CongestionControl : public grpc::ServerBuilderOption {
 public:
  explicit CongestionControl(std::string name) : name_(std::move(name)) {}
  void UpdateArguments(grpc::ChannelArguments* arguments) override {
    arguments->SetSocketMutator(
        NewSocketMutator([name = name_](int socket) { SetCongestionControl(socket, name); }));
  }
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>*) override {}

 private:
  const std::string name_;
};

class GrpcServer : public Server {
 public:
  GrpcServer(const ServerOptions& options, Journal& journal, const Clock& clock)
      : options_(options),
        journal_(journal),
        clock_(clock),
        closers_(options.closing_threads > 0 ? options.closing_threads : DefaultClosers()),
        jobs_(ServerIndex{options.index}, clock, &journal, &closers_),
        stall_watch_(options.stall_warning, jobs_, clock, journal) {}

  ~GrpcServer() override {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    if (ticker_.joinable()) ticker_.join();
    if (coordinator_ != nullptr) coordinator_->CloseAll("the server is shutting down");
    jobs_.arrivals().SetSink(nullptr);
    jobs_.reduced().SetSink(nullptr);
    follower_ = nullptr;
    // Streams that are still open are cancelled after this moment.
    if (server_ != nullptr) {
      server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
      server_->Wait();
    }
    // Last: one that is killed before and starts again has to know that it is done.
    ForgetWhatIsDone();
  }

  absl::Status Listen() {
    SYNCGRADS_RETURN_IF_ERROR(Check(options_));
    SYNCGRADS_RETURN_IF_ERROR(OpenState());
    if (options_.index == 0) {
      coordinator_ = std::make_unique<Coordinator>(
          CoordinatorOptions{options_.heartbeat, options_.lease, options_.stream_grace,
                             options_.join_timeout, [this] { return Available(); },
                             Generation{options_.first_generation}},
          PlanLog(options_.servers, options_.advertise, plan_.start.plan), jobs_, clock_, journal_);
      if (store_ != nullptr) coordinator_->Restore(*store_, plan_.start, plan_.records, held_);
      jobs_.arrivals().SetSink(
          [this](const Arrival& arrival) { coordinator_->Arrived(ServerIndex{0}, {arrival}); });
      jobs_.reduced().SetSink([this](const ReducedChunk& chunk) {
        MutexLock lock(mutex_);
        reduced_.push_back(chunk);
        changed_.NotifyAll();
      });
    }
    control_ = std::make_unique<ControlService>(coordinator_.get(), options_.coordinator,
                                                options_.server_token);
    if (options_.shared_memory) {
      absl::StatusOr<std::unique_ptr<MemoryExchange>> exchange =
          MemoryExchange::Start(jobs_, journal_);
      if (exchange.ok()) {
        exchange_ = *std::move(exchange);
      } else {
        journal_.Warn(absl::StrCat("shares no memory: ", exchange.status().message()));
      }
    }
    const std::string unix_socket = options_.unix_socket ? NewUnixSocket() : "";
    data_ = std::make_unique<DataService>(jobs_, exchange_.get(), unix_socket, clock_);
    admin_ = std::make_unique<AdminService>(jobs_, coordinator_.get(), ServerIndex{options_.index});

    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    // Where workers and servers look for it after a crash.
    const uint16_t kept_port = state_ == nullptr ? 0 : state_->last_port();
    const std::string address =
        absl::StrCat(options_.bind, ":", options_.port != 0 ? options_.port : kept_port);
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port_);
    if (!unix_socket.empty()) {
      builder.AddListeningPort(absl::StrCat("unix-abstract:", unix_socket),
                               grpc::InsecureServerCredentials());
    }
    builder.RegisterService(control_.get());
    builder.RegisterService(data_.get());
    builder.RegisterService(admin_.get());
    builder.SetMaxReceiveMessageSize(kMaxReceivedBytes);
    // As the client does, and for the same reason: a small window.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4 << 20);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 4 << 20);
    // Two servers on one port would share its connections between them.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    // Members and followers send pings to notice a dead link; they may.
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    if (!options_.congestion_control.empty()) {
      builder.SetOption(std::make_unique<CongestionControl>(options_.congestion_control));
    }
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      return absl::UnavailableError(absl::StrCat("cannot listen on ", address));
    }
    if (state_ != nullptr) {
      SYNCGRADS_RETURN_IF_ERROR(state_->KeepPort(static_cast<uint16_t>(port_)));
    }
    if (options_.index > 0) {
      follower_ = std::make_shared<Follower>(
          FollowerOptions{
              options_.coordinator,
              options_.coordinator_patience,
              {ServerIndex{options_.index},
               options_.advertise.empty() ? absl::StrCat(":", port_) : options_.advertise,
               plan_.start.incarnation, options_.server_token, held_, DrawIncarnation,
               [this] { return Available(); }}},
          jobs_, clock_, journal_);
      jobs_.arrivals().SetSink([weak = std::weak_ptr<Follower>(follower_)](const Arrival& arrival) {
        if (const auto follower = weak.lock()) follower->Arrived(arrival);
      });
      jobs_.reduced().SetSink(
          [weak = std::weak_ptr<Follower>(follower_)](const ReducedChunk& chunk) {
            if (const auto follower = weak.lock()) follower->Reduced(chunk);
          });
    }
    ticker_ = std::thread([this] { Tick(); });
    return absl::OkStatus();
  }

  uint16_t port() const override { return static_cast<uint16_t>(port_); }

  void Drain() override {
    if (coordinator_ != nullptr) coordinator_->Drain();
    server_->GetHealthCheckService()->SetServingStatus(false);
  }

  bool has_open_jobs() const override { return !jobs_.All().empty(); }

  bool all_jobs_done() const override {
    // In this order: what a member was told of is over when the coordinator answers.
    return (coordinator_ == nullptr || coordinator_->open_jobs() == 0) && jobs_.all_done();
  }

  absl::Status status() const override {
    if (absl::Status stored = jobs_.status(); !stored.ok()) return stored;
    return follower_ == nullptr ? absl::OkStatus() : follower_->status();
  }

 private:
  // The name of an abstract unix socket that this server can listen at; empty, and a
  // warning, if there is none. It is drawn, so that no other process's is taken for it.
  std::string NewUnixSocket() {
    const std::string name = absl::StrCat("syncgrads-streams-", getpid(), "-", absl::Hex(Draw()));
    // gRPC would not start at all, and not say why.
    const absl::Status listens = FdListener::Listen(name).status();
    if (listens.ok()) return name;
    journal_.Warn(absl::StrCat("takes no streams over a unix socket: ", listens.message()));
    return "";
  }

  // Takes back what is in the state directory, or begins with nothing.
  absl::Status OpenState() {
    plan_.start.plan = Draw();
    plan_.start.incarnation = DrawIncarnation();
    if (options_.state.empty()) return absl::OkStatus();
    SYNCGRADS_ASSIGN_OR_RETURN(state_, StateDirectory::Own(options_.state));
    StoredPlan stored;
    absl::StatusOr<std::unique_ptr<PlanStore>> store = PlanStore::Open(state_->plan_path(), stored);
    absl::Status damage = store.status();
    if (store.ok()) {
      std::vector<PlanChange> changes;
      for (const Stored& record : stored.records) {
        if (const auto* change = std::get_if<PlanChange>(&record)) changes.push_back(*change);
      }
      absl::StatusOr<std::vector<HeldRounds>> held =
          jobs_.Restore({state_.get(), store->get()}, stored.start, changes);
      damage = held.status();
      if (held.ok()) {
        held_ = *std::move(held);
        plan_ = std::move(stored);
        store_ = *std::move(store);
        journal_.Note(absl::StrCat("start ", state_->start(), " on the state in ", state_->path(),
                                   ": ", plan_.records.size(), " records, ", jobs_.All().size(),
                                   " open jobs"));
        return absl::OkStatus();
      }
    }
    if (!absl::IsNotFound(damage) && !absl::IsDataLoss(damage)) return damage;
    if (absl::IsDataLoss(damage)) {
      journal_.Warn(
          absl::StrCat("the state is damaged, and nothing of it is used: ", damage.message(),
                       "; it is set aside in ", state_->path(), "/unusable"));
      SYNCGRADS_RETURN_IF_ERROR(state_->SetAside());
    }
    state_->RemoveGroups();
    SYNCGRADS_ASSIGN_OR_RETURN(store_, PlanStore::Create(state_->plan_path(), plan_.start));
    SYNCGRADS_ASSIGN_OR_RETURN(held_, jobs_.Restore({state_.get(), store_.get()}, plan_.start, {}));
    return absl::OkStatus();
  }

  // A server that ends in order is not done when it starts again.
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
    jobs_.StartAfresh(start);
  }

  // Bytes that a group may take: its results are in the state directory, if there
  // is one.
  uint64_t Available() const {
    return state_ == nullptr ? AvailableMemory() : std::min(AvailableMemory(), state_->room());
  }

  void Tick() {
    MutexLock lock(mutex_);
    absl::Time next = absl::Now() + kTick;
    while (!stopping_) {
      if (reduced_.empty()) changed_.WaitUntil(mutex_, next);
      if (stopping_) return;
      const std::vector<ReducedChunk> reduced = std::exchange(reduced_, {});
      mutex_.Unlock();
      // Not by who brought them: that may be the coordinator itself.
      if (!reduced.empty()) coordinator_->Reduced(ServerIndex{0}, reduced);
      if (absl::Now() < next) {
        mutex_.Lock();
        continue;
      }
      next = absl::Now() + kTick;
      if (coordinator_ != nullptr) coordinator_->Tick();
      if (follower_ != nullptr) follower_->Tick();
      stall_watch_.Tick();
      jobs_.ReportAlerts();
      mutex_.Lock();
    }
  }

  const ServerOptions options_;
  Journal& journal_;
  const Clock& clock_;
  // Outlives the threads that close rounds.
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // What this server's chunks tell its coordinator.
  std::vector<ReducedChunk> reduced_ ABSL_GUARDED_BY(mutex_);
  Closers closers_;
  std::unique_ptr<StateDirectory> state_;
  std::unique_ptr<PlanStore> store_;
  // As it was at the start.
  StoredPlan plan_;
  std::vector<HeldRounds> held_;
  Jobs jobs_;
  StallWatch stall_watch_;
  std::unique_ptr<Coordinator> coordinator_;
  std::shared_ptr<Follower> follower_;
  std::unique_ptr<MemoryExchange> exchange_;
  std::unique_ptr<ControlService> control_;
  std::unique_ptr<DataService> data_;
  std::unique_ptr<AdminService> admin_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
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
