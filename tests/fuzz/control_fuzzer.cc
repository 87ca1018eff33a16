// Converts arbitrary bytes as each message of the control plane, as both ends do after protobuf has
// parsed them. A message that is accepted can be written again: what is read then, is written in
// the same bytes. The first byte of an input chooses the message.

#include <google/protobuf/stubs/logging.h>

#include <optional>
#include <string>
#include <vector>

#include "common/contract/contract.h"
#include "common/contract/signals.h"
#include "proto/control.pb.h"
#include "server/core/plan/check_hello.h"
#include "server/service/control/signals.h"
#include "tests/fuzz/fuzz_target.h"

namespace syncgrads::fuzz {
namespace {

// Requires that `convert`, which reads a message and returns it as it is written again, returns a
// message that it converts to itself.
template <typename Proto, typename Convert>
void RequireStable(absl::string_view bytes, const Convert& convert) {
  Proto proto;
  if (!proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const absl::StatusOr<Proto> once = convert(proto);
  RequireExplained(once.status());
  if (!once.ok()) return;
  const absl::StatusOr<Proto> twice = convert(*once);
  Require(twice.ok(), "a message that is written again is accepted");
  Require(once->SerializeAsString() == twice->SerializeAsString(),
          "a message is written as it was read");
}

absl::StatusOr<v1::Hello> OfHello(const v1::Hello& proto) {
  const Hello hello = FromProto(proto);
  RequireExplained(server::CheckHello(hello));
  return ToProto(hello);
}

absl::StatusOr<v1::GroupSpec> OfGroupSpec(const v1::GroupSpec& proto) {
  const absl::StatusOr<GroupSpec> spec = FromProto(proto);
  if (!spec.ok()) return spec.status();
  const absl::Status valid = Validate(*spec);
  RequireExplained(valid);
  if (valid.ok()) Require(LayoutOf(*spec).ok(), "a valid group has a layout");
  return ToProto(*spec);
}

absl::StatusOr<v1::PlanSignal> OfPlanSignal(const v1::PlanSignal& proto) {
  if (proto.has_prepare()) {
    const auto preparation = server::PreparationFromProto(proto);
    if (!preparation.ok()) return preparation.status();
    return server::ToProto(*preparation);
  }
  const absl::StatusOr<server::PlanChange> change = server::FromProto(proto);
  if (!change.ok()) return change.status();
  return server::ToProto(*change);
}

absl::StatusOr<v1::Reduced> OfReduced(const v1::Reduced& proto) {
  const auto chunks = server::FromProto(proto);
  if (!chunks.ok()) return chunks.status();
  return server::ToProto(*chunks);
}

absl::StatusOr<v1::ServerSignal> OfServerSignal(const v1::ServerSignal& proto) {
  if (proto.has_prepared()) return server::ToProto(server::FromProto(proto.prepared()));
  if (proto.has_store_failure()) {
    return server::ToProto(server::FromProto(proto.store_failure()));
  }
  return absl::UnimplementedError("the kind has no struct");
}

absl::StatusOr<v1::WorkerSignal> OfWorkerSignal(const v1::WorkerSignal& proto) {
  const absl::StatusOr<WorkerSignal> signal = FromProto(proto);
  if (!signal.ok()) return signal.status();
  return ToProto(*signal);
}

absl::StatusOr<v1::JobSignal> OfJobSignal(const v1::JobSignal& proto) {
  const absl::StatusOr<std::optional<JobSignal>> signal = FromProto(proto);
  if (!signal.ok()) return signal.status();
  if (!signal->has_value()) return absl::UnimplementedError("workers ignore the kind");
  return ToProto((*signal)->generation, (*signal)->kind);
}

template <typename Proto>
std::string InputOf(int message, const Proto& proto) {
  return Encoded(static_cast<uint64_t>(message), 1) + proto.SerializeAsString();
}

v1::GroupSpec SpecOf(const UpdateRule& rule, const Policy& policy) {
  GroupSpec spec{"model", {{"kernel", DType::kF32, {300, 40}}, {"bias", DType::kF32, {}}}, rule, 0};
  spec.policy = policy;
  spec.chunk_bytes = 8192;
  if (!std::holds_alternative<Staleness>(policy) && std::holds_alternative<Optimizer>(rule)) {
    spec.clip_norm = 1;
  }
  spec.compression.resize(2);
  if (rule == UpdateRule(Reduction::kAverage)) {
    spec.compression[0] = {{Codec::kTopK, 0.1}, {Codec::kF16}};
  }
  return ToProto(spec);
}

}  // namespace

void Fuzz(absl::string_view input) {
  // Protobuf would log each string that is not UTF-8.
  static const google::protobuf::LogSilencer silencer;
  Choices choices(input);
  const uint8_t message = choices.Byte();
  const absl::string_view bytes = choices.Rest();
  switch (message % 7) {
    case 0:
      return RequireStable<v1::Hello>(bytes, OfHello);
    case 1:
      return RequireStable<v1::GroupSpec>(bytes, OfGroupSpec);
    case 2:
      return RequireStable<v1::PlanSignal>(bytes, OfPlanSignal);
    case 3:
      return RequireStable<v1::Reduced>(bytes, OfReduced);
    case 4:
      return RequireStable<v1::ServerSignal>(bytes, OfServerSignal);
    case 5:
      return RequireStable<v1::WorkerSignal>(bytes, OfWorkerSignal);
    default:
      return RequireStable<v1::JobSignal>(bytes, OfJobSignal);
  }
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  v1::Hello hello;
  hello.set_protocol_version(2);
  hello.set_job("iris");
  hello.set_incarnation(5);
  hello.set_world_size(3);
  hello.set_rank(1);
  hello.set_max_workers(4);
  hello.set_step_timeout_ms(1000);
  seeds.push_back(InputOf(0, hello));

  const v1::GroupSpec average = SpecOf(Reduction::kAverage, Quorum{.least = 2});
  seeds.push_back(InputOf(1, average));
  seeds.push_back(InputOf(1, SpecOf(Reduction::kSum, First{})));
  seeds.push_back(InputOf(1, SpecOf(Gather{}, Sync{})));
  seeds.push_back(InputOf(1, SpecOf(Optimizer(Adam{}), Sync{})));
  seeds.push_back(InputOf(1, SpecOf(Optimizer(Sgd{}), Staleness{})));

  const absl::StatusOr<GroupSpec> spec = FromProto(average);
  Layout layout = *LayoutOf(*spec);
  const size_t chunks = layout.chunks().size();
  const GroupPlan plan{GroupId{2}, *spec, std::move(layout), std::vector<ServerIndex>(chunks)};
  v1::PlanSignal signal;
  signal.set_job("iris");
  signal.set_generation(7);
  *signal.mutable_group() = ToProto(plan);
  seeds.push_back(InputOf(2, signal));
  *signal.mutable_prepare()->mutable_plan() = ToProto(plan);
  seeds.push_back(InputOf(2, signal));
  Epoch epoch;
  epoch.number = 2;
  epoch.members = {{MemberId{0}, "w0", Incarnation{5}}, {MemberId{1}, "w1", Incarnation{6}}};
  epoch.first_rounds = {{GroupId{2}, Round{9}}};
  epoch.handover = Handover{MemberId{0}, {MemberId{1}}, {{GroupId{2}, Round{9}}}};
  *signal.mutable_epoch() = ToProto(epoch);
  seeds.push_back(InputOf(2, signal));
  signal.mutable_quorum()->add_members(1);
  seeds.push_back(InputOf(2, signal));
  signal.mutable_norms()->add_ratios(0.5);
  seeds.push_back(InputOf(2, signal));

  v1::Reduced reduced;
  reduced.add_chunks()->set_stage(v1::NORMS_OF_TENSORS);
  reduced.mutable_chunks(0)->add_values(1.5);
  reduced.mutable_chunks(0)->add_changes(2.5);
  seeds.push_back(InputOf(3, reduced));

  v1::ServerSignal prepared;
  prepared.mutable_prepared()->mutable_error()->set_code(8);
  seeds.push_back(InputOf(4, prepared));
  prepared.mutable_store_failure()->mutable_error()->set_code(99);
  seeds.push_back(InputOf(4, prepared));

  v1::WorkerSignal worker;
  *worker.mutable_register_group()->mutable_spec() = average;
  seeds.push_back(InputOf(5, worker));
  worker.mutable_leave()->add_last_rounds()->set_round(3);
  seeds.push_back(InputOf(5, worker));
  worker.mutable_checkpoint()->set_path("ckpt-3");
  seeds.push_back(InputOf(5, worker));

  v1::JobSignal job;
  *job.mutable_registered()->mutable_plan() = ToProto(plan);
  seeds.push_back(InputOf(6, job));
  *job.mutable_epoch() = ToProto(epoch);
  seeds.push_back(InputOf(6, job));
  job.mutable_welcome()->add_servers("10.0.0.1:7000");
  seeds.push_back(InputOf(6, job));
  job.mutable_refused()->mutable_error()->set_message("no");
  seeds.push_back(InputOf(6, job));
  return seeds;
}

}  // namespace syncgrads::fuzz
