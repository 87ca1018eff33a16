#include "client/session/epoch_history.h"

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr MemberId kSelf{7}, kOther{8};
constexpr GroupId kModel{0};

Epoch EpochOf(uint64_t number, const std::vector<MemberId>& members) {
  Epoch epoch;
  epoch.number = number;
  epoch.first_rounds = {{kModel, Round{10 * number}}};
  for (const MemberId id : members) epoch.members.push_back({id, "", Incarnation{}});
  return epoch;
}

class EpochHistoryTest : public ::testing::Test {
 protected:
  EpochHistoryTest() { history_.SetSelf(kSelf); }

  EpochHistory history_{"server 0", "iris"};
};

TEST_F(EpochHistoryTest, AnEpochIsAddedOnce) {
  EXPECT_EQ(history_.newest(), Epoch());
  EXPECT_EQ(history_.world_size(), 0u);
  EXPECT_TRUE(history_.Add(EpochOf(2, {kSelf}))->first);
  EXPECT_FALSE(history_.Add(EpochOf(2, {kSelf, kOther})).has_value());
  EXPECT_FALSE(history_.Add(EpochOf(1, {kSelf, kOther})).has_value());
  EXPECT_EQ(history_.world_size(), 1u);
  EXPECT_FALSE(history_.Add(EpochOf(3, {kSelf, kOther}))->first);
  EXPECT_EQ(history_.newest().number, 3u);
  EXPECT_EQ(history_.world_size(), 2u);
}

TEST_F(EpochHistoryTest, TheSizeOfAnEpochIsKnownWhileItIsKept) {
  EXPECT_EQ(history_.WorldSizeOf(0), std::nullopt);
  history_.Add(EpochOf(2, {kSelf}));
  history_.Add(EpochOf(4, {kSelf, kOther}));
  EXPECT_EQ(history_.WorldSizeOf(2), 1u);
  EXPECT_EQ(history_.WorldSizeOf(3), std::nullopt);
  EXPECT_EQ(history_.WorldSizeOf(4), 2u);
  EXPECT_EQ(history_.WorldSizeOf(5), std::nullopt);
  for (uint64_t n = 5; n < 5 + EpochHistory::kKeptEpochs; ++n) history_.Add(EpochOf(n, {kSelf}));
  EXPECT_EQ(history_.WorldSizeOf(4), std::nullopt);
}

TEST_F(EpochHistoryTest, AWorkerThatAnEpochDoesNotHaveKeepsItsRank) {
  EXPECT_EQ(history_.rank(), 0u);
  history_.Add(EpochOf(1, {kOther, kSelf}));
  EXPECT_EQ(history_.rank(), 1u);
  history_.Add(EpochOf(2, {kOther}));
  EXPECT_EQ(history_.rank(), 1u);
  EXPECT_EQ(history_.world_size(), 1u);
  history_.Add(EpochOf(3, {kSelf, kOther}));
  EXPECT_EQ(history_.rank(), 0u);
}

TEST_F(EpochHistoryTest, OldEpochsAreForgotten) {
  const uint64_t newest = EpochHistory::kKeptEpochs + 1;
  for (uint64_t number = 1; number <= newest; ++number) history_.Add(EpochOf(number, {kSelf}));
  EXPECT_EQ(history_.Of(kModel, Round{20})->number, 2u);
  EXPECT_EQ(history_.Of(kModel, Round{29})->number, 2u);
  EXPECT_EQ(history_.Of(kModel, Round{1'000'000})->number, newest);
  const absl::Status forgotten = history_.Of(kModel, Round{19}).status();
  EXPECT_EQ(forgotten.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(forgotten.message()), HasSubstr("step 19"));
  // Epoch 1 is not kept any more, so the oldest epoch that is kept is returned.
  EXPECT_EQ(history_.Await(1, absl::InfinitePast())->number, 2u);
}

TEST_F(EpochHistoryTest, AwaitReturnsWhenTheEpochArrives) {
  history_.Add(EpochOf(1, {kSelf}));
  std::thread transport([this] {
    history_.Add(EpochOf(2, {kSelf}));
    history_.Add(EpochOf(4, {kSelf}));
  });
  EXPECT_EQ(history_.Await(3, absl::InfiniteFuture())->number, 4u);
  transport.join();
}

TEST_F(EpochHistoryTest, AwaitNamesTheEpochThatHasNotArrived) {
  history_.Add(EpochOf(1, {kSelf}));
  const absl::Status status = history_.Await(2, absl::InfinitePast()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("server 0 has not sent epoch 2"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"iris\""));
}

TEST_F(EpochHistoryTest, AfterTheEndAwaitReturnsItsReasonForEpochsThatHaveNotArrived) {
  history_.Add(EpochOf(1, {kSelf}));
  std::thread transport([this] { history_.End(absl::AbortedError("evicted")); });
  EXPECT_EQ(history_.Await(2, absl::InfiniteFuture()).status(), absl::AbortedError("evicted"));
  transport.join();
  history_.End(absl::UnavailableError("later"));
  EXPECT_EQ(history_.Await(2, absl::InfiniteFuture()).status(), absl::AbortedError("evicted"));
  EXPECT_EQ(history_.Await(1, absl::InfiniteFuture())->number, 1u);
}

TEST_F(EpochHistoryTest, AListenerGetsTheNewestEpochAndIsPassedOnWithLaterOnes) {
  std::vector<uint64_t> numbers;
  const auto add = [this](uint64_t number) {
    const Epoch epoch = EpochOf(number, {kSelf});
    const std::optional<EpochHistory::Added> added = history_.Add(epoch);
    for (const EpochHistory::Listener& listener : added->listeners) listener(epoch);
  };
  add(1);
  add(2);
  history_.AddListener([&numbers](const Epoch& epoch) { numbers.push_back(epoch.number); });
  add(3);
  EXPECT_THAT(numbers, ElementsAre(2, 3));
}

TEST_F(EpochHistoryTest, TheFirstEpochDecidesWhoIsANewcomer) {
  EXPECT_FALSE(history_.is_newcomer());
  Epoch epoch = EpochOf(5, {kOther, kSelf});
  epoch.handover = Handover{kOther, {kSelf}, {{kModel, Round{51}}}};
  history_.Add(epoch);
  history_.Add(EpochOf(6, {kOther, kSelf}));
  EXPECT_TRUE(history_.is_newcomer());
  EXPECT_EQ(history_.FirstRoundOf(kModel), Round{51});
  EXPECT_EQ(history_.FirstRoundOf(GroupId{1}), std::nullopt);
}

TEST_F(EpochHistoryTest, AWorkerThatWasThereBeforeIsNoNewcomer) {
  history_.Add(EpochOf(5, {kSelf}));
  Epoch epoch = EpochOf(6, {kSelf, kOther});
  epoch.handover = Handover{kSelf, {kOther}, {{kModel, Round{61}}}};
  history_.Add(epoch);
  EXPECT_FALSE(history_.is_newcomer());
  EXPECT_EQ(history_.FirstRoundOf(kModel), std::nullopt);
}

}  // namespace
}  // namespace syncgrads::client
