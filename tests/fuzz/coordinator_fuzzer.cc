// Passes a sequence of arbitrary messages to a coordinator and the jobs of its server, as the
// services do after protobuf has parsed them: streams of workers that begin and end, their signals
// and pushes, calls of an operator, a second server, and time that passes. Beside them, the worker
// of another job trains: its job stays open, and its results are right.
//
// An input is a list of steps: a byte for the kind, a byte for the stream, and, for a message, its
// length in two bytes and the message.

#include <google/protobuf/stubs/logging.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/contract/contract.h"
#include "common/contract/signals.h"
#include "common/signals/protocol.h"
#include "common/wire/frame.h"
#include "proto/control.pb.h"
#include "server/core/coordinator/coordinator.h"
#include "server/core/jobs/jobs.h"
#include "server/service/control/signals.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/server/core/coordinator/applied_coordinator.h"

namespace syncgrads::fuzz {
namespace {

constexpr size_t kStreams = 4;
// Below server::kMinBackgroundBytes, so that no other thread allocates memory.
constexpr uint64_t kMemory = uint64_t{2} << 20;
constexpr size_t kMaxSteps = 64;

enum Step : uint8_t {
  kHello,
  kSignal,
  kBreak,
  kTime,
  kDataHello,
  kPush,
  kEvict,
  kReadmit,
  kRate,
  kServerHello,
  kServerSignal,
  kServerBreak,
  kSteps,
};

class SetClock : public Clock {
 public:
  absl::Time Now() const override { return now; }
  absl::Time now = absl::FromUnixSeconds(1'700'000'000);
};

class NoJournal : public server::Journal {
 public:
  void Debug(const std::string&) override {}
  void Note(const std::string&) override {}
  void Warn(const std::string&) override {}
};

// A worker's Join stream. Each signal is written as the service writes it.
class Link : public server::MemberLink {
 public:
  void Send(Generation generation, const JobSignal::Kind& signal) override {
    newest_generation = generation;
    Require(ToProto(generation, signal).ByteSizeLong() > 0, "a signal is written");
    if (const auto* registered = std::get_if<Registered>(&signal)) plan = registered->plan;
    expelled = expelled || std::holds_alternative<Expelled>(signal);
  }
  Generation newest_generation{};
  std::shared_ptr<const GroupPlan> plan;
  bool expelled = false;
};

class NoServer : public server::ServerLink {
 public:
  void Send(const server::PlanChange& change) override {
    Require(server::ToProto(change).ByteSizeLong() > 0, "a change is written");
  }
  void Prepare(const server::GroupPreparation& preparation) override {
    Require(server::ToProto(preparation).ByteSizeLong() > 0, "a preparation is written");
  }
};

// Reads answers as a worker does.
class Sink : public server::AnswerSink {
 public:
  void Send(std::shared_ptr<const server::RoundResult> result, bool with_payload) override {
    with_payload = with_payload && !result->payload.empty();
    const std::string& header = with_payload ? result->header : result->bare_header;
    Pieces message = {{reinterpret_cast<const std::byte*>(header.data()), header.size()}};
    if (with_payload) message.push_back(result->payload);
    const absl::StatusOr<UpdateFrame> frame = DecodeUpdate(message);
    Require(frame.ok(), "an answer is read");
    RequireExplained(frame->header.error);
    if (!frame->header.error.ok() || !with_payload) return;
    payload.emplace();
    for (const absl::Span<const std::byte> piece : frame->payload) {
      payload->append(reinterpret_cast<const char*>(piece.data()), piece.size());
    }
  }
  // Of the last answer that is no error.
  std::optional<std::string> payload;
};

class World {
 public:
  // The second server, if there is one, may stay away or lie, and then the other job waits too.
  explicit World(bool alone)
      : alone_(alone),
        own_(ServerIndex{0}, clock_),
        coordinator_(Options(), server::PlanLog(alone ? 1 : 2, "10.0.0.0:7000"), own_, clock_,
                     journal_) {
    coordinator_.Start();
    Hello hello;
    hello.job = "honest";
    hello.token = "honest";
    hello.name = "h";
    hello.incarnation = Incarnation{1};
    hello.world_size = 1;
    const auto key = coordinator_.Admit(hello, honest_);
    Require(key.ok() || !alone, "the honest worker is admitted");
    if (!alone) return;
    honest_key_ = *key;
    coordinator_.Register(honest_key_, 1, {"g", {{"w", DType::kF32, {4}}}, Reduction::kAverage, 0});
    Require(honest_->plan != nullptr, "the honest group is registered");
    Train();
  }

