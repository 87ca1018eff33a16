#include "common/contract/signals.h"

#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/contract/contract.h"
#include "common/contract/figures.h"
#include "common/contract/milliseconds.h"
#include "common/signals/protocol.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

struct WorkerSignalWriter {
  v1::WorkerSignal& out;

  void operator()(const Hello& hello) const { *out.mutable_hello() = ToProto(hello); }
  void operator()(const Heartbeat& heartbeat) const {
    v1::Heartbeat& proto = *out.mutable_heartbeat();
    for (const GroupRound& round : heartbeat.progress) *proto.add_progress() = ToProto(round);
    if (heartbeat.figures.has_value()) *proto.mutable_figures() = ToProto(*heartbeat.figures);
  }
  void operator()(const RegisterGroup& group) const {
    v1::RegisterGroup& proto = *out.mutable_register_group();
    proto.set_request(group.request);
    *proto.mutable_spec() = ToProto(group.spec);
    proto.set_link_rate(group.link_rate);
  }
  void operator()(const EndGroup& end) const {
    v1::EndGroup& proto = *out.mutable_end_group();
    proto.set_request(end.request);
    proto.set_group(ToNumber(end.group));
    proto.set_last_round(ToNumber(end.last_round));
    proto.set_without_updates(end.without_updates);
  }
  void operator()(const Leave& leave) const {
    v1::Leave& proto = *out.mutable_leave();
    proto.set_request(leave.request);
    for (const GroupRound& round : leave.last_rounds) *proto.add_last_rounds() = ToProto(round);
  }
  void operator()(const Ready& ready) const {
    v1::Ready& proto = *out.mutable_ready();
    proto.set_request(ready.request);
    proto.set_group(ToNumber(ready.group));
  }
  void operator()(const SetLearningRate& rate) const {
    out.mutable_set_learning_rate()->set_request(rate.request);
    out.mutable_set_learning_rate()->set_factor(rate.factor);
  }
  void operator()(const CheckpointReport& report) const {
    v1::CheckpointReport& proto = *out.mutable_checkpoint();
    proto.set_step(report.step);
    if (report.path.ok()) {
      proto.set_path(*report.path);
    } else {
      *proto.mutable_error() = ToProto(report.path.status());
    }
  }
};

struct JobSignalWriter {
  v1::JobSignal& out;

  void operator()(const Welcome& welcome) const {
    v1::Welcome& proto = *out.mutable_welcome();
    proto.set_protocol_version(welcome.protocol_version);
    proto.set_member(ToNumber(welcome.member));
    proto.set_name(welcome.name);
    proto.mutable_servers()->Assign(welcome.servers.begin(), welcome.servers.end());
    proto.set_heartbeat_interval_ms(absl::ToInt64Milliseconds(welcome.heartbeat_interval));
    proto.set_lease_ms(absl::ToInt64Milliseconds(welcome.lease));
    proto.set_stream_grace_ms(absl::ToInt64Milliseconds(welcome.stream_grace));
  }
  void operator()(const EpochBegun& begun) const { *out.mutable_epoch() = ToProto(*begun.epoch); }
  void operator()(const Registered& registered) const {
    out.mutable_registered()->set_request(registered.request);
    *out.mutable_registered()->mutable_plan() = ToProto(*registered.plan);
  }
  void operator()(const Done& done) const { out.mutable_done()->set_request(done.request); }
  void operator()(const Refused& refused) const {
    out.mutable_refused()->set_request(refused.request);
    *out.mutable_refused()->mutable_error() = ToProto(refused.error);
  }
  void operator()(const Waiting& waiting) const {
    out.mutable_waiting()->set_reason(waiting.reason);
  }
  void operator()(const Expelled& expelled) const {
    *out.mutable_expelled() = ToProto(expelled.reason);
  }
  void operator()(const CheckpointRequested&) const { out.mutable_checkpoint_requested(); }
  void operator()(const TraceRequested& asked) const {
    out.mutable_trace_requested()->set_trace(asked.trace);
    // A length of 0 ends a recording, so a short one is rounded up.
    out.mutable_trace_requested()->set_length_ms(static_cast<uint32_t>(
        absl::ToInt64Milliseconds(absl::Ceil(asked.length, absl::Milliseconds(1)))));
  }
  void operator()(const Farewell& farewell) const {
    out.mutable_done()->set_request(farewell.request);
  }
};

