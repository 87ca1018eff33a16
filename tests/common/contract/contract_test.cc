#include "common/contract/contract.h"

#include <cstdint>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Every optimizer, with no field at its default.
std::vector<Optimizer> EveryOptimizer() {
  return {Sgd{0.5, 0.25},
          Momentum{0.5, 0.8, 0.25},
          Nesterov{0.5, 0.8, 0.25},
          RmsProp{0.5, 0.8, 1e-3},
          Adagrad{0.5, 1e-3},
          Adam{0.5, 0.8, 0.99, 1e-3},
          AdamW{0.5, 0.8, 0.99, 1e-3, 0.25},
          Lion{0.5, 0.8, 0.95, 0.25},
          Lamb{0.5, 0.8, 0.99, 1e-3, 0.25},
          Lars{0.5, 0.8, 0.25, 0.125}};
}

GroupSpec Everything() {
  GroupSpec spec{"model", {}, Reduction::kSum, 64};
  for (const DType dtype : kAllDTypes) {
    spec.tensors.push_back({std::string(NameOf(dtype)), dtype, {3, 5}});
  }
  spec.tensors.push_back({"scalar", DType::kF32, {}});
  spec.first_chunk_bytes = 16;
  spec.members_scale_rate = true;
  return spec;
}

GroupPlan PlanOf(const GroupSpec& spec, uint32_t servers) {
  absl::StatusOr<Layout> layout = LayoutOf(spec);
  EXPECT_THAT(layout, IsOk());
  std::vector<uint64_t> bytes(servers);
  std::vector<ServerIndex> placed = PlaceChunks(*layout, bytes);
  return {GroupId{7}, spec, *std::move(layout), std::move(placed)};
}

TEST(ContractTest, GroupsComeBackAsTheyWere) {
  std::vector<UpdateRule> rules = {Reduction::kAverage, Reduction::kSum,     Reduction::kMin,
                                   Reduction::kMax,     Reduction::kProduct, Gather{}};
  for (const Optimizer& optimizer : EveryOptimizer()) rules.push_back(optimizer);
  for (const UpdateRule& rule : rules) {
    GroupSpec spec = Everything();
    spec.rule = rule;
    const absl::StatusOr<GroupSpec> back = FromProto(ToProto(spec));
    ASSERT_THAT(back, IsOk());
    EXPECT_EQ(back->name, spec.name);
    EXPECT_EQ(back->tensors, spec.tensors);
    EXPECT_TRUE(back->rule == spec.rule) << ToProto(spec).ShortDebugString();
    EXPECT_EQ(back->chunk_bytes, spec.chunk_bytes);
    EXPECT_EQ(back->first_chunk_bytes, spec.first_chunk_bytes);
    EXPECT_EQ(back->compression, spec.compression);
    EXPECT_TRUE(back->members_scale_rate);
  }
}

TEST(ContractTest, SchedulesComeBackAsTheyWere) {
  for (const RateSchedule& schedule :
       {RateSchedule(), RateSchedule{7, StepDecay{{3, 9}, 0.1}, true},
        RateSchedule{0, CosineDecay{50, 0.1, 0.5}, false}}) {
    GroupSpec spec = Everything();
    spec.schedule = schedule;
    const absl::StatusOr<GroupSpec> back = FromProto(ToProto(spec));
    ASSERT_THAT(back, IsOk());
    EXPECT_EQ(ToString(back->schedule), ToString(schedule));
    EXPECT_TRUE(back->schedule == schedule);
  }
}

TEST(ContractTest, FactorsComeBackAsTheyWere) {
  GroupSpec spec = Everything();
  spec.factors.resize(spec.tensors.size());
  spec.factors[1] = {.learning_rate = 0.1, .weight_decay = 0};
  v1::GroupSpec proto = ToProto(spec);
  EXPECT_EQ(FromProto(proto)->factors, spec.factors);
  proto.mutable_factors(1)->clear_weight_decay();
  EXPECT_EQ(FromProto(proto)->factors[1], (TensorFactors{.learning_rate = 0.1}));
}

