// Every message of a Join stream is converted to bytes and back, with every field set.

#include "common/contract/signals.h"

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/contract/contract.h"
#include "common/signals/protocol.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"
#include "tests/common/proto_fields.h"

namespace syncgrads {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Returns the message that the receiver parses.
template <typename Proto>
Proto OverTheWire(const Proto& sent) {
  Proto received;
  EXPECT_TRUE(received.ParseFromString(sent.SerializeAsString()));
  return received;
}

GroupSpec Model() {
  GroupSpec spec{"model", {{"kernel", DType::kF32, {4, 3}}, {"bias", DType::kF32, {3}}}, Adam{}};
  spec.chunk_bytes = 64;
  spec.one_epoch = true;
  spec.non_finite = OnBad::kSkip;
  spec.clip_norm = 0.5;
  return spec;
}

std::shared_ptr<const GroupPlan> Plan() {
  return std::make_shared<const GroupPlan>(
      GroupPlan{GroupId{7}, Model(), *LayoutOf(Model()), {ServerIndex{1}}});
}

Hello EveryFieldOfHello() {
  return {.protocol_version = 9,
          .job = "iris",
          .token = "secret",
          .name = "ada",
          .incarnation = Incarnation{~uint64_t{0}},
          .rank = 2,
          .world_size = 3,
          .host = "node-1",
          .generation = Generation{uint64_t{1} << 40},
          .max_workers = 5,
          .min_workers = 1,
          .step_timeout = absl::Milliseconds(1234),
          .only_running = true,
          .host_id = "host-id",
          .member_secret = "of ada"};
}

std::vector<WorkerSignal> EveryWorkerSignal() {
  const std::vector<GroupRound> rounds = {{GroupId{1}, Round{uint64_t{1} << 40}},
                                          {GroupId{2}, Round{3}}};
  return {EveryFieldOfHello(),
          Heartbeat{rounds, TrainingFigures{.step = 3, .loss = 0.5, .device = "cpu"}},
          RegisterGroup{11, Model(), 1.5e9},
          EndGroup{12, GroupId{4}, Round{5}, true},
          Leave{13, rounds},
          Ready{14, GroupId{6}},
          CheckpointReport{15, "/checkpoints/15"},
          SetLearningRate{16, 0.1}};
}

std::vector<JobSignal::Kind> EveryKindOfJobSignal() {
  const Epoch epoch{4,
                    {{MemberId{2}, "ada", Incarnation{8}}},
                    {{GroupId{1}, Round{9}}},
                    Handover{MemberId{2}, {MemberId{3}}, {{GroupId{1}, Round{9}}}},
                    LearningRate{0.1, {{GroupId{1}, Round{9}}}}};
  return {Welcome{.protocol_version = 9,
                  .member = MemberId{2},
                  .name = "ada",
                  .servers = {"", "10.0.0.1:7000"},
                  .heartbeat_interval = absl::Milliseconds(2001),
                  .lease = absl::Milliseconds(30002),
                  .stream_grace = absl::Milliseconds(5003)},
          EpochBegun{std::make_shared<const Epoch>(epoch)},
          Registered{11, Plan()},
          Done{12},
          Refused{13, absl::ResourceExhaustedError("no memory")},
          Waiting{"server 1 of 2"},
          Expelled{absl::DataLossError("server 1 has lost its state")},
          CheckpointRequested{},
          TraceRequested{.trace = 1700, .length = absl::Milliseconds(2500)}};
}

struct Equal {
  template <typename Kind>
  bool operator()(const Kind& left, const Kind& right) const {
    return left == right;
  }
  bool operator()(const RegisterGroup& left, const RegisterGroup& right) const {
    return left.request == right.request && left.link_rate == right.link_rate &&
           CheckAgreement(left.spec, right.spec, "the sender").ok();
  }
  bool operator()(const EpochBegun& left, const EpochBegun& right) const {
    return *left.epoch == *right.epoch;
  }
  bool operator()(const Registered& left, const Registered& right) const {
    return left.request == right.request && left.plan->id == right.plan->id &&
           left.plan->servers == right.plan->servers &&
           CheckAgreement(left.plan->spec, right.plan->spec, "the sender").ok();
  }
  template <typename Left, typename Right>
  bool operator()(const Left&, const Right&) const {
    return false;
  }
};

TEST(SignalsTest, EveryWorkerSignalComesBackAsItWas) {
  std::set<int> kinds;
  for (const WorkerSignal& sent : EveryWorkerSignal()) {
    const v1::WorkerSignal proto = OverTheWire(ToProto(sent));
    kinds.insert(proto.kind_case());
    const std::set<std::string> unset = UnsetIn(KindIn(proto));
    EXPECT_EQ(unset,
              proto.has_checkpoint() ? std::set<std::string>{"error"} : std::set<std::string>())
        << proto.ShortDebugString();
    const absl::StatusOr<WorkerSignal> received = FromProto(proto);
    ASSERT_THAT(received, IsOk());
    EXPECT_TRUE(std::visit(Equal{}, *received, sent)) << proto.ShortDebugString();
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<WorkerSignal>);
  EXPECT_EQ(kinds.size(), KindsOf(v1::WorkerSignal::descriptor()));
}

TEST(SignalsTest, EveryJobSignalComesBackAsItWas) {
  std::set<int> kinds;
  for (const JobSignal::Kind& sent : EveryKindOfJobSignal()) {
    const v1::JobSignal proto = OverTheWire(ToProto(Generation{77}, sent));
    kinds.insert(proto.kind_case());
    EXPECT_EQ(UnsetIn(KindIn(proto)), std::set<std::string>()) << proto.ShortDebugString();
    const absl::StatusOr<std::optional<JobSignal>> received = FromProto(proto);
    ASSERT_THAT(received, IsOk());
    ASSERT_TRUE(received->has_value()) << proto.ShortDebugString();
    EXPECT_EQ((*received)->generation, Generation{77});
    EXPECT_TRUE(std::visit(Equal{}, (*received)->kind, sent)) << proto.ShortDebugString();
  }
  // A Farewell is no message of its own.
  EXPECT_EQ(kinds.size(), std::variant_size_v<JobSignal::Kind> - 1);
  EXPECT_EQ(kinds.size(), KindsOf(v1::JobSignal::descriptor()));
}

TEST(SignalsTest, AMessageWithoutFieldsHasTheDefaults) {
  const Hello hello = FromProto(OverTheWire(ToProto(Hello{.protocol_version = 0})));
  EXPECT_TRUE(hello == Hello{.protocol_version = 0});
  EXPECT_FALSE(hello.rank.has_value());
  // Rank 0 differs from no rank.
  EXPECT_EQ(FromProto(OverTheWire(ToProto(Hello{.rank = 0}))).rank, 0u);
}

TEST(SignalsTest, TheErrorOfACheckpointComesBackAsItWas) {
  const CheckpointReport sent{15, absl::ResourceExhaustedError("the disk is full")};
  const absl::StatusOr<WorkerSignal> received = FromProto(OverTheWire(ToProto(sent)));
  ASSERT_THAT(received, IsOk());
  EXPECT_TRUE(std::get<CheckpointReport>(*received) == sent);
}

TEST(SignalsTest, AHeartbeatHasFiguresOnlyIfThereAreSomeAndRefusesBadOnes) {
  const absl::StatusOr<WorkerSignal> without = FromProto(OverTheWire(ToProto(Heartbeat{})));
  ASSERT_THAT(without, IsOk());
  EXPECT_FALSE(std::get<Heartbeat>(*without).figures.has_value());
  v1::WorkerSignal bad;
  bad.mutable_heartbeat()->mutable_figures()->set_device(std::string(65, 'x'));
  ExpectError(FromProto(bad), kInvalid, {"device", "65", "64"});
}

TEST(SignalsTest, AFarewellIsReceivedAsDone) {
  const auto received = FromProto(OverTheWire(ToProto(Generation{1}, Farewell{5})));
  ASSERT_THAT(received, IsOk());
  ASSERT_TRUE(received->has_value());
  EXPECT_TRUE(std::get<Done>((*received)->kind) == Done{5});
}

TEST(SignalsTest, ASignalWithoutAKnownKindIsRefusedByServersAndIgnoredByWorkers) {
  ExpectError(FromProto(v1::WorkerSignal()), kInvalid, {"no kind", "protocol version 2"});
  // Field 1000 of a later version.
  v1::WorkerSignal later;
  ASSERT_TRUE(later.ParseFromString(std::string("\xc2\x3e\x00", 3)));
  ExpectError(FromProto(later), kInvalid, {"no kind", "protocol version 2"});
  v1::JobSignal ignored;
  ASSERT_TRUE(ignored.ParseFromString(std::string("\xc2\x3e\x00", 3)));
  const absl::StatusOr<std::optional<JobSignal>> received = FromProto(ignored);
  ASSERT_THAT(received, IsOk());
  EXPECT_FALSE(received->has_value());
}

TEST(SignalsTest, AGroupThatCannotBeConvertedIsRefused) {
  const v1::WorkerSignal sent = ToProto(RegisterGroup{11, Model(), 0});
  v1::WorkerSignal bad = sent;
  bad.mutable_register_group()->mutable_spec()->set_non_finite(static_cast<v1::OnBad>(77));
  ExpectError(FromProto(bad), kInvalid, {"non_finite", "77"});
  bad = sent;
  bad.mutable_register_group()->mutable_spec()->mutable_tensors(1)->set_dtype(
      static_cast<v1::DType>(77));
  ExpectError(FromProto(bad), kInvalid, {"\"bias\"", "77"});
  bad = sent;
  bad.mutable_register_group()->clear_spec();
  ExpectError(FromProto(bad), kInvalid, {"update rule"});
}

TEST(SignalsTest, APlanThatCannotBeConvertedIsRefused) {
  const v1::JobSignal sent = ToProto(Generation{1}, Registered{11, Plan()});
  v1::JobSignal bad = sent;
  bad.mutable_registered()->mutable_plan()->mutable_spec()->clear_rule();
  ExpectError(FromProto(bad), kInvalid, {"update rule"});
  bad = sent;
  bad.mutable_registered()->mutable_plan()->clear_chunks();
  ExpectError(FromProto(bad), kInvalid, {"\"model\"", "0"});
}

TEST(SignalsTest, AWelcomeWithBadServersOrHeartbeatsIsRefused) {
  v1::JobSignal bad;
  bad.mutable_welcome()->set_name("ada");
  ExpectError(FromProto(bad), kInvalid, {"a welcome has no servers"});
  for (uint32_t i = 0; i < kMostServers; ++i) bad.mutable_welcome()->add_servers("a:1");
  for (const uint32_t interval : {0u, kShortestHeartbeatMs - 1}) {
    bad.mutable_welcome()->set_heartbeat_interval_ms(interval);
    ExpectError(FromProto(bad), kInvalid, {absl::StrCat("every ", interval, " ms"), "10 ms"});
  }
  bad.mutable_welcome()->set_heartbeat_interval_ms(kShortestHeartbeatMs);
  EXPECT_TRUE(FromProto(bad).ok());
  bad.mutable_welcome()->add_servers("a:1");
  ExpectError(FromProto(bad), kInvalid, {"a welcome has 1001 servers", "1000"});
}

}  // namespace
}  // namespace syncgrads
