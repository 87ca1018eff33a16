// The membership of a client, over a transport that the test drives.

#include "client/membership/membership.h"

#include <chrono>
#include <future>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/contract/signals.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_transport.h"

namespace syncgrads::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using RegisterResult = absl::StatusOr<std::shared_ptr<const GroupPlan>>;

class Recorder : public MembershipEvents {
 public:
  void OnWelcome(Generation generation, const Welcome& welcome) override {
    ++welcomes;
    this->generation = generation;
    name = welcome.name;
  }
  void OnEpoch(const Epoch& epoch) override { epochs.push_back(epoch.number); }
  void OnOver(const absl::Status& status) override { over = status; }
  std::vector<GroupRound> Progress() override { return {{GroupId{1}, Round{4}}}; }

  int welcomes = 0;
  Generation generation{};
  std::string name;
  std::vector<uint64_t> epochs;
  absl::Status over;
};

class MembershipTest : public ::testing::Test {
 protected:
  MembershipTest() {
    Membership::Options options;
    options.coordinator = "coordinator:1";
    options.hello.job = "job";
    options.hello.incarnation = Incarnation{77};
    options.hello.world_size = 2;
    membership_ = std::make_shared<Membership>(options, transport_, timers_, events_);
    membership_->Start();
  }
  ~MembershipTest() override {
    membership_->Stop(absl::CancelledError("the client has been abandoned"));
    for (const auto& stream : transport_.control) {
      if (stream->started && !stream->closed) stream->Close(absl::CancelledError(""));
    }
    membership_->AwaitStopped();
  }

  FakeControlStream& stream() { return *transport_.control.back(); }
  static Welcome AWelcome() {
    Welcome welcome;
    welcome.protocol_version = 1;
    welcome.member = MemberId{5};
    welcome.name = "w5";
    welcome.servers = {"server0"};
    welcome.heartbeat_interval = absl::Seconds(2);
    welcome.lease = absl::Seconds(30);
    return welcome;
  }
  static EpochBegun Begun(const Epoch& epoch) { return {std::make_shared<const Epoch>(epoch)}; }
  static Epoch AnEpoch() {
    Epoch epoch;
    epoch.number = 1;
    epoch.members = {{MemberId{5}, "w5", Incarnation{77}}};
    return epoch;
  }
  void BecomeAMember() {
    stream().Accept();
    stream().Receive(AWelcome());
    stream().Receive(Begun(AnEpoch()));
  }
  void ReceiveFromTheWire(const v1::JobSignal& proto) {
    absl::StatusOr<std::optional<JobSignal>> signal = FromProto(proto);
    ASSERT_TRUE(signal.ok() && signal->has_value());
    stream().Receive((*signal)->kind);
  }
  GroupSpec Spec() {
    GroupSpec spec;
    spec.name = "model";
    spec.tensors = {{"w", DType::kF32, {1}}};
    return spec;
  }
  std::shared_ptr<const GroupPlan> PlanOf(const GroupSpec& spec) {
    Layout layout = *Layout::Create(spec.tensors, 0);
    return std::make_shared<const GroupPlan>(
        GroupPlan{GroupId{1}, spec, std::move(layout), {ServerIndex{0}}});
  }
  std::shared_ptr<const GroupPlan> Plan() { return PlanOf(Spec()); }
  template <typename Kind>
  std::vector<Kind> Sent() {
    std::vector<Kind> sent;
    for (const WorkerSignal& signal : stream().sent) {
      if (const Kind* kind = std::get_if<Kind>(&signal)) sent.push_back(*kind);
    }
    return sent;
  }

  FakeTransport transport_;
  FakeTimers timers_;
  Recorder events_;
  std::shared_ptr<Membership> membership_;
};

TEST_F(MembershipTest, IsAMemberFromTheFirstEpochOn) {
  ASSERT_EQ(Sent<Hello>().size(), 1u);
  EXPECT_EQ(Sent<Hello>()[0].generation, Generation{0});
  BecomeAMember();
  EXPECT_EQ(events_.welcomes, 1);
  EXPECT_EQ(events_.generation, Generation{1});
  EXPECT_EQ(events_.name, "w5");
  EXPECT_TRUE(membership_->AwaitEpoch(absl::Now()).ok());
}

