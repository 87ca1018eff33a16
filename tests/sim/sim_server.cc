#include "tests/sim/sim_server.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/control.pb.h"
#include "server/core/coordinator/local_server.h"
#include "server/service/control/followed_plan.h"
#include "server/service/control/signals.h"
#include "tests/sim/freight.h"
#include "tests/sim/sim_ends.h"

namespace syncgrads::sim {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);
constexpr absl::Duration kFirstBackoff = absl::Milliseconds(50);
constexpr absl::Duration kLongestBackoff = absl::Seconds(1);
// The longest time by which server 0 applies a change later than its coordinator decides it.
constexpr absl::Duration kLongestApplying = absl::Milliseconds(5);
// The available memory that a server reports; more than any schedule needs.
constexpr uint64_t kMemory = uint64_t{1} << 40;

}  // namespace

// Watches what the server stores. The server may die before and after each store.
class SimServer::WatchedStore : public server::Store {
 public:
  WatchedStore(server::Store& store, SimServer& server) : store_(store), server_(server) {}

  absl::Status Append(const server::Stored& record) override {
    server_.Touch();
    const absl::Status stored = store_.Append(record);
    if (stored.ok()) {
      server_.checker_.OnStored(ServerIndex{server_.options_.index}, record);
    }
    server_.Touch();
    return stored;
  }
  absl::Status Reset(const server::PlanStart& start) override {
    server_.Touch();
    const absl::Status stored = store_.Reset(start);
    server_.Touch();
    return stored;
  }

 private:
  server::Store& store_;
  SimServer& server_;
};

// The connection to the coordinator. It does the same as server/service/control/follower.h.
class SimServer::Following {
 public:
  explicit Following(SimServer& server)
      : server_(server), plan_(OptionsOf(server), *server.jobs_) {}

  void Tick() {
    if (stream_ != nullptr || server_.world_.Now() < next_attempt_) return;
    Stream::ClientEnd end;
    end.on_written = [] {};
    end.on_message = [this](Freight& freight) {
      OnSignal(static_cast<Signal<v1::PlanSignal>&>(freight).message);
    };
    end.on_closed = [this](const absl::Status& status) { OnClosed(status); };
    stream_ = std::make_shared<Stream>(server_.network_, server_, AddressOf(0), /*loose=*/false,
                                       std::move(end));
    stream_->Start([](std::shared_ptr<Stream> stream) {
      auto& service = dynamic_cast<Service&>(*stream->server());
      return service.AcceptFollow(std::move(stream));
    });
    for (v1::ServerSignal& signal : plan_.Greeting()) Send(std::move(signal));
  }

  void Arrived(const server::Arrival& arrival) {
    if (stream_ == nullptr) return;
    for (v1::Arrived& arrived : server::ToProto(std::vector<server::Arrival>{arrival})) {
      v1::ServerSignal signal;
      *signal.mutable_arrived() = std::move(arrived);
      Send(std::move(signal));
    }
  }
  void Prepared(const server::GroupPrepared& prepared) {
    if (stream_ != nullptr) Send(server::ToProto(prepared));
  }
  void Reduced(const server::ReducedChunk& chunk) {
    if (stream_ == nullptr) return;
    v1::ServerSignal signal;
    *signal.mutable_reduced() = server::ToProto(std::vector<server::ReducedChunk>{chunk});
    Send(std::move(signal));
  }

 private:
  static server::FollowedPlanOptions OptionsOf(SimServer& server) {
    return {.index = ServerIndex{server.index()},
            .address = AddressOf(server.index()),
            .incarnation = server.plan_.start.incarnation,
            .held = server.held_,
            .draw_incarnation = [&server] { return server.DrawIncarnation(); },
            .available_memory = [] { return kMemory; }};
  }

  void Send(v1::ServerSignal signal) {
    server_.Touch();
    stream_->Write(std::make_shared<Signal<v1::ServerSignal>>(std::move(signal)));
  }

  void OnSignal(const v1::PlanSignal& signal) {
    absl::StatusOr<std::vector<v1::ServerSignal>> replies = plan_.Apply(signal);
    if (!replies.ok()) {
      return server_.world_.Fail(
          absl::StrCat("a change of plan is not applied: ", replies.status().message()));
    }
    backoff_ = kFirstBackoff;
    for (v1::ServerSignal& reply : *replies) Send(std::move(reply));
  }

  void OnClosed(const absl::Status& status) {
    stream_ = nullptr;
    next_attempt_ = server_.world_.Now() + backoff_;
    backoff_ = std::min(2 * backoff_, kLongestBackoff);
    if (!absl::IsDataLoss(status)) return;
    server_.Warn(absl::StrCat("begins with nothing: ", status.message()));
    plan_.Forget();
  }

