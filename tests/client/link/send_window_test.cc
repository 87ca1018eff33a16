#include "client/link/send_window.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_transport.h"

namespace syncgrads::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr size_t kMessage = 128 << 10;

// Always has another message, and sends one whenever the window permits it.
class BusySender : public Sender, public std::enable_shared_from_this<BusySender> {
 public:
  BusySender(std::string name, SendWindow& window, std::vector<std::string>& order)
      : name_(std::move(name)), window_(window), order_(order) {}
  void OnTurn() override {
    if (window_.Take(shared_from_this(), kMessage)) order_.push_back(name_);
  }

 private:
  const std::string name_;
  SendWindow& window_;
  std::vector<std::string>& order_;
};

class SendWindowTest : public ::testing::Test {
 protected:
  std::shared_ptr<BusySender> NewSender(std::string name) {
    return std::make_shared<BusySender>(std::move(name), window_, order_);
  }
  // `sender` sends `messages` messages, one after the other. The network takes `time` for each.
  void Pass(int messages, absl::Duration time, const std::shared_ptr<BusySender>& sender) {
    for (int i = 0; i < messages; ++i) {
      sender->OnTurn();
      timers_.Advance(time);
      window_.GiveBack(kMessage);
    }
  }
  // Returns how many messages the window lets a sender send at once.
  int CountRoom() {
    const auto greedy = NewSender("greedy");
    order_.clear();
    size_t before;
    do {
      before = order_.size();
      greedy->OnTurn();
    } while (order_.size() > before && before < 1000);
    const int room = static_cast<int>(order_.size());
    order_.clear();
    for (int i = 0; i < room; ++i) window_.GiveBack(kMessage);
    return room;
  }

  FakeTimers timers_;
  SendWindow window_{timers_};
  std::vector<std::string> order_;
};

TEST_F(SendWindowTest, OnASlowLinkOneMessageIsHandedOverAtATime) {
  Pass(4, absl::Milliseconds(5), NewSender("a"));
  EXPECT_EQ(CountRoom(), 1);
}

TEST_F(SendWindowTest, OnAFastLinkAsManyAsItTakesInTwoMilliseconds) {
  Pass(400, absl::Microseconds(50), NewSender("a"));
  EXPECT_EQ(CountRoom(), 40);
}

TEST_F(SendWindowTest, OrAsManyAsItTakesInAnotherTime) {
  window_.SetMoment(absl::Milliseconds(4));
  Pass(400, absl::Microseconds(50), NewSender("a"));
  EXPECT_EQ(CountRoom(), 80);
}

TEST_F(SendWindowTest, TimeWithoutMessagesIsNoSignOfASlowLink) {
  const auto a = NewSender("a");
  for (int i = 0; i < 400; ++i) {
    timers_.Advance(absl::Seconds(1));
    Pass(1, absl::Microseconds(50), a);
  }
  EXPECT_EQ(CountRoom(), 40);
}

TEST_F(SendWindowTest, ThoseWhoWaitTakeTurns) {
  const auto a = NewSender("a"), b = NewSender("b"), c = NewSender("c");
  Pass(4, absl::Milliseconds(5), a);
  order_.clear();
  for (const auto& sender : {a, b, c, a, b}) sender->OnTurn();
  EXPECT_THAT(order_, ElementsAre("a"));
  for (const auto& sender : {a, b, c, a}) {
    timers_.Advance(absl::Milliseconds(5));
    window_.GiveBack(kMessage);
    sender->OnTurn();  // it has another message and goes to the end of the queue
  }
  EXPECT_THAT(order_, ElementsAre("a", "b", "c", "a", "b"));
}

TEST_F(SendWindowTest, WhoIsGoneIsPassedOver) {
  const auto a = NewSender("a"), c = NewSender("c");
  auto b = NewSender("b");
  Pass(4, absl::Milliseconds(5), a);
  for (const auto& sender : {a, b, c}) sender->OnTurn();
  order_.clear();
  b.reset();
  window_.GiveBack(kMessage);
  EXPECT_THAT(order_, ElementsAre("c"));
}

TEST_F(SendWindowTest, SmallMessagesDoNotWait) {
  const auto a = NewSender("a");
  Pass(4, absl::Milliseconds(5), a);
  a->OnTurn();
  EXPECT_TRUE(window_.Take(a, SendWindow::kSmall - 1));
  window_.GiveBack(SendWindow::kSmall - 1);
  order_.clear();
  a->OnTurn();
  EXPECT_THAT(order_, IsEmpty());
}

}  // namespace
}  // namespace syncgrads::client