TEST_F(MembershipTest, WhoWaitsForTheFirstEpochHearsThatItIsStopped) {
  std::future<absl::Status> awaited = std::async(std::launch::async, [this] {
    return membership_->AwaitEpoch(absl::Now() + absl::Minutes(10));
  });
  membership_->Stop(absl::CancelledError("the client has been abandoned"));
  ASSERT_EQ(awaited.wait_for(std::chrono::minutes(1)), std::future_status::ready);
  EXPECT_EQ(awaited.get(), absl::CancelledError("the client has been abandoned"));
}

TEST_F(MembershipTest, SaysWhatItWaitsForAtTheDeadline) {
  absl::Status status = membership_->AwaitEpoch(absl::Now());
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("coordinator:1"));
  stream().Close(absl::UnavailableError("connection refused"));
  status = membership_->AwaitEpoch(absl::Now());
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("connection refused"));
  timers_.Advance(absl::Seconds(1));
  stream().Receive(Waiting{"server 1 of 2"});
  EXPECT_THAT(std::string(membership_->AwaitEpoch(absl::Now()).message()),
              HasSubstr("server 1 of 2"));
  stream().Accept();
  stream().Receive(AWelcome());
  stream().Receive(Waiting{"2 of 3 members are here"});
  status = membership_->AwaitEpoch(absl::Now());
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 of 3 members are here"));
}