  SimServer& server_;
  server::FollowedPlan plan_;
  std::shared_ptr<Stream> stream_;
  absl::Time next_attempt_ = absl::InfinitePast();
  absl::Duration backoff_ = kFirstBackoff;
};

SimServer::SimServer(Options options, World& world, Network& network, Checker& checker)
    : Process(absl::StrCat("server ", options.index)),
      options_(std::move(options)),
      world_(world),
      network_(network),
      checker_(checker) {}

SimServer::~SimServer() = default;

std::string SimServer::AddressOf(uint32_t index) { return absl::StrCat("server-", index, ":1"); }

Incarnation SimServer::DrawIncarnation() { return Incarnation{world_.random().Next() | 1}; }

void SimServer::Start() {
  const ServerIndex self{options_.index};
  jobs_ = std::make_unique<server::Jobs>(self, world_, this);
  OpenState();
  if (options_.index == 0) {
    server::CoordinatorOptions options = options_.coordinator;
    // A coordinator without state begins with a generation that no predecessor can have used.
    options.first_generation = Generation{static_cast<uint64_t>(absl::ToUnixMillis(world_.Now()))};
    coordinator_ = std::make_unique<server::Coordinator>(
        options, server::PlanLog(options_.servers, AddressOf(0), plan_.start.plan), *jobs_, world_,
        *this);
    coordinator_->Restore(*store_, plan_.start, plan_.records);
    jobs_->arrivals().SetSink([this](const server::Arrival& arrival) {
      coordinator_->Arrived(ServerIndex{0}, {arrival});
    });
    jobs_->reduced().SetSink([this](const server::ReducedChunk& chunk) {
      coordinator_->Reduced(ServerIndex{0}, {chunk});
    });
    jobs_->prepared().SetSink([this](const server::GroupPrepared& prepared) {
      coordinator_->Prepared(ServerIndex{0}, prepared);
    });
    coordinator_->AttachOwn(
        std::make_shared<server::LocalServer>(
            *jobs_, *coordinator_,
            [this](std::function<void()> closure) { RunLater(std::move(closure)); }),
        held_);
    for (const server::StoreFailure& failure : jobs_->StoreFailures()) {
      coordinator_->StoreFailed(ServerIndex{0}, failure);
    }
  } else {
    following_ = std::make_unique<Following>(*this);
    jobs_->arrivals().SetSink(
        [this](const server::Arrival& arrival) { following_->Arrived(arrival); });
    jobs_->reduced().SetSink(
        [this](const server::ReducedChunk& chunk) { following_->Reduced(chunk); });
    jobs_->prepared().SetSink(
        [this](const server::GroupPrepared& prepared) { following_->Prepared(prepared); });
  }
  network_.Listen(AddressOf(options_.index), this);
  Tick();
}

// Does the same as Server in server/server.cc.
void SimServer::OpenState() {
  plan_ = {};
  held_.clear();
  plan_.start.plan = world_.random().Next() | 1;
  plan_.start.incarnation = DrawIncarnation();
  directory_ = *server::StateDirectory::Own(options_.state, [] { return kMemory; });
  server::StoredPlan stored;
  auto store = server::PlanStore::Open(directory_->plan_path(), stored, StoreOptions());
  if (store.ok()) {
    plan_store_ = *std::move(store);
    store_ = std::make_unique<WatchedStore>(*plan_store_, *this);
    std::vector<server::PlanChange> changes;
    for (const server::Stored& record : stored.records) {
      if (const auto* change = std::get_if<server::PlanChange>(&record)) changes.push_back(*change);
    }
    held_ = *jobs_->Restore({directory_.get(), StoreOfJobs()}, stored.start, changes);
    plan_ = std::move(stored);
    Note(absl::StrCat("starts on ", plan_.records.size(), " records"));
    CheckDamage();
    return;
  }
  if (!absl::IsNotFound(store.status())) {
    world_.Fail(absl::StrCat("the plan is damaged: ", store.status().message()));
  }
  directory_->RemoveGroups();
  plan_store_ = *server::PlanStore::Create(directory_->plan_path(), plan_.start, StoreOptions());
  store_ = std::make_unique<WatchedStore>(*plan_store_, *this);
  held_ = *jobs_->Restore({directory_.get(), StoreOfJobs()}, plan_.start, {});
}

