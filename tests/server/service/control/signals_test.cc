// Every message of a Follow stream that has a plain struct is converted to it and back, with every
// field set. tests/common/contract/signals_test.cc does the same for Join streams.

#include "server/service/control/signals.h"

#include <google/protobuf/text_format.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/contract/contract.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"
#include "tests/common/proto_fields.h"

namespace syncgrads::server {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
const std::set<std::string> kNone;

template <typename Proto>
Proto Parse(const std::string& text) {
  Proto proto;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &proto)) << text;
  return proto;
}

v1::GroupPlan Plan() {
  const GroupSpec spec{"model", {{"kernel", DType::kF32, {4, 3}}}, Reduction::kSum, 64};
  return syncgrads::ToProto(GroupPlan{GroupId{7}, spec, *LayoutOf(spec), {ServerIndex{1}}});
}

v1::PlanSignal ChangeWith(const std::string& kind) {
  return Parse<v1::PlanSignal>("sequence: 3 plan: 4 job: 'iris' generation: 5 " + kind);
}

std::vector<v1::PlanSignal> EveryChange() {
  v1::PlanSignal group = ChangeWith("prepared: 6");
  *group.mutable_group() = Plan();
  return {
      group,
      ChangeWith("opened { token: 'secret' }"),
      ChangeWith("proposal { number: 7 held_for: 'w1 is late' }"),
      ChangeWith("epoch { number: 7 members { member: 1 name: 'ada' incarnation: 8 }"
                 "        first_rounds { group: 2 round: 9 }"
                 "        handover { donor: 1 to: 3 rounds { group: 2 round: 9 } }"
                 "        learning_rate { factor: 0.1 since { group: 2 round: 9 } } }"),
      ChangeWith("ended { member: 1 group: 2 last_round: 9 without_updates: true }"),
      ChangeWith("gone { member: 1 incarnation: 8 reason: 'left' graceful: true evicted: true"
                 "       last_rounds { group: 2 round: 9 } }"),
      ChangeWith("closed { reason: 'all have left' last: true given_up: true }"),
      ChangeWith("quorum { group: 2 round: 9 members: 1 members: 3 }"),
      ChangeWith("norms { group: 2 round: 9 epoch: 7 gradient_factor: 0.5 ratios: 0.25 }"),
  };
}

TEST(ServerSignalsTest, EveryChangeComesBackAsItWas) {
  std::set<int> kinds;
  for (const v1::PlanSignal& sent : EveryChange()) {
    kinds.insert(sent.kind_case());
    EXPECT_EQ(UnsetIn(KindIn(sent)), kNone) << sent.ShortDebugString();
    const absl::StatusOr<PlanChange> change = FromProto(sent);
    ASSERT_THAT(change, IsOk());
    EXPECT_EQ(ToProto(*change).SerializeAsString(), sent.SerializeAsString())
        << sent.ShortDebugString();
  }
  // A preparation is a request and no change.
  EXPECT_EQ(kinds.size(), KindsOf(v1::PlanSignal::descriptor()) - 1);
}

TEST(ServerSignalsTest, APreparationComesBackAsItWasWithAndWithoutAPlan) {
  v1::PlanSignal sent =
      Parse<v1::PlanSignal>("job: 'iris' generation: 5 prepare { key: 6 plan {} }");
  *sent.mutable_prepare()->mutable_plan() = Plan();
  EXPECT_EQ(UnsetIn(sent.prepare()), kNone);
  absl::StatusOr<GroupPreparation> preparation = PreparationFromProto(sent);
  ASSERT_THAT(preparation, IsOk());
  EXPECT_EQ(ToProto(*preparation).SerializeAsString(), sent.SerializeAsString());
  sent.mutable_prepare()->clear_plan();
  preparation = PreparationFromProto(sent);
  ASSERT_THAT(preparation, IsOk());
  EXPECT_EQ(preparation->plan, nullptr);
  EXPECT_EQ(ToProto(*preparation).SerializeAsString(), sent.SerializeAsString());
}

TEST(ServerSignalsTest, EveryReportOfAServerComesBackAsItWas) {
  const auto arrived =
      Parse<v1::Arrived>("job: 'iris' generation: 5 group: 2 round: 9 members: 1 members: 3");
  EXPECT_EQ(UnsetIn(arrived), kNone);
  const std::vector<v1::Arrived> merged = ToProto(FromProto(arrived));
  ASSERT_EQ(merged.size(), 1u);
  EXPECT_EQ(merged[0].SerializeAsString(), arrived.SerializeAsString());

  const auto reduced = Parse<v1::Reduced>(
      "chunks { job: 'iris' generation: 5 group: 2 chunk: 4 round: 9 epoch: 7"
      "         stage: NORMS_OF_TENSORS values: 0.5 values: 1.5 changes: 0.25 changes: 2.5 }"
      "chunks { job: 'iris' generation: 5 group: 2 chunk: 5 round: 9 epoch: 7"
      "         stage: NORM_OF_GRADIENT changes: 0.25 }");
  EXPECT_EQ(UnsetIn(reduced.chunks(0)), kNone);
  const auto chunks = FromProto(reduced);
  ASSERT_THAT(chunks, IsOk());
  EXPECT_EQ(ToProto(*chunks).SerializeAsString(), reduced.SerializeAsString());

  const auto prepared = Parse<v1::ServerSignal>(
      "prepared { job: 'iris' generation: 5 key: 6 made: 7 wanted: 8 done: true"
      "           error { code: 8 message: 'no memory' } }");
  EXPECT_EQ(UnsetIn(prepared.prepared()), kNone);
  EXPECT_EQ(ToProto(FromProto(prepared.prepared())).SerializeAsString(),
            prepared.SerializeAsString());

  const auto failure = Parse<v1::ServerSignal>(
      "store_failure { job: 'iris' generation: 5 error { code: 8 message: 'the disk is full' } }");
  EXPECT_EQ(UnsetIn(failure.store_failure()), kNone);
  EXPECT_EQ(ToProto(FromProto(failure.store_failure())).SerializeAsString(),
            failure.SerializeAsString());
}

TEST(ServerSignalsTest, WhatThisVersionDoesNotKnowIsRefused) {
  ExpectError(FromProto(ChangeWith("")), kInvalid, {"plan signal 3", "no kind"});
  v1::PlanSignal group = ChangeWith("");
  *group.mutable_group() = Plan();
  group.mutable_group()->mutable_spec()->clear_rule();
  ExpectError(FromProto(group), kInvalid, {"update rule"});
  auto reduced = Parse<v1::Reduced>("chunks { job: 'iris' chunk: 4 changes: 0.25 }");
  ExpectError(FromProto(reduced), kInvalid, {"chunk 4", "norm stage 0"});
  reduced.mutable_chunks(0)->set_stage(static_cast<v1::NormStage>(77));
  ExpectError(FromProto(reduced), kInvalid, {"chunk 4", "norm stage 77"});
  reduced.mutable_chunks(0)->set_stage(v1::NORMS_OF_TENSORS);
  ExpectError(FromProto(reduced), kInvalid, {"0 sums of values", "1 of changes"});
}

}  // namespace
}  // namespace syncgrads::server