TEST_F(MembershipTest, GivesUpAtOnceWhenItIsRefused) {
  stream().Close(absl::AlreadyExistsError("w5 is alive"));
  EXPECT_EQ(membership_->AwaitEpoch(absl::Now()).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(events_.over.code(), absl::StatusCode::kAlreadyExists);
  timers_.Advance(absl::Minutes(1));
  EXPECT_EQ(transport_.control.size(), 1u);
}

TEST_F(MembershipTest, TriesForAsLongAsItTakesToBeAdmitted) {
  for (int i = 0; i < 100; ++i) {
    stream().Close(absl::UnavailableError("connection refused"));
    timers_.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(transport_.control.size(), 101u);
  BecomeAMember();
  EXPECT_TRUE(membership_->AwaitEpoch(absl::Now()).ok());
}

TEST_F(MembershipTest, SendsHeartbeatsAtTheIntervalItWasTold) {
  BecomeAMember();
  timers_.Advance(absl::Seconds(2));
  ASSERT_EQ(Sent<Heartbeat>().size(), 1u);
  EXPECT_EQ(Sent<Heartbeat>()[0].progress[0].round, Round{4});
  stream().Accept();
  for (int i = 0; i < 3; ++i) {
    timers_.Advance(absl::Seconds(2));
    stream().Accept();
  }
  EXPECT_EQ(Sent<Heartbeat>().size(), 4u);
}

TEST_F(MembershipTest, SendsFiguresWithinASecondAndWithEachHeartbeat) {
  BecomeAMember();
  membership_->ReportFigures({.step = 1});
  membership_->ReportFigures({.step = 2});
  EXPECT_EQ(Sent<Heartbeat>().size(), 0u);
  timers_.Advance(absl::Seconds(1));
  ASSERT_EQ(Sent<Heartbeat>().size(), 1u);
  EXPECT_EQ(Sent<Heartbeat>()[0].figures, TrainingFigures{.step = 2});
  EXPECT_EQ(Sent<Heartbeat>()[0].progress[0].round, Round{4});
  stream().Accept();
  timers_.Advance(absl::Seconds(1));
  ASSERT_EQ(Sent<Heartbeat>().size(), 2u);
  EXPECT_EQ(Sent<Heartbeat>()[1].figures, TrainingFigures{.step = 2});
}

TEST_F(MembershipTest, SendsNoFurtherHeartbeatsForFiguresIfThereIsOneEachSecond) {
  stream().Accept();
  Welcome welcome = AWelcome();
  welcome.heartbeat_interval = absl::Seconds(1);
  stream().Receive(welcome);
  membership_->ReportFigures({.step = 1});
  timers_.Advance(absl::Seconds(1));
  stream().Accept();
  EXPECT_EQ(Sent<Heartbeat>().size(), 1u);
}

TEST_F(MembershipTest, AQueuedHeartbeatGetsTheNewestFigures) {
  BecomeAMember();
  timers_.Advance(absl::Seconds(2));  // sent, and not yet accepted
  membership_->ReportFigures({.step = 1});
  timers_.Advance(absl::Seconds(2));
  membership_->ReportFigures({.step = 2});
  timers_.Advance(absl::Seconds(2));
  stream().Accept();
  stream().Accept();
  ASSERT_EQ(Sent<Heartbeat>().size(), 2u);
  EXPECT_EQ(Sent<Heartbeat>()[1].figures, TrainingFigures{.step = 2});
}

TEST_F(MembershipTest, QueuesOneHeartbeatAtMost) {
  BecomeAMember();
  timers_.Advance(absl::Seconds(20));
  EXPECT_EQ(Sent<Heartbeat>().size(), 1u);
  stream().Accept();
  stream().Accept();
  EXPECT_EQ(Sent<Heartbeat>().size(), 2u);
}

TEST_F(MembershipTest, GoesOnAsTheSameMemberOnANewStreamWithItsRequests) {
  BecomeAMember();
  RegisterResult plan = absl::UnknownError("no answer");
  int answers = 0;
  membership_->Register(Spec(), 0, [&](RegisterResult answer) {
    plan = std::move(answer);
    ++answers;
  });
  ASSERT_EQ(Sent<RegisterGroup>().size(), 1u);
  const uint64_t request = Sent<RegisterGroup>()[0].request;
  stream().Close(absl::UnavailableError("cut"));
  timers_.Advance(absl::Milliseconds(50));
  ASSERT_EQ(transport_.control.size(), 2u);
  ASSERT_EQ(Sent<Hello>().size(), 1u);
  EXPECT_EQ(Sent<Hello>()[0].generation, Generation{1});
  EXPECT_EQ(Sent<Hello>()[0].incarnation, Incarnation{77});
  stream().Accept();
  EXPECT_TRUE(Sent<RegisterGroup>().empty());  // groups are registered only after the welcome
  stream().Receive(AWelcome());
  ASSERT_EQ(Sent<RegisterGroup>().size(), 1u);
  EXPECT_EQ(Sent<RegisterGroup>()[0].request, request);
  EXPECT_EQ(events_.welcomes, 1);
  stream().Receive(Registered{request, Plan()});
  stream().Receive(Registered{request, Plan()});
  EXPECT_EQ(answers, 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ((*plan)->id, GroupId{1});
  EXPECT_TRUE(membership_->status().ok());
}

TEST_F(MembershipTest, IsOverWhenTheCoordinatorIsOutOfReachForALease) {
  BecomeAMember();
  for (int i = 0; i < 28; ++i) {
    stream().Close(absl::UnavailableError("no route"));
    timers_.Advance(absl::Seconds(1));
  }
  EXPECT_TRUE(membership_->status().ok());
  for (int i = 0; i < 4 && membership_->status().ok(); ++i) {
    stream().Close(absl::UnavailableError("no route"));
    timers_.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(membership_->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(events_.over, membership_->status());
  EXPECT_THAT(std::string(membership_->status().message()), HasSubstr("no route"));
}

TEST_F(MembershipTest, IsOverInAnotherGeneration) {
  BecomeAMember();
  stream().Close(absl::UnavailableError("cut"));
  timers_.Advance(absl::Seconds(1));
  stream().Accept();
  stream().Receive(AWelcome(), Generation{2});
  EXPECT_EQ(membership_->status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(stream().cancelled);
}

TEST_F(MembershipTest, AnswersItsRequestsWhenItIsExpelled) {
  BecomeAMember();
  absl::Status answer;
  membership_->Register(Spec(), 0, [&](RegisterResult plan) { answer = plan.status(); });
  stream().Receive(Expelled{absl::AbortedError("evicted by ada")});
  EXPECT_EQ(answer, absl::AbortedError("evicted by ada"));
  EXPECT_EQ(events_.over, answer);
  membership_->Register(Spec(), 0, [&](RegisterResult plan) { answer = plan.status(); });
  EXPECT_EQ(answer, absl::AbortedError("evicted by ada"));
  stream().Close(absl::CancelledError(""));
  timers_.Advance(absl::Seconds(1));
  EXPECT_EQ(transport_.control.size(), 1u);
}

TEST_F(MembershipTest, HandsOnARefusal) {
  BecomeAMember();
  absl::Status answer;
  membership_->Register(Spec(), 0, [&](RegisterResult plan) { answer = plan.status(); });
  stream().Receive(
      Refused{Sent<RegisterGroup>()[0].request, absl::InvalidArgumentError("two shapes")});
  EXPECT_EQ(answer, absl::InvalidArgumentError("two shapes"));
  EXPECT_TRUE(membership_->status().ok());
}

// What a worker receives if the coordinator sends an error without a code and a message.
TEST_F(MembershipTest, StatesThatTheCoordinatorHasSentNoReason) {
  BecomeAMember();
  std::vector<absl::Status> answers;
  const auto answer = [&](RegisterResult plan) { answers.push_back(plan.status()); };
  membership_->Register(Spec(), 0, answer);
  v1::JobSignal refused;
  refused.mutable_refused()->set_request(Sent<RegisterGroup>()[0].request);
  refused.mutable_refused()->mutable_error();
  ReceiveFromTheWire(refused);
  membership_->Register(Spec(), 0, answer);
  v1::JobSignal expelled;
  expelled.mutable_expelled();
  ReceiveFromTheWire(expelled);
  EXPECT_THAT(answers, ElementsAre(absl::UnknownError("refused without a reason"),
                                   absl::UnknownError("expelled without a reason")));
  EXPECT_EQ(events_.over, absl::UnknownError("expelled without a reason"));
  EXPECT_EQ(membership_->status(), events_.over);
}

TEST_F(MembershipTest, KeepsTheCodeOfAnErrorWithoutAMessage) {
  BecomeAMember();
  v1::JobSignal expelled;
  expelled.mutable_expelled()->set_code(static_cast<int>(absl::StatusCode::kAborted));
  ReceiveFromTheWire(expelled);
  EXPECT_EQ(events_.over, absl::AbortedError("expelled without a reason"));
}

TEST_F(MembershipTest, IsOverWhenItIsExpelledWithoutAnError) {
  BecomeAMember();
  stream().Receive(Expelled{absl::OkStatus()});
  EXPECT_EQ(events_.over, absl::UnknownError("expelled without a reason"));
}

// The plan has the sizes of the buffers that the caller passes later.
TEST_F(MembershipTest, RefusesThePlanOfAGroupThatItHasNotRegistered) {
  BecomeAMember();
  GroupSpec larger = Spec();
  larger.tensors[0].shape = {1000};
  GroupSpec more = Spec();
  more.tensors.push_back({"v", DType::kF32, {1}});
  GroupSpec wider = Spec();
  wider.tensors[0].dtype = DType::kF64;
  GroupSpec other = Spec();
  other.name = "other";
  GroupSpec gather = Spec();
  gather.rule = Gather();
  for (const GroupSpec& spec : {larger, more, wider, other, gather}) {
    absl::Status answer;
    membership_->Register(Spec(), 0, [&](RegisterResult plan) { answer = plan.status(); });
    stream().Receive(Registered{Sent<RegisterGroup>().back().request, PlanOf(spec)});
    stream().Accept();
    EXPECT_EQ(answer.code(), absl::StatusCode::kInvalidArgument) << ToString(spec.tensors[0]);
    EXPECT_THAT(std::string(answer.message()), HasSubstr("group \"model\""));
  }
  // The coordinator chooses the size of chunks.
  GroupSpec chunks = Spec();
  chunks.chunk_bytes = 4096;
  RegisterResult answer = absl::UnknownError("no answer");
  membership_->Register(Spec(), 0, [&](RegisterResult plan) { answer = plan; });
  stream().Receive(Registered{Sent<RegisterGroup>().back().request, PlanOf(chunks)});
  EXPECT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(membership_->status().ok());
}

TEST_F(MembershipTest, IsOverWhenTheCoordinatorSendsAnEpochThatCannotBe) {
  Epoch empty = AnEpoch();
  empty.members.clear();
  Epoch twice = AnEpoch();
  twice.members.push_back(twice.members[0]);
  Epoch rate = AnEpoch();
  rate.learning_rate.factor = std::numeric_limits<double>::quiet_NaN();
  const Epoch epochs[] = {empty, twice, rate};
  const std::string faults[] = {"no members", "member 5 is listed twice", "nan"};
  for (size_t i = 0; i < std::size(epochs); ++i) {
    FakeTransport transport;
    Recorder events;
    Membership::Options options;
    options.coordinator = "coordinator:1";
    const auto membership = std::make_shared<Membership>(options, transport, timers_, events);
    membership->Start();
    FakeControlStream& control = *transport.control.back();
    control.Accept();
    control.Receive(AWelcome());
    control.Receive(Begun(epochs[i]));
    EXPECT_EQ(events.over.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(events.over.message()),
                AllOf(HasSubstr("coordinator:1"), HasSubstr("epoch 1"), HasSubstr(faults[i])));
    EXPECT_THAT(events.epochs, IsEmpty());
    EXPECT_EQ(membership->AwaitEpoch(absl::InfinitePast()), events.over);
    EXPECT_TRUE(control.cancelled);
    membership->Stop(absl::CancelledError("over"));
    control.Close(absl::CancelledError(""));
    membership->AwaitStopped();
  }
}

TEST_F(MembershipTest, SendsARegistrationAgainThatAServerCouldNotTakeYet) {
  BecomeAMember();
  std::optional<RegisterResult> answer;
  membership_->Register(Spec(), 0, [&](RegisterResult plan) { answer = std::move(plan); });
  const uint64_t request = Sent<RegisterGroup>()[0].request;
  stream().Accept();
  for (size_t attempt = 1; attempt <= 3; ++attempt) {
    stream().Receive(Refused{request, absl::UnavailableError("server 1: Too many open files")});
    EXPECT_FALSE(answer.has_value());
    EXPECT_THAT(membership_->waiting_for(), HasSubstr("Too many open files"));
    EXPECT_EQ(Sent<RegisterGroup>().size(), attempt);
    timers_.Advance(absl::Seconds(1));
    stream().Accept();
    ASSERT_EQ(Sent<RegisterGroup>().size(), attempt + 1);
    EXPECT_EQ(Sent<RegisterGroup>()[attempt].request, request);
  }
  stream().Receive(Registered{request, Plan()});
  ASSERT_TRUE(answer.has_value());
  EXPECT_TRUE(answer->ok());
  EXPECT_EQ(membership_->waiting_for(), "");
  timers_.Advance(absl::Minutes(1));
  EXPECT_EQ(Sent<RegisterGroup>().size(), 4u);
}

TEST_F(MembershipTest, SendsARefusedRegistrationOnceOnANewStream) {
  BecomeAMember();
  std::optional<RegisterResult> answer;
  membership_->Register(Spec(), 0, [&](RegisterResult plan) { answer = std::move(plan); });
  const uint64_t request = Sent<RegisterGroup>()[0].request;
  stream().Accept();
  stream().Receive(Refused{request, absl::UnavailableError("server 1: Too many open files")});
  stream().Close(absl::UnavailableError("reset"));
  timers_.Advance(absl::Seconds(1));
  ASSERT_EQ(transport_.control.size(), 2u);
  stream().Accept();
  stream().Receive(AWelcome());
  EXPECT_EQ(Sent<RegisterGroup>().size(), 1u);
  EXPECT_FALSE(answer.has_value());
  stream().Receive(Refused{request, absl::InvalidArgumentError("two shapes")});
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status(), absl::InvalidArgumentError("two shapes"));
}

TEST_F(MembershipTest, DoesNotComeBackAfterItHasLeft) {
  BecomeAMember();
  EXPECT_EQ(membership_->Leave({{GroupId{1}, Round{4}}}, absl::Now()).code(),
            absl::StatusCode::kDeadlineExceeded);
  ASSERT_EQ(Sent<Leave>().size(), 1u);
  stream().Receive(Done{Sent<Leave>()[0].request});
  stream().Close(absl::OkStatus());
  timers_.Advance(absl::Seconds(5));
  EXPECT_EQ(transport_.control.size(), 1u);
  EXPECT_TRUE(membership_->Leave({}, absl::Now()).ok());
  EXPECT_TRUE(events_.over.ok());
}

}  // namespace
}  // namespace syncgrads::client
