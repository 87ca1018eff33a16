#include "client/link/unanswered.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Outcome = Unanswered::Outcome;

ChunkKey Key(uint32_t chunk, uint64_t round) {
  return {.group = GroupId{1}, .chunk = ChunkId{chunk}, .round = Round{round}};
}

std::shared_ptr<const OutgoingMessage> Message(const std::string& name) {
  return std::make_shared<const OutgoingMessage>(name, Pieces(), nullptr, nullptr);
}

// Marks everything that is queued as sent on `stream` and returns its names in order.
std::vector<std::string> SendAll(Unanswered& unanswered, StreamNumber stream) {
  std::vector<std::string> names;
  while (const auto message = unanswered.Next()) {
    names.push_back(message->header());
    unanswered.MarkSent(stream);
  }
  return names;
}

void Add(Unanswered& unanswered, uint32_t chunk, uint64_t round, uint64_t made_in = 1) {
  EXPECT_EQ(unanswered.Add(Key(chunk, round), made_in, Message(absl::StrCat(chunk, "@", round))),
            nullptr);
}

TEST(UnansweredTest, SendsByChunkAndThenInTheOrderOfAdding) {
  Unanswered unanswered;
  Add(unanswered, 2, 7);
  Add(unanswered, 1, 8);
  Add(unanswered, 0, 9);
  Add(unanswered, 1, 7);
  EXPECT_THAT(SendAll(unanswered, 1), ElementsAre("0@9", "1@8", "1@7", "2@7"));
  EXPECT_THAT(SendAll(unanswered, 1), IsEmpty());
}

TEST(UnansweredTest, QueuesWhatAClosedStreamCarriedAtItsFormerPlace) {
  Unanswered unanswered;
  for (const uint32_t chunk : {0, 1, 2}) Add(unanswered, chunk, 7);
  EXPECT_EQ(unanswered.Next()->header(), "0@7");
  unanswered.MarkSent(1);
  EXPECT_THAT(SendAll(unanswered, 2), ElementsAre("1@7", "2@7"));
  Add(unanswered, 1, 8);
  unanswered.Requeue(2, [](Unanswered::Message&) {});
  EXPECT_THAT(SendAll(unanswered, 3), ElementsAre("1@7", "1@8", "2@7"));
}

TEST(UnansweredTest, AnAnswerRemovesAContributionWhereverItIs) {
  Unanswered unanswered;
  Add(unanswered, 0, 7);
  EXPECT_THAT(SendAll(unanswered, 1), ElementsAre("0@7"));
  unanswered.Requeue(1, [](Unanswered::Message&) {});
  UnansweredContribution answered;
  // The answer to the first attempt arrives when the second is queued.
  EXPECT_EQ(unanswered.Answer(Key(0, 7), UpdateHeader(), answered), Outcome::kAnswered);
  EXPECT_EQ(answered.message->header(), "0@7");
  EXPECT_EQ(unanswered.Next(), nullptr);
  EXPECT_EQ(unanswered.Answer(Key(0, 7), UpdateHeader(), answered), Outcome::kIgnored);
}

TEST(UnansweredTest, ARefusalOfAnEarlierAttemptIsIgnored) {
  Unanswered unanswered;
  Add(unanswered, 0, 7, /*made_in=*/3);
  UpdateHeader refusal;
  refusal.error = absl::FailedPreconditionError("another epoch");
  refusal.epoch = 2;
  UnansweredContribution answered;
  EXPECT_EQ(unanswered.Answer(Key(0, 7), refusal, answered), Outcome::kIgnored);
  refusal.epoch = 3;
  EXPECT_EQ(unanswered.Answer(Key(0, 7), refusal, answered), Outcome::kAnswered);
}

TEST(UnansweredTest, APostponedContributionIsSentAgainOnce) {
  Unanswered unanswered;
  Add(unanswered, 0, 7);
  EXPECT_THAT(SendAll(unanswered, 1), ElementsAre("0@7"));
  UpdateHeader later;
  later.error = absl::UnavailableError("too many bytes are queued");
  UnansweredContribution answered;
  EXPECT_EQ(unanswered.Answer(Key(0, 7), later, answered), Outcome::kPostponed);
  // The same answer again, and the end of the stream, which no longer carries it.
  EXPECT_EQ(unanswered.Answer(Key(0, 7), later, answered), Outcome::kIgnored);
  unanswered.Requeue(1, [](Unanswered::Message&) {});
  EXPECT_EQ(unanswered.Next(), nullptr);
  EXPECT_TRUE(unanswered.Resume(Key(0, 7)));
  EXPECT_THAT(SendAll(unanswered, 2), ElementsAre("0@7"));
  EXPECT_FALSE(unanswered.Resume(Key(0, 7))) << "it is on stream 2";
}

TEST(UnansweredTest, AnAnswerThatWasMalformedIsTakenBack) {
  Unanswered unanswered;
  Add(unanswered, 0, 7);
  Add(unanswered, 0, 8);
  EXPECT_THAT(SendAll(unanswered, 1), ElementsAre("0@7", "0@8"));
  UnansweredContribution answered;
  EXPECT_EQ(unanswered.Answer(Key(0, 7), UpdateHeader(), answered), Outcome::kAnswered);
  unanswered.Restore(Key(0, 7), answered);
  unanswered.Requeue(1, [](Unanswered::Message&) {});
  EXPECT_THAT(SendAll(unanswered, 2), ElementsAre("0@7", "0@8"));
}

TEST(UnansweredTest, ReturnsMessagesInsteadOfDestroyingThem) {
  Unanswered unanswered;
  Add(unanswered, 0, 7);
  Add(unanswered, 1, 7);
  Add(unanswered, 2, 7);
  const auto replaced = unanswered.Add(Key(0, 7), 2, Message("0@7 again"));
  EXPECT_EQ(replaced->header(), "0@7");
  EXPECT_EQ(unanswered.Forget(Key(1, 7))->header(), "1@7");
  EXPECT_EQ(unanswered.Forget(Key(1, 7)), nullptr);
  EXPECT_THAT(SendAll(unanswered, 1), ElementsAre("0@7 again", "2@7"));
  EXPECT_EQ(unanswered.Clear().size(), 2u);
  unanswered.Requeue(1, [](Unanswered::Message&) {});
  EXPECT_EQ(unanswered.Next(), nullptr);
}

}  // namespace
}  // namespace syncgrads::client