absl::StatusOr<Heartbeat> FromProto(const v1::Heartbeat& proto) {
  Heartbeat heartbeat{syncgrads::FromProto(proto.progress()), std::nullopt};
  if (proto.has_figures()) {
    SYNCGRADS_ASSIGN_OR_RETURN(heartbeat.figures, syncgrads::FromProto(proto.figures()));
  }
  return heartbeat;
}

CheckpointReport FromProto(const v1::CheckpointReport& proto) {
  CheckpointReport report{proto.step(), proto.path()};
  if (proto.has_error()) report.path = syncgrads::FromProto(proto.error());
  return report;
}

Welcome FromProto(const v1::Welcome& proto) {
  Welcome welcome;
  welcome.protocol_version = proto.protocol_version();
  welcome.member = MemberId{proto.member()};
  welcome.name = proto.name();
  welcome.servers.assign(proto.servers().begin(), proto.servers().end());
  welcome.heartbeat_interval = absl::Milliseconds(proto.heartbeat_interval_ms());
  welcome.lease = absl::Milliseconds(proto.lease_ms());
  welcome.stream_grace = absl::Milliseconds(proto.stream_grace_ms());
  return welcome;
}

absl::Status Check(const v1::Welcome& welcome) {
  if (welcome.servers().empty()) return absl::InvalidArgumentError("a welcome has no servers");
  if (welcome.servers().size() > static_cast<int>(kMostServers)) {
    return absl::InvalidArgumentError(absl::StrCat("a welcome has ", welcome.servers().size(),
                                                   " servers; at most ", kMostServers,
                                                   " are permitted"));
  }
  if (welcome.heartbeat_interval_ms() < kShortestHeartbeatMs) {
    return absl::InvalidArgumentError(
        absl::StrCat("a welcome wants heartbeats every ", welcome.heartbeat_interval_ms(),
                     " ms; at least ", kShortestHeartbeatMs, " ms are permitted"));
  }
  return absl::OkStatus();
}

// Returns nullopt if this protocol version does not have the kind.
absl::StatusOr<std::optional<JobSignal::Kind>> KindOf(const v1::JobSignal& proto) {
  switch (proto.kind_case()) {
    case v1::JobSignal::kWelcome:
      SYNCGRADS_RETURN_IF_ERROR(Check(proto.welcome()));
      return FromProto(proto.welcome());
    case v1::JobSignal::kEpoch:
      return EpochBegun{std::make_shared<const Epoch>(syncgrads::FromProto(proto.epoch()))};
    case v1::JobSignal::kRegistered: {
      SYNCGRADS_ASSIGN_OR_RETURN(GroupPlan plan, syncgrads::FromProto(proto.registered().plan()));
      return Registered{proto.registered().request(),
                        std::make_shared<const GroupPlan>(std::move(plan))};
    }
    case v1::JobSignal::kDone:
      return Done{proto.done().request()};
    case v1::JobSignal::kRefused:
      return Refused{proto.refused().request(), syncgrads::FromProto(proto.refused().error())};
    case v1::JobSignal::kWaiting:
      return Waiting{proto.waiting().reason()};
    case v1::JobSignal::kExpelled:
      return Expelled{syncgrads::FromProto(proto.expelled())};
    case v1::JobSignal::kCheckpointRequested:
      return CheckpointRequested{};
    case v1::JobSignal::kTraceRequested:
      return TraceRequested{proto.trace_requested().trace(),
                            absl::Milliseconds(proto.trace_requested().length_ms())};
    case v1::JobSignal::KIND_NOT_SET:
      break;
  }
  return std::nullopt;
}

}  // namespace