TEST(ContractTest, CompressionComesBackAsItWas) {
  GroupSpec spec = Everything();
  spec.compression.resize(spec.tensors.size());
  spec.compression[1] = {{Codec::kTopK, 0.02}, {Codec::kOneBit}};
  const absl::StatusOr<GroupSpec> back = FromProto(ToProto(spec));
  ASSERT_THAT(back, IsOk());
  EXPECT_EQ(back->compression, spec.compression);
  v1::GroupSpec proto = ToProto(spec);
  proto.mutable_compression(1)->mutable_push()->clear_fraction();
  EXPECT_EQ(FromProto(proto)->compression[1].push, (Encoding{Codec::kTopK, kDefaultTopKFraction}));
  proto.mutable_compression(0)->mutable_result()->set_codec(static_cast<v1::Codec>(77));
  ExpectError(FromProto(proto), absl::StatusCode::kInvalidArgument, {"codec 77"});
}

// The first tensor would be refused too, so the number is checked before any tensor is converted.
TEST(ContractTest, RefusesLongListsBeforeItConvertsThem) {
  v1::GroupSpec proto;
  proto.mutable_rule()->set_reduction(v1::SUM);
  for (size_t t = 0; t < kMaxTensors; ++t) {
    proto.add_tensors()->set_dtype(v1::F32);
    proto.add_compression();
    proto.add_factors();
  }
  EXPECT_THAT(FromProto(proto), IsOk());
  proto.mutable_tensors(0)->set_dtype(static_cast<v1::DType>(99));
  ExpectError(FromProto(proto), kInvalid, {"dtype", "99"});
  v1::GroupSpec tensors = proto, compression = proto, factors = proto;
  tensors.add_tensors();
  compression.add_compression();
  factors.add_factors();
  for (const v1::GroupSpec* one : {&tensors, &compression, &factors}) {
    ExpectError(FromProto(*one), kInvalid, {"262145 tensors", "at most 262144"});
  }
}

TEST(ContractTest, KeepsWhatBecomesOfBadContributions) {
  for (const OnBad non_finite : {OnBad::kReject, OnBad::kSkip, OnBad::kAllow}) {
    GroupSpec spec = Everything();
    spec.non_finite = non_finite;
    const absl::StatusOr<GroupSpec> back = FromProto(ToProto(spec));
    ASSERT_THAT(back, IsOk());
    EXPECT_EQ(back->non_finite, non_finite);
  }
  v1::GroupSpec proto = ToProto(Everything());
  proto.clear_non_finite();
  EXPECT_EQ(FromProto(proto)->non_finite, OnBad::kReject);
  proto.set_non_finite(static_cast<v1::OnBad>(9));
  ExpectError(FromProto(proto).status(), kInvalid, {"9"});
}

TEST(ContractTest, PoliciesComeBackAsTheyWere) {
  const Policy policies[] = {Sync{},
                             First{},
                             Quorum{.least = 3, .grace = absl::Milliseconds(50), .kept = 5},
                             Staleness{},
                             Staleness{.bound = 0},
                             Staleness{.bound = 7, .scales_rate = true}};
  for (const Policy& policy : policies) {
    GroupSpec spec = Everything();
    spec.policy = policy;
    const absl::StatusOr<GroupSpec> back = FromProto(ToProto(spec));
    ASSERT_THAT(back, IsOk());
    EXPECT_TRUE(back->policy == policy) << ToString(policy) << " became " << ToString(back->policy);
  }
}

TEST(ContractTest, AGraceThatDoesNotFitIsNotNegative) {
  v1::GroupSpec proto = ToProto(Everything());
  proto.mutable_policy()->mutable_quorum()->set_grace_ms(UINT64_MAX);
  const absl::StatusOr<GroupSpec> spec = FromProto(proto);
  ASSERT_THAT(spec, IsOk());
  EXPECT_EQ(std::get<Quorum>(spec->policy).grace,
            absl::Milliseconds(std::numeric_limits<int64_t>::max()));
}

TEST(ContractTest, OptimizersComeBackAsTheyWere) {
  for (const Optimizer& optimizer : EveryOptimizer()) {
    const absl::StatusOr<Optimizer> back = FromProto(ToProto(optimizer));
    ASSERT_THAT(back, IsOk());
    EXPECT_TRUE(*back == optimizer) << ToProto(optimizer).ShortDebugString();
  }
}

TEST(ContractTest, AHyperparameterThatIsLeftOutHasItsDefault) {
  v1::Optimizer proto;
  proto.mutable_adam()->set_beta1(0.5);
  EXPECT_TRUE(*FromProto(proto) == Optimizer(Adam{.beta1 = 0.5}));
  proto.mutable_sgd();
  EXPECT_TRUE(*FromProto(proto) == Optimizer(Sgd{}));
  // A field that is set to 0 is 0, and not the default.
  proto.mutable_sgd()->set_learning_rate(0);
  EXPECT_TRUE(*FromProto(proto) == Optimizer(Sgd{.learning_rate = 0}));
}

