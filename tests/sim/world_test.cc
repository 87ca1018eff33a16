// Tests the simulated world itself: time, processes, fibers, and the network.

#include "tests/sim/world.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/fibers.h"
#include "tests/sim/network.h"

namespace syncgrads::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

bool Never() { return false; }

constexpr absl::Duration kLong = absl::Seconds(100);

struct Named : Freight {
  explicit Named(std::string name) : name(std::move(name)) {}
  void Keep() override { kept = true; }
  const std::string name;
  bool kept = false;
};

TEST(WorldTest, EventsComeInTheOrderOfTheirTimes) {
  World world(1, false);
  std::vector<int> order;
  world.After(absl::Seconds(2), [&] { order.push_back(3); });
  world.After(absl::Seconds(1), [&] { order.push_back(1); });
  world.After(absl::Seconds(1), [&] { order.push_back(2); });
  const absl::Time start = world.Now();
  EXPECT_FALSE(world.Run(kLong, Never));
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
  EXPECT_EQ(world.Now() - start, absl::Seconds(2));
}

TEST(WorldTest, AFrozenProcessHasItsEventsWhenItIsThawed) {
  World world(1, false);
  Process process("p");
  std::vector<int> order;
  world.After(process, absl::Seconds(1), [&] { order.push_back(1); });
  world.Freeze(process);
  world.After(absl::Seconds(2), [&] {
    EXPECT_THAT(order, IsEmpty());
    world.Thaw(process);
  });
  world.Run(kLong, Never);
  EXPECT_THAT(order, ElementsAre(1));
}

TEST(WorldTest, AProcessThatDiesHasNoMoreEvents) {
  struct Mortal : Process {
    Mortal() : Process("mortal") {}
    void OnDied() override {
      died = true;
      ForgetEvents();
    }
    bool died = false;
  };
  World world(1, false);
  Mortal mortal;
  bool later = false;
  world.After(mortal, absl::Seconds(1), [&] { throw ProcessDied{&mortal}; });
  world.After(mortal, absl::Seconds(2), [&] { later = true; });
  world.Run(kLong, Never);
  EXPECT_TRUE(mortal.died);
  EXPECT_FALSE(later);
}

TEST(FibersTest, WaitsEndWithANotificationOrTheDeadline) {
  World world(1, false);
  Fibers fibers(world);
  Process process("p");
  Mutex mutex;
  CondVar changed;
  std::vector<std::string> order;
  fibers.Start(
      process,
      [&] {
        MutexLock lock(mutex);
        order.push_back(changed.WaitUntil(mutex, world.Now() + absl::Seconds(5)) ? "told" : "late");
        order.push_back(changed.WaitUntil(mutex, world.Now() + absl::Seconds(5)) ? "told" : "late");
      },
      [&] { order.push_back("ended"); });
  fibers.Start(
      process,
      [&] {
        fibers.Sleep(absl::Seconds(1));
        MutexLock lock(mutex);
        changed.NotifyAll();
      },
      [] {});
  const absl::Time start = world.Now();
  world.Run(kLong, [&] { return fibers.running() == 0; });
  EXPECT_THAT(order, ElementsAre("told", "late", "ended"));
  EXPECT_EQ(world.Now() - start, absl::Seconds(6));
}

TEST(FibersTest, OneThatIsKilledCleansUpAndMayWaitMeanwhile) {
  struct Cleanup {
    Fibers& fibers;
    bool& done;
    ~Cleanup() {
      fibers.Sleep(absl::Seconds(1));
      done = true;
    }
  };
  World world(1, false);
  Fibers fibers(world);
  Process process("p");
  bool cleaned = false, went_on = false, ended = false;
  Fibers::Fiber* const fiber = fibers.Start(
      process,
      [&] {
        const Cleanup cleanup{fibers, cleaned};
        fibers.Sleep(absl::Seconds(50));
        went_on = true;
      },
      [&] { ended = true; });
  world.After(absl::Seconds(2), [&] { fibers.Kill(fiber); });
  const absl::Time start = world.Now();
  world.Run(kLong, [&] { return ended; });
  EXPECT_TRUE(cleaned);
  EXPECT_FALSE(went_on);
  EXPECT_EQ(world.Now() - start, absl::Seconds(3));
}

// Connects a client and a server by one stream.
class NetworkTest : public ::testing::Test {
 protected:
  struct End : ServerEnd {
    explicit End(std::vector<std::string>& heard) : heard(heard) {}
    void OnMessage(Freight& message) override {
      heard.push_back(static_cast<Named&>(message).name);
    }
    void OnOver() override { heard.push_back("over"); }
    std::vector<std::string>& heard;
  };

  static NetworkOptions Options() {
    NetworkOptions options;
    options.repeated = 0.5;
    options.out_of_order = 0.5;
    return options;
  }

