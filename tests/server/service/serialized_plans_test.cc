#include "server/service/serialized_plans.h"

#include <grpcpp/impl/codegen/proto_utils.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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

// The address of the plan's bytes in an answer.
const void* PlanBytes(const grpc::ByteBuffer& answer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(answer.Dump(&slices).ok());
  return slices.back().begin();
}

TEST(SerializedPlansTest, AnAnswerIsParsedAsOneMessage) {
  SerializedPlans plans;
  for (uint64_t request : {1, 300}) {
    const Registered registered{request, PlanOf(1000)};
    const auto parsed = Parse(plans.Answer(Generation{5}, registered));
    ASSERT_TRUE(parsed.has_value());
    EXPECT_EQ(parsed->SerializeAsString(), ToProto(Generation{5}, registered).SerializeAsString());
  }
}

TEST(SerializedPlansTest, AnswersWithTheSamePlanShareItsBytes) {
  SerializedPlans plans;
  const std::shared_ptr<const GroupPlan> plan = PlanOf(1000), other = PlanOf(1000);
  const grpc::ByteBuffer first = plans.Answer(Generation{5}, {1, plan});
  EXPECT_EQ(PlanBytes(plans.Answer(Generation{5}, {2, plan})), PlanBytes(first));
  EXPECT_NE(PlanBytes(plans.Answer(Generation{5}, {3, other})), PlanBytes(first));
}

// The allocator often gives a new plan the memory of the one before it.
TEST(SerializedPlansTest, ANewPlanIsNotConfusedWithAnEarlierOne) {
  SerializedPlans plans;
  for (int64_t elements = 1; elements <= 50; ++elements) {
    const auto parsed = Parse(plans.Answer(Generation{5}, {1, PlanOf(elements)}));
    ASSERT_TRUE(parsed.has_value());
    ASSERT_EQ(parsed->registered().plan().spec().tensors(0).shape(0), elements);
  }
}

TEST(SerializedPlansTest, KeepsTheBytesOfPlansThatStillExist) {
  SerializedPlans plans;
  std::shared_ptr<const GroupPlan> plan = PlanOf(1000);
  const grpc::ByteBuffer first = plans.Answer(Generation{5}, {1, plan});
  plans.Prune();
  EXPECT_EQ(PlanBytes(plans.Answer(Generation{5}, {2, plan})), PlanBytes(first));
}

}  // namespace
}  // namespace syncgrads::server