TEST(ContractTest, PlansComeBackAsTheyWere) {
  const GroupPlan plan = PlanOf(Everything(), 3);
  const absl::StatusOr<GroupPlan> back = FromProto(ToProto(plan));
  ASSERT_THAT(back, IsOk());
  EXPECT_EQ(back->id, plan.id);
  EXPECT_EQ(back->spec.tensors, plan.spec.tensors);
  EXPECT_EQ(back->servers, plan.servers);
  EXPECT_EQ(back->layout.chunks().size(), plan.layout.chunks().size());
}

TEST(ContractTest, EpochsRoundsAndErrorsComeBackAsTheyWere) {
  const Epoch epoch{
      4,
      {{MemberId{2}, "w2", Incarnation{~uint64_t{0}}}, {MemberId{0}, "w0", Incarnation{1}}},
      {{GroupId{0}, Round{12}}, {GroupId{3}, Round{0}}}};
  EXPECT_EQ(FromProto(ToProto(epoch)), epoch);
  Epoch scaled = epoch;
  scaled.learning_rate = {0.1, {{GroupId{0}, Round{12}}}};
  EXPECT_EQ(FromProto(ToProto(scaled)), scaled);
  const absl::Status error = absl::AbortedError("job \"iris\" is closed");
  EXPECT_EQ(FromProto(ToProto(error)), error);
}

TEST(ContractTest, AnErrorIsNeverReadAsSuccess) {
  v1::Error proto;
  proto.set_message("odd");
  for (const int code : {0, -1, 17, 1000}) {
    proto.set_code(code);
    EXPECT_EQ(FromProto(proto), absl::UnknownError("odd")) << code;
  }
}

TEST(ContractTest, RefusesValuesOfEnumsThatThisVersionDoesNotKnow) {
  v1::GroupSpec spec = ToProto(Everything());
  spec.mutable_tensors(2)->set_dtype(static_cast<v1::DType>(99));
  ExpectError(FromProto(spec), kInvalid, {"dtype", "\"f16\"", "99", "version 2"});
  spec.mutable_tensors(2)->set_dtype(v1::DTYPE_UNSPECIFIED);
  ExpectError(FromProto(spec), kInvalid, {"dtype", "\"f16\"", "0"});

  spec = ToProto(Everything());
  for (const int reduction : {0, 6, -1}) {
    spec.mutable_rule()->set_reduction(static_cast<v1::Reduction>(reduction));
    ExpectError(FromProto(spec), kInvalid, {"reduction", std::to_string(reduction)});
  }
}

TEST(ContractTest, RefusesAGroupWithoutARuleAndAnOptimizerWithoutAKind) {
  v1::GroupSpec spec = ToProto(Everything());
  spec.clear_rule();
  ExpectError(FromProto(spec), kInvalid, {"the update rule of a group is not set"});
  spec.mutable_rule()->mutable_optimizer();
  ExpectError(FromProto(spec), kInvalid, {"the kind of an optimizer is not set"});
}

TEST(ContractTest, RefusesAPlanThatIsNotTheLayouts) {
  const v1::GroupPlan plan = ToProto(PlanOf(Everything(), 2));
  v1::GroupPlan other = plan;
  other.mutable_chunks()->RemoveLast();
  ExpectError(
      FromProto(other), kInvalid,
      {"\"model\"", std::to_string(plan.chunks_size() - 1), std::to_string(plan.chunks_size())});
  other = plan;
  other.mutable_chunks(1)->set_elements(5);
  ExpectError(FromProto(other), kInvalid, {"chunk 1", "5 elements", "but the layout has"});
  other = plan;
  other.mutable_chunks(1)->set_first_element(1000);
  ExpectError(FromProto(other), kInvalid, {"chunk 1", "from 1000"});
  other = plan;
  other.mutable_chunks(0)->set_dtype(v1::BF16);
  ExpectError(FromProto(other), kInvalid, {"chunk 0"});
  other = plan;
  other.mutable_spec()->mutable_tensors(0)->set_shape(0, -3);
  ExpectError(FromProto(other), kInvalid, {"[-3,5]"});
}

}  // namespace
}  // namespace syncgrads
