#include "server/core/jobs/job.h"

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/codec/codec.h"
#include "common/secret.h"
#include "common/signals/round_wait.h"
#include "gtest/gtest.h"
#include "server/core/closing/closers.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;

// A job on server 0 of two. The group's chunk 0 ("kernel") is on this server, and chunk 1 ("bias"
// and "scale") is on the other one.
class JobTest : public testing::Test {
 protected:
  JobTest() : job_("iris", "secret", Generation{3}, ServerIndex{0}, clock_) {}

  void AddModel() {
    job_.AddGroup(std::make_shared<GroupPlan>(PlanOf(
        {"model",
         {{"kernel", DType::kF32, {32}}, {"bias", DType::kF32, {4}}, {"scale", DType::kF32, {4}}},
         Reduction::kSum,
         128},
        {ServerIndex{0}, ServerIndex{1}})));
  }

  static PushHeader Header(uint32_t member, uint64_t round, uint32_t chunk = 0) {
    PushHeader header = PushOf(member, round, chunk);
    header.generation = Generation{3};
    return header;
  }

  // Pushes `values` zeros of type f32.
  std::shared_ptr<RecordingSink> Push(const PushHeader& header, size_t values = 32) {
    auto sink = std::make_shared<RecordingSink>();
    job_.Push(header, PayloadOf(std::string(values * 4, '\0')), sink);
    return sink;
  }

  FakeClock clock_;
  Job job_;
};

// When the next epoch begins, the member and its last epoch are forgotten.
TEST_F(JobTest, RefusesWhatADroppedMemberHasContributedToARoundOfTheNextEpoch) {
  job_.AddEpoch(EpochOfSize(2));
  AddModel();
  job_.Hold();
  const auto sink = Push(Header(1, 1));
  job_.Remove({MemberId{1}, IncarnationOf(1), "its lease ended"});
  Epoch next = EpochOfSize(1);
  next.number = 2;
  next.first_rounds = {{GroupId{0}, Round{1}}};
  job_.AddEpoch(next);
  ASSERT_EQ(sink->count(), 1u);
  ExpectError(sink->error(), kFailed, {"member 1", "not in epoch 2"});
  EXPECT_THAT(Push(Header(0, 1))->error(), IsOk());
}

TEST_F(JobTest, RefusesAPushThatItCannotPlaceAndNamesBoth) {
  job_.AddEpoch(EpochOfSize(2));
  AddModel();
  const auto refused = [&](const PushHeader& header, absl::StatusCode code,
                           std::initializer_list<std::string> parts, size_t values = 32) {
    const auto sink = Push(header, values);
    ASSERT_EQ(sink->count(), 1u);
    ExpectError(sink->error(), code, parts);
    EXPECT_EQ(sink->last().header.round, header.round);
    EXPECT_EQ(sink->last().header.chunk, header.chunk);
    EXPECT_EQ(sink->last().header.group, header.group);
  };
  PushHeader header = Header(0, 1);
  header.generation = Generation{2};
  refused(header, kFailed, {"generation 2", "\"iris\"", "3", "rejoin"});
  header = Header(0, 1);
  header.group = GroupId{4};
  refused(header, kInvalid, {"\"iris\"", "no group 4", "register"});
  refused(Header(0, 1, 7), kInvalid, {"\"model\"", "2 chunks", "no chunk 7"});
  refused(Header(0, 1, 1), kInvalid, {"chunk 1", "\"model\"", "server 1, not on 0"}, 8);
  refused(Header(0, 1), kInvalid,
          {"gradient \"kernel\" of group \"model\" has 31 values from member 0, layout has 32"},
          31);
}

TEST_F(JobTest, AnotherThreadClosesTheRoundsOfLargeChunks) {
  Closers closers(2);
  Job job("iris", "secret", Generation{3}, ServerIndex{0}, clock_, &closers);
  job.AddEpoch(EpochOfSize(2));
  constexpr size_t kElements = 100'000;
  constexpr uint32_t kChunks = 4;
  std::vector<TensorSpec> tensors;
  for (uint32_t c = 0; c < kChunks; ++c) {
    tensors.push_back({absl::StrCat("t", c), DType::kF32, {int64_t{kElements}}});
  }
  job.AddGroup(std::make_shared<GroupPlan>(
      PlanOf({"model", tensors, Reduction::kSum, kElements * sizeof(float)})));
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (uint64_t round = 1; round <= 3; ++round) {
    for (uint32_t member = 0; member < 2; ++member) {
      for (uint32_t c = 0; c < kChunks; ++c) {
        sinks.push_back(std::make_shared<RecordingSink>());
        const std::vector<float> values(kElements, static_cast<float>(member + c + round));
        job.Push(Header(member, round, c), PayloadOf(BytesOf(values)), sinks.back());
      }
    }
    for (uint32_t c = 0; c < kChunks; ++c) {
      EXPECT_EQ(ValuesOf<float>(sinks[c]->Wait(0).payload),
                std::vector<float>(kElements, static_cast<float>(2 * (c + round) + 1)));
    }
    for (const std::shared_ptr<RecordingSink>& sink : sinks) sink->Wait(0);
    sinks.clear();
  }
}