  void Run(Choices& choices) {
    for (size_t steps = 0; steps < kMaxSteps && !choices.empty(); ++steps) Take(choices);
    if (alone_) Train();
  }

 private:
  struct Worker {
    std::shared_ptr<Link> link;
    std::optional<server::Coordinator::MemberKey> key;
    std::shared_ptr<server::Job> job;
    DataHello data;
  };

  static server::CoordinatorOptions Options() {
    // All of the time that a step lets pass counts.
    return {.longest_gap = absl::InfiniteDuration(), .available_memory = [] { return kMemory; }};
  }

  // Trains one round of the other job.
  void Train() {
    ++round_;
    PushHeader header;
    header.generation = honest_->newest_generation;
    header.group = honest_->plan->id;
    header.round = Round{round_};
    header.member = honest_key_.member;
    header.incarnation = Incarnation{1};
    header.epoch = 1;
    const float values[] = {static_cast<float>(round_), -1, 0.5, 1e30f};
    const auto bytes =
        std::make_shared<std::string>(reinterpret_cast<const char*>(values), sizeof values);
    const auto sink = std::make_shared<Sink>();
    const auto job = own_.Find("honest");
    Require(job != nullptr && !honest_->expelled, "the honest job stays open");
    job->Push(header, PayloadOf(bytes, *bytes), sink);
    Require(sink->payload == *bytes, "the honest job gets its result");
  }

  static server::Payload PayloadOf(std::shared_ptr<const std::string> owner,
                                   absl::string_view bytes) {
    return {{{reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}}, std::move(owner)};
  }

