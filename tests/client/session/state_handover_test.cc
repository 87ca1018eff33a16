#include "client/session/state_handover.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/session/session.h"
#include "common/wire/frame.h"
#include "gtest/gtest.h"
#include "tests/client/fake_transport.h"

namespace syncgrads::client {
namespace {

constexpr MemberId kDonor{7}, kNewcomer{8};
constexpr GroupId kModel{0}, kState{1};

// Stores the messages that are sent.
class Kept : public Outbox {
 public:
  void Send(ServerIndex, const ChunkKey&, uint64_t,
            std::shared_ptr<const OutgoingMessage> message) override {
    messages.push_back(std::move(message));
    if (on_send) std::exchange(on_send, nullptr)();
  }
  void Forget(ServerIndex, const ChunkKey&) override {}

  PushHeader last() const { return HeaderOf(*messages.back()); }
  std::vector<std::shared_ptr<const OutgoingMessage>> messages;
  // If set: called by the next Send.
  std::function<void()> on_send;
};

// The member under test is a donor, and its state is one chunk.
class StateHandoverTest : public ::testing::Test {
 protected:
  StateHandoverTest() {
    GroupSpec of;
    of.name = "model";
    const NamedTensor state[] = {{{"w", DType::kI64, {}}, &w_}};
    const GroupSpec spec = StateSpec(of, state);
    rounds_ = std::make_shared<GroupRounds>(
        std::make_shared<const GroupPlan>(
            GroupPlan{kState, spec, *Layout::Create(spec.tensors, 0), {ServerIndex{0}}}),
        Identity{Generation{1}, kDonor, Incarnation{1}}, epoch_, outbox_);
    handover_ = std::make_shared<StateHandover>(kModel, rounds_, state, kDonor, timers_);
  }

  // Makes an epoch that requests the state before step 5, in round `round` of the state's group.
  static Epoch Asking(uint64_t number, uint64_t round) {
    Epoch epoch;
    epoch.number = number;
    epoch.first_rounds = {{kModel, Round{5}}, {kState, Round{round}}};
    epoch.handover = Handover{kDonor, {kNewcomer}, {{kModel, Round{5}}}};
    return epoch;
  }

  void Refuse(const PushHeader& push) {
    UpdateFrame answer;
    answer.header.generation = push.generation;
    answer.header.group = push.group;
    answer.header.round = push.round;
    answer.header.error = absl::AbortedError("made in another epoch");
    ASSERT_TRUE(rounds_->OnUpdate(answer, nullptr).ok());
  }

  int64_t w_ = 1;
  std::atomic<uint64_t> epoch_{1};
  Kept outbox_;
  FakeTimers timers_;
  std::shared_ptr<GroupRounds> rounds_;
  std::shared_ptr<StateHandover> handover_;
};

TEST_F(StateHandoverTest, AStateIsGivenForTheEpochThatAsksForIt) {
  handover_->OnEpoch(Asking(2, 3));
  EXPECT_TRUE(outbox_.messages.empty()) << "the state is not what it is to be before step 5";
  handover_->Open(Round{5});
  ASSERT_EQ(outbox_.messages.size(), 1u);
  EXPECT_EQ(outbox_.last().round, Round{3});
  EXPECT_EQ(outbox_.last().epoch, 2u);
  // With one_epoch, servers refuse the state if the round turns out to belong to a later epoch.
  EXPECT_TRUE(rounds_->plan().spec.one_epoch);
}

TEST_F(StateHandoverTest, ANewerEpochThatAsksInTheSameRoundIsGivenTheStateAgain) {
  handover_->Open(Round{5});
  handover_->OnEpoch(Asking(2, 3));
  Refuse(outbox_.last());
  // The transport still holds the first message.
  handover_->OnEpoch(Asking(3, 3));
  EXPECT_EQ(outbox_.messages.size(), 1u);
  outbox_.messages.clear();
  timers_.Advance(absl::Seconds(1));
  ASSERT_EQ(outbox_.messages.size(), 1u);
  EXPECT_EQ(outbox_.last().round, Round{3});
  EXPECT_EQ(outbox_.last().epoch, 3u);
}

// A thread of the transport that waited here could not release the buffers that Close waits for.
TEST_F(StateHandoverTest, AnEpochDoesNotWaitForAThreadThatIsSendingTheState) {
  handover_->OnEpoch(Asking(2, 3));
  std::future<void> epoch;
  bool arrived = false;
  outbox_.on_send = [&] {
    epoch = std::async(std::launch::async, [this] { handover_->OnEpoch(Asking(3, 3)); });
    arrived = epoch.wait_for(std::chrono::minutes(2)) == std::future_status::ready;
  };
  handover_->Open(Round{5});
  EXPECT_TRUE(arrived) << "OnEpoch waits until the state has been sent";
  epoch.wait();
  ASSERT_EQ(outbox_.messages.size(), 1u);
  // The newer epoch's request is found by the thread that was sending, and is retried until the
  // earlier round is over.
  Refuse(outbox_.last());
  outbox_.messages.clear();
  timers_.Advance(absl::Seconds(1));
  ASSERT_EQ(outbox_.messages.size(), 1u);
  EXPECT_EQ(outbox_.last().epoch, 3u);
}

TEST_F(StateHandoverTest, CloseWaitsUntilTheStateIsNotReadAnyMoreAndNothingIsSentAfterIt) {
  handover_->OnEpoch(Asking(2, 3));
  handover_->Open(Round{5});
  ASSERT_EQ(outbox_.messages.size(), 1u);
  EXPECT_EQ(handover_->Close(absl::InfinitePast()).code(), absl::StatusCode::kDeadlineExceeded);
  handover_->OnEpoch(Asking(3, 3));
  EXPECT_EQ(outbox_.messages.size(), 1u);
  outbox_.messages.clear();
  EXPECT_TRUE(handover_->Close(absl::InfinitePast()).ok());
  timers_.Advance(absl::Seconds(1));
  EXPECT_TRUE(outbox_.messages.empty());
}

// A caller that waits in slices opens the state again after each.
TEST_F(StateHandoverTest, AStateThatCloseGaveUpWhileItWasBeingSentIsGivenAgain) {
  handover_->OnEpoch(Asking(2, 3));
  handover_->Open(Round{5});
  EXPECT_EQ(handover_->Close(absl::InfinitePast()).code(), absl::StatusCode::kDeadlineExceeded);
  handover_->Open(Round{5});
  EXPECT_EQ(outbox_.messages.size(), 1u);  // the transport still holds it
  outbox_.messages.clear();
  timers_.Advance(absl::Seconds(1));
  ASSERT_EQ(outbox_.messages.size(), 1u);
  EXPECT_EQ(outbox_.last().round, Round{3});
  EXPECT_EQ(outbox_.last().epoch, 2u);
}

TEST_F(StateHandoverTest, AnEpochThatArrivesAfterANewerOneIsIgnored) {
  handover_->OnEpoch(Asking(3, 4));
  handover_->OnEpoch(Asking(2, 3));
  handover_->Open(Round{5});
  ASSERT_EQ(outbox_.messages.size(), 1u);
  EXPECT_EQ(outbox_.last().epoch, 3u);
}

TEST_F(StateHandoverTest, AWorkerThatNoEpochListsIsToldThatNobodyBringsItUpToDate) {
  Session session(
      {}, {std::make_unique<FakeTransport>(), std::make_unique<FakeTimers>(), Incarnation{1}});
  const absl::Status status = handover_->Take(Round{5}, timers_.Now(), session);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("group \"state/model\""), std::string::npos) << status;
}

}  // namespace
}  // namespace syncgrads::client