TEST_F(JobTest, AChunkIsLargeByWhatItDecodesTo) {
  Closers closers(1);
  Job job("iris", "secret", Generation{3}, ServerIndex{0}, clock_, &closers);
  job.AddEpoch(EpochOfSize(1));
  constexpr int64_t kElements = 100'000;
  GroupSpec spec = {"model", {{"w", DType::kF32, {kElements}}}, Reduction::kSum, kMaxChunkBytes};
  spec.compression = {{{Codec::kOneBit}, {}}};
  job.AddGroup(std::make_shared<GroupPlan>(PlanOf(std::move(spec))));
  const auto codec = MakeCodec({Codec::kOneBit});
  const size_t encoded = EncodedSpanBytes(*codec, kElements);
  ASSERT_LT(encoded, 20'000u);
  PushHeader header = Header(0, 1);
  header.codec = Codec::kOneBit;

  std::promise<void> busy;
  closers.Run("another job", [&busy] { busy.get_future().wait(); });
  const auto sink = std::make_shared<RecordingSink>();
  job.Push(header, PayloadOf(std::string(encoded, '\0')), sink);
  EXPECT_EQ(sink->count(), 0u);  // the only closer thread is busy
  busy.set_value();
  EXPECT_EQ(sink->Wait(0).payload.size(), kElements * sizeof(float));
}

TEST_F(JobTest, ABadPushOfOneMemberHindersNobody) {
  job_.AddEpoch(EpochOfSize(2));
  AddModel();
  Push(Header(0, 1), 31);
  const auto first = Push(Header(0, 1)), second = Push(Header(1, 1));
  EXPECT_THAT(first->error(), IsOk());
  EXPECT_EQ(second->values<float>(), std::vector<float>(32));
}

TEST_F(JobTest, AdmitsAMemberThatAnEpochHasAndNobodyElse) {
  DataHello hello{1, "iris", "secret", MemberId{1}, IncarnationOf(1), ""};
  ExpectError(job_.Admit(hello), absl::StatusCode::kUnavailable, {"member 1", "\"iris\"", "yet"});
  job_.AddEpoch(EpochOfSize(2));
  EXPECT_THAT(job_.Admit(hello), IsOk());
  hello.token = "guess";
  ExpectError(job_.Admit(hello), absl::StatusCode::kPermissionDenied, {"\"iris\""});
  hello.token = "secret";
  hello.incarnation = Incarnation{5};
  ExpectError(job_.Admit(hello), kFailed, {"incarnation 5", "\"w1\"", "rejoin"});
}

TEST_F(JobTest, AStreamNeedsTheSecretOfItsMemberOrTheTokenBeforeAnyOtherAnswer) {
  constexpr auto kDenied = absl::StatusCode::kPermissionDenied;
  Epoch epoch = EpochOfSize(2);
  epoch.members[1].secret_hash = HashSecret("of w1");
  DataHello hello{1, "iris", "guess", MemberId{1}, IncarnationOf(1), ""};
  hello.member_secret = "of w1";
  ExpectError(job_.Admit(hello), kDenied, {"token"});  // the member is not known yet
  job_.AddEpoch(epoch);
  EXPECT_THAT(job_.Admit(hello), IsOk());
  EXPECT_TRUE(job_.IsSecretOf(MemberId{1}, "of w1"));
  hello.member_secret = "garbage";
  EXPECT_FALSE(job_.IsSecretOf(MemberId{1}, "garbage"));
  for (const uint32_t member : {1, 7}) {
    hello.member = MemberId{member};
    const absl::Status refused = job_.Admit(hello).status();
    ExpectError(refused, kDenied, {"wrong token", "\"iris\""});
    EXPECT_EQ(refused.message().find("w1"), std::string::npos) << refused;
  }
  hello.member = MemberId{1};
  hello.token = "secret";
  ExpectError(job_.Admit(hello), kDenied, {"wrong secret", "\"w1\""});
}

TEST_F(JobTest, AMemberWithoutASecretIsNotAdmittedWhereOneIsDemanded) {
  job_.AddEpoch(EpochOfSize(2));
  DataHello hello{1, "iris", "secret", MemberId{1}, IncarnationOf(1), ""};
  hello.member_secret = "garbage";
  EXPECT_FALSE(job_.IsSecretOf(MemberId{1}, ""));
  EXPECT_THAT(job_.Admit(hello), IsOk());
  ExpectError(job_.Admit(hello, StreamCredential::kSecret), absl::StatusCode::kPermissionDenied,
              {"no secret is known", "\"w1\""});
}

TEST_F(JobTest, ShowsEveryChangeToGroupsOldAndNew) {
  job_.AddEpoch(EpochOfSize(2));
  AddModel();
  const auto sink = Push(Header(0, 1));
  job_.End({MemberId{1}, GroupId{0}, Round{0}, false});
  EXPECT_EQ(sink->count(), 1u);
  GroupPlan late = OneTensor(DType::kF32, 32, Reduction::kSum);
  late.id = GroupId{1};
  job_.AddGroup(std::make_shared<GroupPlan>(std::move(late)));
  PushHeader header = Header(0, 1);
  header.group = GroupId{1};
  const auto other = Push(header);
  EXPECT_EQ(other->count(), 0u);
  job_.Remove({MemberId{1}, IncarnationOf(1), "lease of 30s ended", false, {}});
  EXPECT_EQ(other->count(), 1u);
}

TEST_F(JobTest, AChangeOfMembersDoesNotWaitForTheChunksThatItCompletes) {
  Closers closers(1);
  std::promise<void> busy;
  closers.Run("another job", [&busy] { busy.get_future().wait(); });
  Job job("iris", "secret", Generation{3}, ServerIndex{0}, clock_, &closers);
  job.AddEpoch(EpochOfSize(4));
  job.AddGroup(std::make_shared<GroupPlan>(OneTensor(DType::kF32, 2, Reduction::kSum)));
  const auto push = [&job](uint32_t member, uint64_t round) {
    auto sink = std::make_shared<RecordingSink>();
    job.Push(Header(member, round), PayloadOf(BytesOf<float>({1, 2})), sink);
    return sink;
  };
  const auto first = push(0, 1);
  job.End({MemberId{1}, GroupId{0}, Round{0}, false});
  job.Remove({MemberId{2}, IncarnationOf(2), "lease of 30s ended", false, {}});
  EXPECT_EQ(push(2, 1)->error().code(), kFailed) << "the change applies to every push after it";
  job.Remove({MemberId{3}, IncarnationOf(3), "lease of 30s ended", false, {}});
  EXPECT_EQ(first->count(), 0u);  // the only closer thread is busy
  busy.set_value();
  EXPECT_EQ(ValuesOf<float>(first->Wait(0).payload), (std::vector<float>{1, 2}));
}

TEST_F(JobTest, AnEpochAppliesToEveryPushAtOnce) {
  Closers closers(1);
  std::promise<void> busy;
  closers.Run("another job", [&busy] { busy.get_future().wait(); });
  Job job("iris", "secret", Generation{3}, ServerIndex{0}, clock_, &closers);
  job.AddEpoch(EpochOfSize(2));
  job.AddGroup(std::make_shared<GroupPlan>(OneTensor(DType::kF32, 2, Reduction::kSum)));
  const auto sink = std::make_shared<RecordingSink>();
  job.Push(Header(0, 1), PayloadOf(BytesOf<float>({1, 2})), sink);
  Epoch epoch = EpochOfSize(1);
  epoch.number = 2;
  job.Hold();
  epoch.first_rounds = {{GroupId{0}, Round{1}}};
  job.AddEpoch(epoch);
  EXPECT_EQ(sink->values<float>(), (std::vector<float>{1, 2}));
  busy.set_value();
}

TEST_F(JobTest, HoldsEveryGroupAtTheOldestRoundThatNoChunkHasAContributionTo) {
  job_.AddEpoch(EpochOfSize(2));
  AddModel();
  EXPECT_THAT(job_.Hold(), ElementsAre(GroupRound{GroupId{0}, Round{1}}));
  Push(Header(0, 1));
  Push(Header(1, 1));
  EXPECT_EQ(job_.Progress()[0].open, Round{1});
  Epoch epoch = EpochOfSize(2);
  epoch.number = 2;
  epoch.first_rounds = {{GroupId{0}, Round{1}}};
  job_.AddEpoch(epoch);
  EXPECT_EQ(job_.Progress()[0].open, Round{2});
  Push(Header(0, 2));
  EXPECT_THAT(job_.Hold(), ElementsAre(GroupRound{GroupId{0}, Round{3}}));
}

TEST_F(JobTest, HasTheFirstRoundToHoldOfAGroupThatIsElsewhere) {
  GroupPlan plan =
      PlanOf({"model", {{"w", DType::kF32, {4}}}, Optimizer(Sgd{}), 0}, {ServerIndex{1}});
  job_.AddEpoch(EpochOfSize(1));
  job_.AddGroup(std::make_shared<GroupPlan>(std::move(plan)));
  EXPECT_THAT(job_.Hold(), ElementsAre(GroupRound{GroupId{0}, Round{0}}));
  EXPECT_EQ(job_.Progress()[0].chunks, 0u);
}

TEST_F(JobTest, ExplainsWhomItWaitsForWhichTensorsAndSinceWhen) {
  job_.AddEpoch(EpochOfSize(3));
  AddModel();
  EXPECT_THAT(job_.Explain(std::nullopt), IsEmpty());
  job_.RecordMessage(MemberId{1}, clock_.Now());
  clock_.Advance(absl::Seconds(2));
  Push(Header(0, 1));
  clock_.Advance(absl::Seconds(5));
  const std::vector<RoundWait> waits = job_.Explain(std::nullopt);
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_EQ(waits[0].round, Round{1});
  EXPECT_EQ(waits[0].open_chunks, 1u);
  EXPECT_EQ(waits[0].open_for, absl::Seconds(5));
  EXPECT_THAT(waits[0].tensors, ElementsAre("kernel"));
  ASSERT_THAT(waits[0].missing, SizeIs(2));
  EXPECT_EQ(waits[0].missing[0].name, "w1");
  EXPECT_EQ(waits[0].missing[0].silent, absl::Seconds(7));
  EXPECT_EQ(waits[0].missing[1].name, "w2");
  EXPECT_EQ(ToString(waits[0]),
            "step 1 of group \"model\" has waited 5.0s for workers \"w1\" (last message 7.0s ago), "
            "\"w2\" (last message 5.0s ago) to contribute tensor \"kernel\"");
  EXPECT_THAT(job_.Explain(GroupId{0}), SizeIs(1));
  EXPECT_THAT(job_.Explain(GroupId{1}), IsEmpty());
}

TEST_F(JobTest, NamesAtMostTenTensorsAndCountsAll) {
  GroupSpec spec{"many", {}, Reduction::kSum, 64};
  for (int t = 0; t < 25; ++t) spec.tensors.push_back({absl::StrCat("t", t), DType::kF32, {4}});
  job_.AddEpoch(EpochOfSize(2));
  job_.AddGroup(std::make_shared<GroupPlan>(PlanOf(spec)));
  for (uint32_t chunk = 0; chunk < 7; ++chunk) Push(Header(0, 1, chunk), chunk < 6 ? 16 : 4);
  const std::vector<RoundWait> waits = job_.Explain(std::nullopt);
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_EQ(waits[0].open_chunks, 7u);
  EXPECT_THAT(waits[0].tensors, SizeIs(10));
  EXPECT_EQ(waits[0].tensor_count, 25u);
  EXPECT_THAT(ToString(waits[0]), testing::HasSubstr("\"t9\" and 15 more"));
}

TEST_F(JobTest, KnowsItsEpochAndItsProgress) {
  EXPECT_EQ(job_.epoch(), std::nullopt);
  job_.AddEpoch(EpochOfSize(2));
  EXPECT_EQ(job_.epoch(), EpochOfSize(2));
  AddModel();
  ASSERT_THAT(job_.Progress(), SizeIs(1));
  EXPECT_EQ(job_.Progress()[0].name, "model");
  EXPECT_EQ(job_.Progress()[0].chunks, 1u);
  EXPECT_EQ(job_.Progress()[0].open, Round{1});
}

}  // namespace
}  // namespace syncgrads::server