  template <typename Proto>
  static std::optional<Proto> Parsed(absl::string_view bytes) {
    Proto proto;
    if (!proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return std::nullopt;
    return proto;
  }

  void Take(Choices& choices) {
    const uint8_t kind = choices.Byte() % kSteps;
    const uint8_t number = choices.Byte();
    Worker& worker = workers_[number % kStreams];
    if (kind == kBreak) return Break(worker);
    if (kind == kTime) return Advance(absl::Milliseconds(1 << (number % 21)));
    if (kind == kServerBreak) return ServerBreaks();
    const auto bytes = std::make_shared<const std::string>(choices.Take(choices.Number(2)));
    switch (kind) {
      case kHello:
        return Join(worker, *bytes);
      case kSignal:
        return Signal(worker, *bytes);
      case kDataHello:
      case kPush:
        return Push(worker, bytes);
      case kEvict:
        return RequireExplained(coordinator_.Evict("iris", "token", *bytes, "reason"));
      case kReadmit:
        return RequireExplained(coordinator_.Readmit("iris", "token", *bytes));
      case kRate:
        return RequireExplained(
            coordinator_.SetLearningRate("iris", "token", number / 16.0, *bytes).status());
      case kServerHello:
        return Attach(*bytes);
      default:
        return ServerSays(*bytes);
    }
  }

  void Join(Worker& worker, const std::string& bytes) {
    const auto proto = Parsed<v1::Hello>(bytes);
    if (!proto.has_value()) return;
    Break(worker);
    worker.link = std::make_shared<Link>();
    auto key = coordinator_.Admit(FromProto(*proto), worker.link);
    RequireExplained(key.status());
    if (key.ok()) worker.key = *std::move(key);
  }
  void Signal(Worker& worker, const std::string& bytes) {
    const auto proto = Parsed<v1::WorkerSignal>(bytes);
    if (!proto.has_value() || !worker.key.has_value()) return;
    RequireExplained(server::Dispatch(*proto, *worker.key, coordinator_));
    // Dispatch calls the coordinator's own methods, which only queue changes.
    coordinator_.Tick();
  }
  void Break(Worker& worker) {
    if (worker.key.has_value()) coordinator_.LinkBroken(*worker.key, worker.link.get());
    worker = {};
  }
  void Advance(absl::Duration time) {
    clock_.now += time;
    if (alone_) coordinator_.Heartbeat(honest_key_);
    coordinator_.Tick();
  }
  // A message of a data stream, whose first one must be a hello.
  void Push(Worker& worker, std::shared_ptr<const std::string> bytes) {
    absl::StatusOr<PushFrame> frame = DecodePush(PayloadOf(bytes, *bytes).pieces);
    if (!frame.ok()) return;
    if (frame->header.hello.has_value()) {
      auto job = own_.Find(frame->header.hello->job);
      if (job == nullptr) return;
      const auto presence = job->Admit(*frame->header.hello);
      RequireExplained(presence.status());
      if (!presence.ok()) return;
      worker.data = *frame->header.hello;
      worker.job = std::move(job);
      return;
    }
    if (worker.job == nullptr) return;
    frame->header.member = worker.data.member;
    frame->header.incarnation = worker.data.incarnation;
    worker.job->Push(frame->header, {std::move(frame->payload), bytes}, std::make_shared<Sink>());
    coordinator_.Tick();
  }
  void Attach(const std::string& bytes) {
    const auto proto = Parsed<v1::ServerHello>(bytes);
    if (!proto.has_value()) return;
    RequireExplained(coordinator_.AttachServer(
        {ServerIndex{proto->index()}, proto->address(), Incarnation{proto->incarnation()},
         proto->applied(), proto->plan()},
        other_));
  }
  void ServerBreaks() {
    if (!alone_) coordinator_.DetachServer(ServerIndex{1}, other_.get());
  }
  void ServerSays(const std::string& bytes) {
    const auto proto = Parsed<v1::ServerSignal>(bytes);
    if (!proto.has_value() || alone_) return;
    RequireExplained(server::Dispatch(*proto, ServerIndex{1}, other_.get(), coordinator_));
    coordinator_.Tick();
  }

  const bool alone_;
  SetClock clock_;
  NoJournal journal_;
  server::Jobs own_;
  server::AppliedCoordinator coordinator_;
  const std::shared_ptr<Link> honest_ = std::make_shared<Link>();
  server::Coordinator::MemberKey honest_key_;
  uint64_t round_ = 0;
  Worker workers_[kStreams];
  const std::shared_ptr<NoServer> other_ = std::make_shared<NoServer>();
};

std::string StepOf(Step step, int number, absl::string_view bytes) {
  return absl::StrCat(Encoded(step, 1), Encoded(number, 1), Encoded(bytes.size(), 2), bytes);
}
std::string StepOf(Step step, int number) {
  return absl::StrCat(Encoded(step, 1), Encoded(number, 1));
}

std::string HelloOf(int number, uint32_t world, uint32_t max_workers = 0) {
  Hello hello;
  hello.job = "iris";
  hello.token = "token";
  hello.name = absl::StrCat("w", number);
  hello.incarnation = Incarnation{static_cast<uint64_t>(5 + number)};
  hello.world_size = world;
  hello.host = "host";
  hello.max_workers = max_workers;
  hello.min_workers = max_workers > 0 ? 1 : 0;
  if (max_workers > 0) hello.step_timeout = absl::Seconds(5);
  return StepOf(kHello, number, ToProto(hello).SerializeAsString());
}
std::string SignalOf(int number, const WorkerSignal& signal) {
  return StepOf(kSignal, number, ToProto(signal).SerializeAsString());
}
std::string RegisterOf(int number, UpdateRule rule, Policy policy) {
  GroupSpec spec{"model", {{"kernel", DType::kF32, {3, 4}}}, std::move(rule), 0};
  spec.policy = policy;
  return SignalOf(number, RegisterGroup{1, spec, 0});
}
std::string DataHelloOf(int number) {
  PushHeader header;
  header.hello = DataHello{.protocol_version = kProtocolVersion,
                           .job = "iris",
                           .token = "token",
                           .member = MemberId{static_cast<uint32_t>(number)},
                           .incarnation = Incarnation{static_cast<uint64_t>(5 + number)}};
  return StepOf(kDataHello, number, EncodeHeader(header, 0));
}
std::string PushOf(int number, uint64_t round) {
  PushHeader header;
  // The honest job is the first one, and this the second.
  header.generation = Generation{2};
  header.round = Round{round};
  header.epoch = 1;
  const std::string payload(48, '\1');
  return StepOf(kPush, number, EncodeHeader(header, payload.size()) + payload);
}

std::string Both(const std::function<std::string(int)>& step) { return step(0) + step(1); }

// Two workers train, one ends its data, and both leave.
std::string TrainingOf(UpdateRule rule, Policy policy, uint32_t max_workers) {
  const uint64_t first = ToNumber(FirstRound(rule));
  std::string run = Both([&](int i) { return HelloOf(i, 2, max_workers); });
  run += Both([&](int i) { return RegisterOf(i, rule, policy); });
  if (max_workers > 0) run += Both([](int i) { return SignalOf(i, Ready{2, GroupId{0}}); });
  run += Both(DataHelloOf);
  for (uint64_t round = first; round < first + 2; ++round) {
    run += Both([&](int i) { return PushOf(i, round); });
    run += Both([&](int i) {
      return SignalOf(i, Heartbeat{.progress = {{GroupId{0}, Round{round}}}, .figures = {}});
    });
  }
  run += StepOf(kTime, 10);
  run += SignalOf(0, SetLearningRate{3, 0.5});
  run += SignalOf(0, EndGroup{4, GroupId{0}, Round{first + 1}, false});
  run += SignalOf(0, CheckpointReport{first, std::string("ckpt-1")});
  run += StepOf(kBreak, 1) + HelloOf(2, 2, max_workers);
  run += StepOf(kTime, 16);
  run += SignalOf(0, Leave{5, {{GroupId{0}, Round{first + 1}}}});
  return run;
}

std::string WithServer() {
  v1::ServerHello hello;
  hello.set_index(1);
  hello.set_address("10.0.0.1:7000");
  hello.set_incarnation(9);
  v1::ServerSignal room;
  room.set_available_bytes(1 << 20);
  std::string run = StepOf(kServerHello, 0, hello.SerializeAsString()) +
                    StepOf(kServerSignal, 0, room.SerializeAsString()) +
                    Both([](int i) { return HelloOf(i, 2, 3); }) +
                    Both([](int i) { return RegisterOf(i, Optimizer(Adam{}), Sync{}); });
  for (uint64_t sequence = 1; sequence < 6; ++sequence) {
    v1::ServerSignal applied;
    applied.set_applied(sequence);
    run += StepOf(kServerSignal, 0, applied.SerializeAsString());
    v1::ServerSignal open;
    open.mutable_open_rounds()->set_sequence(sequence);
    run += StepOf(kServerSignal, 0, open.SerializeAsString());
  }
  v1::ServerSignal prepared;
  prepared.mutable_prepared()->set_key(1);
  return run + StepOf(kServerSignal, 0, prepared.SerializeAsString()) + StepOf(kServerBreak, 0);
}

}  // namespace

void Fuzz(absl::string_view input) {
  // Protobuf would log each string that is not UTF-8.
  static const google::protobuf::LogSilencer silencer;
  Choices choices(input);
  World world(choices.Byte() % 2 == 0);
  world.Run(choices);
}

std::vector<std::string> Seeds() {
  const std::string alone = Encoded(0, 1);
  return {
      alone + TrainingOf(Reduction::kAverage, Sync{}, 0),
      alone + TrainingOf(Reduction::kAverage, Sync{}, 3),
      alone + TrainingOf(Reduction::kAverage, Quorum{.least = 1}, 3),
      alone + TrainingOf(Reduction::kSum, First{}, 0),
      alone + TrainingOf(Optimizer(Adam{}), Sync{}, 3),
      alone + TrainingOf(Optimizer(Lamb{}), Sync{}, 0),
      alone + TrainingOf(Optimizer(Sgd{}), Staleness{}, 3),
      alone + TrainingOf(Gather{}, Sync{}, 0),
      alone + HelloOf(0, 2, 3) + HelloOf(1, 2, 3) + StepOf(kEvict, 0, "w1") + HelloOf(1, 2, 3) +
          StepOf(kReadmit, 0, "w1") + HelloOf(1, 2, 3) + StepOf(kRate, 8, "me") + StepOf(kTime, 20),
      Encoded(1, 1) + WithServer(),
  };
}

}  // namespace syncgrads::fuzz
