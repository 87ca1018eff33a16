#include "server/core/rounds/answer_sinks.h"

#include <memory>
#include <utility>

#include "gtest/gtest.h"

namespace syncgrads::server {
namespace {

class CountingSink : public AnswerSink {
 public:
  void Send(std::shared_ptr<const RoundResult> /*result*/, bool /*with_payload*/) override {
    ++sent_;
  }
  int sent() const { return sent_; }

 private:
  int sent_ = 0;
};

TEST(AnswerSinksTest, EachSinkGetsAnAnswerOnce) {
  const auto a = std::make_shared<CountingSink>(), b = std::make_shared<CountingSink>();
  std::shared_ptr<AnswerSink> all;
  for (const auto& sink : {a, b, a, b}) all = AlsoTo(std::move(all), sink);
  all->Send(nullptr, true);
  EXPECT_EQ(a->sent(), 1);
  EXPECT_EQ(b->sent(), 1);
}

TEST(AnswerSinksTest, SeveralSinksMayBeAddedToOthers) {
  const auto a = std::make_shared<CountingSink>(), b = std::make_shared<CountingSink>(),
             c = std::make_shared<CountingSink>();
  std::shared_ptr<AnswerSink> all = a;
  all = AlsoTo(std::move(all), AlsoTo(b, c));
  all->Send(nullptr, true);
  for (const auto& sink : {a, b, c}) EXPECT_EQ(sink->sent(), 1);
}

TEST(AnswerSinksTest, OneSinkIsItself) {
  const auto a = std::make_shared<CountingSink>();
  EXPECT_EQ(AlsoTo(nullptr, a), a);
  EXPECT_EQ(AlsoTo(a, a), a);
}

TEST(AnswerSinksTest, StreamsThatHaveEndedAreNotKept) {
  const auto open = std::make_shared<CountingSink>();
  std::shared_ptr<AnswerSink> all = open;
  std::weak_ptr<AnswerSink> ended;
  for (int i = 0; i < 3; ++i) {
    const auto sink = std::make_shared<CountingSink>();
    all = AlsoTo(std::move(all), sink);
    EXPECT_TRUE(ended.expired());
    ended = sink;
  }
  all->Send(nullptr, true);
  EXPECT_EQ(open->sent(), 1);
}

}  // namespace
}  // namespace syncgrads::server
