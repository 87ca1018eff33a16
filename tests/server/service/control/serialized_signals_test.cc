#include "server/service/control/serialized_signals.h"

#include <grpcpp/impl/codegen/proto_utils.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/contract/signals.h"
#include "gtest/gtest.h"

namespace syncgrads::server {
namespace {

std::shared_ptr<const GroupPlan> PlanOf(int64_t elements) {
  const GroupSpec spec{"model", {{"kernel", DType::kF32, {elements}}}, Reduction::kSum, 64};
  const std::vector<ServerIndex> servers(LayoutOf(spec)->chunks().size(), ServerIndex{1});
  return std::make_shared<const GroupPlan>(GroupPlan{GroupId{7}, spec, *LayoutOf(spec), servers});
}

std::optional<v1::JobSignal> Parse(grpc::ByteBuffer answer) {
  v1::JobSignal signal;
  if (!grpc::GenericDeserialize<grpc::ProtoBufferReader, v1::JobSignal>(&answer, &signal).ok()) {
    return std::nullopt;
  }
  return signal;
}

// The address of the bytes of the plan or the epoch in a signal.
const void* SharedBytes(const grpc::ByteBuffer& answer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(answer.Dump(&slices).ok());
  return slices.back().begin();
}

TEST(SerializedSignalsTest, AnAnswerIsParsedAsOneMessage) {
  SerializedSignals plans;
  for (uint64_t request : {1, 300}) {
    const Registered registered{request, PlanOf(1000)};
    const auto parsed = Parse(plans.Answer(Generation{5}, registered));
    ASSERT_TRUE(parsed.has_value());
    EXPECT_EQ(parsed->SerializeAsString(), ToProto(Generation{5}, registered).SerializeAsString());
  }
}

TEST(SerializedSignalsTest, AnswersWithTheSamePlanShareItsBytes) {
  SerializedSignals plans;
  const std::shared_ptr<const GroupPlan> plan = PlanOf(1000), other = PlanOf(1000);
  const grpc::ByteBuffer first = plans.Answer(Generation{5}, {1, plan});
  EXPECT_EQ(SharedBytes(plans.Answer(Generation{5}, {2, plan})), SharedBytes(first));
  EXPECT_NE(SharedBytes(plans.Answer(Generation{5}, {3, other})), SharedBytes(first));
}

// The allocator often gives a new plan the memory of the one before it.
TEST(SerializedSignalsTest, ANewPlanIsNotConfusedWithAnEarlierOne) {
  SerializedSignals plans;
  for (int64_t elements = 1; elements <= 50; ++elements) {
    const auto parsed = Parse(plans.Answer(Generation{5}, {1, PlanOf(elements)}));
    ASSERT_TRUE(parsed.has_value());
    ASSERT_EQ(parsed->registered().plan().spec().tensors(0).shape(0), elements);
  }
}

TEST(SerializedSignalsTest, KeepsTheBytesOfPlansThatStillExist) {
  SerializedSignals plans;
  std::shared_ptr<const GroupPlan> plan = PlanOf(1000);
  const grpc::ByteBuffer first = plans.Answer(Generation{5}, {1, plan});
  plans.Prune();
  EXPECT_EQ(SharedBytes(plans.Answer(Generation{5}, {2, plan})), SharedBytes(first));
}

EpochBegun EpochOf(uint32_t members) {
  Epoch epoch{.number = 3};
  for (uint32_t m = 0; m < members; ++m) {
    epoch.members.push_back(
        {.id = MemberId{m}, .name = absl::StrCat("worker-", m), .secret_hash = "a hash"});
  }
  return {std::make_shared<const Epoch>(std::move(epoch))};
}

TEST(SerializedSignalsTest, AnEpochIsSentWithoutTheHashesOfSecrets) {
  SerializedSignals signals;
  const auto parsed = Parse(signals.Begin(Generation{5}, EpochOf(2)));
  ASSERT_TRUE(parsed.has_value());
  Epoch sent = *EpochOf(2).epoch;
  for (Member& member : sent.members) member.secret_hash.clear();
  EXPECT_EQ(
      parsed->SerializeAsString(),
      ToProto(Generation{5}, EpochBegun{std::make_shared<const Epoch>(sent)}).SerializeAsString());
}

TEST(SerializedSignalsTest, SignalsWithTheSameEpochShareItsBytes) {
  SerializedSignals signals;
  const EpochBegun epoch = EpochOf(2), other = EpochOf(2);
  const grpc::ByteBuffer first = signals.Begin(Generation{5}, epoch);
  signals.Prune();
  EXPECT_EQ(SharedBytes(signals.Begin(Generation{5}, epoch)), SharedBytes(first));
  EXPECT_NE(SharedBytes(signals.Begin(Generation{5}, other)), SharedBytes(first));
  for (uint32_t members = 1; members <= 50; ++members) {
    const auto parsed = Parse(signals.Begin(Generation{5}, EpochOf(members)));
    ASSERT_TRUE(parsed.has_value());
    ASSERT_EQ(parsed->epoch().members_size(), static_cast<int>(members));
  }
}

TEST(SerializedSignalsTest, KeepsNoBytesOfEarlierEpochs) {
  SerializedSignals signals;
  for (uint32_t epoch = 0; epoch < 50; ++epoch) signals.Begin(Generation{5}, EpochOf(2));
  EXPECT_EQ(signals.size(), 1u);
  signals.Prune();
  EXPECT_EQ(signals.size(), 0u);
}

}  // namespace
}  // namespace syncgrads::server