  std::shared_ptr<Stream> Connect(bool loose) {
    Stream::ClientEnd end;
    end.on_written = [this] { ++written_; };
    end.on_message = [this](Freight& message) {
      client_heard_.push_back(static_cast<Named&>(message).name);
    };
    end.on_closed = [this](const absl::Status& status) {
      client_heard_.push_back(status.ToString());
    };
    auto stream = std::make_shared<Stream>(network_, client_, "server", loose, std::move(end));
    stream->Start([this](std::shared_ptr<Stream> accepted) {
      accepted_ = std::move(accepted);
      return std::make_shared<End>(server_heard_);
    });
    return stream;
  }
  void Run(absl::Duration time = absl::Seconds(10)) { world_.Run(time, Never); }

  World world_{7, false};
  Network network_{world_, Options()};
  Process client_{"client"}, server_{"server"};
  std::shared_ptr<Stream> accepted_;
  std::vector<std::string> client_heard_, server_heard_;
  int written_ = 0;
};

TEST_F(NetworkTest, AStreamDeliversInOrder) {
  network_.Listen("server", &server_);
  const auto stream = Connect(/*loose=*/false);
  std::vector<std::string> sent;
  for (char name = 'a'; name <= 'z'; ++name) {
    sent.push_back(std::string(1, name));
    stream->Write(std::make_shared<Named>(sent.back()));
  }
  Run();
  EXPECT_EQ(server_heard_, sent);
  EXPECT_EQ(written_, 26);
  accepted_->Send(std::make_shared<Named>("answer"));
  accepted_->Finish(absl::NotFoundError("no more"));
  Run();
  EXPECT_THAT(client_heard_, ElementsAre("answer", "NOT_FOUND: no more"));
}

TEST_F(NetworkTest, ALooseStreamRepeatsAndReordersButBeginsWithTheFirst) {
  network_.Listen("server", &server_);
  const auto stream = Connect(/*loose=*/true);
  for (char name = 'a'; name <= 'z'; ++name) {
    stream->Write(std::make_shared<Named>(std::string(1, name)));
  }
  Run();
  EXPECT_EQ(server_heard_.front(), "a");
  EXPECT_GT(server_heard_.size(), 26u);
  EXPECT_FALSE(std::is_sorted(server_heard_.begin(), server_heard_.end()));
}

TEST_F(NetworkTest, WhereNobodyListensAStreamIsClosed) {
  Connect(/*loose=*/false);
  Run();
  EXPECT_THAT(client_heard_, ElementsAre("UNAVAILABLE: nobody at server"));
}

TEST_F(NetworkTest, AFrozenServerAcceptsAStreamWhenItIsThawed) {
  network_.Listen("server", &server_);
  world_.Freeze(server_);
  const auto stream = Connect(/*loose=*/false);
  stream->Write(std::make_shared<Named>("early"));
  Run();
  EXPECT_EQ(accepted_, nullptr);
  EXPECT_THAT(client_heard_, IsEmpty());
  world_.Thaw(server_);
  Run();
  EXPECT_NE(accepted_, nullptr);
  EXPECT_THAT(server_heard_, ElementsAre("early"));
}

TEST_F(NetworkTest, AStreamThatAFrozenServerHasNotAcceptedEndsWithTheServer) {
  network_.Listen("server", &server_);
  world_.Freeze(server_);
  Connect(/*loose=*/false);
  Run();
  network_.ServerDied(server_);
  world_.Thaw(server_);
  Run();
  EXPECT_EQ(accepted_, nullptr);
  EXPECT_THAT(client_heard_, ElementsAre("UNAVAILABLE: the server's connection was reset"));
}

TEST_F(NetworkTest, BothEndsHearOfABreak) {
  network_.Listen("server", &server_);
  const auto stream = Connect(/*loose=*/false);
  Run();
  stream->Break();
  stream->Write(std::make_shared<Named>("lost"));
  Run();
  EXPECT_THAT(server_heard_, ElementsAre("over"));
  EXPECT_THAT(client_heard_, ElementsAre("UNAVAILABLE: the connection broke"));
}

TEST_F(NetworkTest, WhatIsOnItsWayWhenTheSenderDiesIsKept) {
  network_.Listen("server", &server_);
  const auto stream = Connect(/*loose=*/false);
  Run();
  const auto message = std::make_shared<Named>("last");
  accepted_->Send(message);
  network_.ServerDied(server_);
  EXPECT_TRUE(message->kept);
  Run();
  EXPECT_THAT(server_heard_, IsEmpty());
  EXPECT_EQ(client_heard_.back(), "UNAVAILABLE: the server's connection was reset");
}

}  // namespace
}  // namespace syncgrads::sim
