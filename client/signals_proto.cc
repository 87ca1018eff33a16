#include "client/signals_proto.h"

#include <utility>
#include <variant>

#include "common/contract/contract.h"
#include "common/protocol.h"
#include "common/status_macros.h"

namespace syncgrads::client {
namespace {

void Set(const GroupRound& round, v1::GroupRound* proto) {
  proto->set_group(ToNumber(round.group));
  proto->set_round(ToNumber(round.round));
}

struct Fill {
  v1::WorkerSignal& proto;

  void operator()(const Hello& signal) {
    v1::Hello& hello = *proto.mutable_hello();
    hello.set_protocol_version(kProtocolVersion);
    hello.set_job(signal.job);
    hello.set_token(signal.token);
    hello.set_name(signal.name);
    hello.set_incarnation(ToNumber(signal.incarnation));
    if (signal.rank.has_value()) hello.set_rank(*signal.rank);
    hello.set_world_size(signal.world_size);
    hello.set_host(signal.host);
    hello.set_generation(ToNumber(signal.generation));
    hello.set_max_workers(signal.max_workers);
    hello.set_min_workers(signal.min_workers);
    hello.set_step_timeout_ms(absl::ToInt64Milliseconds(signal.step_timeout));
    hello.set_only_running(signal.only_running);
    hello.set_host_id(signal.host_id);
  }
  void operator()(const Heartbeat& signal) {
    v1::Heartbeat& heartbeat = *proto.mutable_heartbeat();
    for (const GroupRound& round : signal.progress) Set(round, heartbeat.add_progress());
  }
  void operator()(const RegisterGroup& signal) {
    v1::RegisterGroup& group = *proto.mutable_register_group();
    group.set_request(signal.request);
    *group.mutable_spec() = syncgrads::ToProto(signal.spec);
    group.set_link_rate(signal.link_rate);
  }
  void operator()(const EndGroup& signal) {
    v1::EndGroup& end = *proto.mutable_end_group();
    end.set_request(signal.request);
    end.set_group(ToNumber(signal.group));
    end.set_last_round(ToNumber(signal.last_round));
  }
  void operator()(const Leave& signal) {
    v1::Leave& leave = *proto.mutable_leave();
    leave.set_request(signal.request);
    for (const GroupRound& round : signal.last_rounds) Set(round, leave.add_last_rounds());
  }
  void operator()(const CheckpointReport& signal) {
    v1::CheckpointReport& report = *proto.mutable_checkpoint();
    report.set_step(signal.step);
    if (signal.path.ok()) {
      report.set_path(*signal.path);
    } else {
      *report.mutable_error() = syncgrads::ToProto(signal.path.status());
    }
  }
  void operator()(const Ready& signal) {
    v1::Ready& ready = *proto.mutable_ready();
    ready.set_request(signal.request);
    ready.set_group(ToNumber(signal.group));
  }
};

}  // namespace

v1::WorkerSignal ToProto(const WorkerSignal& signal) {
  v1::WorkerSignal proto;
  std::visit(Fill{proto}, signal);
  return proto;
}

absl::StatusOr<std::optional<JobSignal>> FromProto(const v1::JobSignal& proto) {
  JobSignal signal;
  signal.generation = Generation{proto.generation()};
  switch (proto.kind_case()) {
    case v1::JobSignal::kWelcome: {
      Welcome welcome;
      welcome.protocol_version = proto.welcome().protocol_version();
      welcome.member = MemberId{proto.welcome().member()};
      welcome.name = proto.welcome().name();
      welcome.servers.assign(proto.welcome().servers().begin(), proto.welcome().servers().end());
      welcome.heartbeat_interval = absl::Milliseconds(proto.welcome().heartbeat_interval_ms());
      welcome.lease = absl::Milliseconds(proto.welcome().lease_ms());
      if (welcome.servers.empty()) return absl::InvalidArgumentError("a welcome without servers");
      signal.kind = std::move(welcome);
      break;
    }
    case v1::JobSignal::kEpoch:
      signal.kind = syncgrads::FromProto(proto.epoch());
      break;
    case v1::JobSignal::kRegistered: {
      SYNCGRADS_ASSIGN_OR_RETURN(GroupPlan plan, syncgrads::FromProto(proto.registered().plan()));
      signal.kind = Registered{proto.registered().request(), std::move(plan)};
      break;
    }
    case v1::JobSignal::kDone:
      signal.kind = Done{proto.done().request()};
      break;
    case v1::JobSignal::kRefused:
      signal.kind =
          Refused{proto.refused().request(), syncgrads::FromProto(proto.refused().error())};
      break;
    case v1::JobSignal::kWaiting:
      signal.kind = Waiting{proto.waiting().reason()};
      break;
    case v1::JobSignal::kExpelled:
      signal.kind = Expelled{syncgrads::FromProto(proto.expelled())};
      break;
    case v1::JobSignal::kCheckpointAsked:
      signal.kind = CheckpointAsked{};
      break;
    case v1::JobSignal::KIND_NOT_SET:
      return std::optional<JobSignal>();
  }
  return std::optional<JobSignal>(std::move(signal));
}

}  // namespace syncgrads::client