v1::Hello ToProto(const Hello& hello) {
  v1::Hello proto;
  proto.set_protocol_version(hello.protocol_version);
  proto.set_job(hello.job);
  proto.set_token(hello.token);
  proto.set_name(hello.name);
  proto.set_incarnation(ToNumber(hello.incarnation));
  if (hello.rank.has_value()) proto.set_rank(*hello.rank);
  proto.set_world_size(hello.world_size);
  proto.set_host(hello.host);
  proto.set_generation(ToNumber(hello.generation));
  proto.set_max_workers(hello.max_workers);
  proto.set_min_workers(hello.min_workers);
  proto.set_step_timeout_ms(absl::ToInt64Milliseconds(hello.step_timeout));
  proto.set_only_running(hello.only_running);
  proto.set_host_id(hello.host_id);
  proto.set_member_secret(hello.member_secret);
  return proto;
}

Hello FromProto(const v1::Hello& proto) {
  Hello hello;
  hello.protocol_version = proto.protocol_version();
  hello.job = proto.job();
  hello.token = proto.token();
  hello.name = proto.name();
  hello.incarnation = Incarnation{proto.incarnation()};
  if (proto.has_rank()) hello.rank = proto.rank();
  hello.world_size = proto.world_size();
  hello.host = proto.host();
  hello.generation = Generation{proto.generation()};
  hello.max_workers = proto.max_workers();
  hello.min_workers = proto.min_workers();
  hello.step_timeout = MillisecondsFromWire(proto.step_timeout_ms());
  hello.only_running = proto.only_running();
  hello.host_id = proto.host_id();
  hello.member_secret = proto.member_secret();
  return hello;
}

v1::WorkerSignal ToProto(const WorkerSignal& signal) {
  v1::WorkerSignal proto;
  std::visit(WorkerSignalWriter{proto}, signal);
  return proto;
}

absl::StatusOr<WorkerSignal> FromProto(const v1::WorkerSignal& proto) {
  switch (proto.kind_case()) {
    case v1::WorkerSignal::kHello:
      return FromProto(proto.hello());
    case v1::WorkerSignal::kHeartbeat:
      return FromProto(proto.heartbeat());
    case v1::WorkerSignal::kRegisterGroup: {
      const v1::RegisterGroup& group = proto.register_group();
      SYNCGRADS_ASSIGN_OR_RETURN(GroupSpec spec, FromProto(group.spec()));
      return RegisterGroup{group.request(), std::move(spec), group.link_rate()};
    }
    case v1::WorkerSignal::kEndGroup: {
      const v1::EndGroup& end = proto.end_group();
      return EndGroup{end.request(), GroupId{end.group()}, Round{end.last_round()},
                      end.without_updates()};
    }
    case v1::WorkerSignal::kLeave:
      return Leave{proto.leave().request(), FromProto(proto.leave().last_rounds())};
    case v1::WorkerSignal::kReady:
      return Ready{proto.ready().request(), GroupId{proto.ready().group()}};
    case v1::WorkerSignal::kCheckpoint:
      return FromProto(proto.checkpoint());
    case v1::WorkerSignal::kSetLearningRate:
      return SetLearningRate{proto.set_learning_rate().request(),
                             proto.set_learning_rate().factor()};
    case v1::WorkerSignal::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a signal has no kind that protocol version ", kProtocolVersion, " defines"));
}

v1::JobSignal ToProto(Generation generation, const JobSignal::Kind& kind) {
  v1::JobSignal proto;
  proto.set_generation(ToNumber(generation));
  std::visit(JobSignalWriter{proto}, kind);
  return proto;
}

absl::StatusOr<std::optional<JobSignal>> FromProto(const v1::JobSignal& proto) {
  SYNCGRADS_ASSIGN_OR_RETURN(std::optional<JobSignal::Kind> kind, KindOf(proto));
  if (!kind.has_value()) return std::nullopt;
  return JobSignal{Generation{proto.generation()}, *std::move(kind)};
}

}  // namespace syncgrads