void SimServer::CheckDamage() {
  const bool damaged = std::exchange(damaged_, false);
  bool found = false;
  for (const server::StoreFailure& failure : jobs_->StoreFailures()) {
    if (!absl::IsDataLoss(failure.error)) continue;
    found = true;
    Warn(absl::StrCat("the state is damaged: ", failure.error.message()));
  }
  if (damaged && !found && !jobs_->All().empty()) {
    world_.Fail("a round with a bad checksum was passed over, and an older one used");
  }
  // Until the coordinator has closed the job, each start finds it again.
  const bool known = std::exchange(lost_, found);
  if (found && !damaged && !known) world_.Fail("state is damaged that nobody has damaged");
}

// The log is compacted often.
server::PlanStoreOptions SimServer::StoreOptions() {
  return {.slack = 2000,
          .max_steps = 16,
          .oldest_epochs = [this] { return jobs_->OldestEpochs(); },
          .run =
              [this](std::function<void()> closure) {
                const absl::Duration delay =
                    world_.random().Between(absl::ZeroDuration(), kLongestApplying);
                world_.After(*this, delay, std::move(closure));
              }};
}

server::Store* SimServer::StoreOfJobs() const {
  return options_.index == 0 ? nullptr : store_.get();
}

// Closures run in the order in which they were passed.
void SimServer::RunLater(std::function<void()> closure) {
  const absl::Duration delay = world_.random().Between(absl::ZeroDuration(), kLongestApplying);
  run_at_ = std::max(run_at_, world_.Now() + delay);
  world_.After(*this, run_at_ - world_.Now(), std::move(closure));
}

void SimServer::Tick() {
  if (coordinator_ != nullptr) coordinator_->Tick();
  if (following_ != nullptr) following_->Tick();
  world_.After(*this, kTick, [this] { Tick(); });
}

void SimServer::SetLearningRate(double factor) {
  if (!running()) return;
  const absl::StatusOr<uint64_t> set =
      coordinator_->SetLearningRate("job", "secret", factor, "the operator");
  Note(absl::StrCat("the learning rate factor ", factor, ": ",
                    set.ok() ? absl::StrCat("epoch ", *set) : set.status().ToString()));
}

void SimServer::DieAfter(uint64_t touches, absl::Duration down) {
  mortal_ = true;
  touches_left_ = touches;
  down_ = down;
  // Kills the server even if it neither stores nor sends anything.
  world_.After(*this, absl::Seconds(1), [this] { throw ProcessDied{this}; });
}

void SimServer::Touch() {
  if (mortal_ && touches_left_-- == 0) throw ProcessDied{this};
}

void SimServer::OnDied() {
  Warn("is killed");
  ++deaths_;
  Stop();
  world_.After(*this, down_, [this] { Start(); });
}

void SimServer::Stop() {
  mortal_ = false;
  ForgetEvents();
  network_.Listen(AddressOf(options_.index), nullptr);
  network_.ServerDied(*this);
  network_.ClientDied(*this, /*tell=*/false);
  if (std::exchange(damage_at_death_, false)) DamageState();
  following_ = nullptr;
  coordinator_ = nullptr;
  jobs_ = nullptr;
  store_ = nullptr;
  plan_store_ = nullptr;
  directory_ = nullptr;
}

void SimServer::DamageState() {
  const std::shared_ptr<const server::Slot> slot = newest_sent_.lock();
  if (slot == nullptr || slot->values.size() == 0) return;
  // Flips a bit in the mapped memory, as if the kernel had read a bad page.
  const_cast<std::byte*>(slot->values.data())[0] ^= std::byte{1};
  Warn("the newest round that was sent is damaged");
  damaged_ = true;
  checker_.OnStateLost();
}

std::shared_ptr<ServerEnd> SimServer::AcceptData(std::shared_ptr<Stream> stream) {
  return std::make_shared<ExchangeEnd>(std::move(stream), *jobs_, world_, checker_, *this);
}

std::shared_ptr<ServerEnd> SimServer::AcceptControl(std::shared_ptr<Stream> stream) {
  return std::make_shared<JoinEnd>(std::move(stream), coordinator_.get(), *this);
}

std::shared_ptr<ServerEnd> SimServer::AcceptFollow(std::shared_ptr<Stream> stream) {
  return std::make_shared<FollowEnd>(std::move(stream), coordinator_.get(), checker_, *this);
}

std::vector<RoundWait> SimServer::Explain(const std::string& job, GroupId group) {
  const std::shared_ptr<server::Job> found = jobs_->Find(job);
  return found == nullptr ? std::vector<RoundWait>() : found->Explain(group);
}

void SimServer::Note(const std::string& line) {
  if (world_.tracing()) world_.Trace(absl::StrCat(name(), ": ", line));
}

void SimServer::Debug(const std::string& line) { Note(line); }

void SimServer::Warn(const std::string& line) { Note(absl::StrCat("! ", line)); }

}  // namespace syncgrads::sim
