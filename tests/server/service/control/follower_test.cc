#include "server/service/control/follower.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"
#include "tests/server/core/fixtures.h"
#include "tests/testing/reserved_port.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::server {
namespace {

using ::syncgrads::testing::WaitUntil;

using FollowStream = grpc::ServerReaderWriter<v1::PlanSignal, v1::ServerSignal>;

// Runs one script for each stream that is opened.
class FakeCoordinator : public v1::Control::Service {
 public:
  using Script = std::function<grpc::Status(FollowStream&)>;

  explicit FakeCoordinator(std::vector<Script> scripts) : scripts_(std::move(scripts)) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~FakeCoordinator() override { server_->Shutdown(absl::ToChronoTime(absl::Now())); }

  const std::string& address() const { return address_; }
  // Returns true if every script has finished.
  bool done() const {
    MutexLock lock(mutex_);
    return done_ == scripts_.size();
  }

  grpc::Status Follow(grpc::ServerContext*, FollowStream* stream) override {
    Script script;
    {
      MutexLock lock(mutex_);
      if (next_ == scripts_.size()) return {grpc::StatusCode::UNAVAILABLE, "no more scripts"};
      script = scripts_[next_++];
    }
    // Like the real coordinator: the follower learns that it has reached its coordinator before it
    // receives a change.
    stream->SendInitialMetadata();
    const grpc::Status status = script(*stream);
    MutexLock lock(mutex_);
    ++done_;
    return status;
  }

 private:
  const std::vector<Script> scripts_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
  mutable Mutex mutex_;
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t done_ ABSL_GUARDED_BY(mutex_) = 0;
};

v1::ServerSignal Read(FollowStream& stream) {
  v1::ServerSignal signal;
  EXPECT_TRUE(stream.Read(&signal));
  return signal;
}

v1::PlanSignal Signal(uint64_t sequence) {
  v1::PlanSignal signal;
  signal.set_sequence(sequence);
  signal.set_job("iris");
  signal.set_generation(1);
  return signal;
}

v1::PlanSignal Opened(uint64_t sequence) {
  v1::PlanSignal signal = Signal(sequence);
  signal.mutable_opened()->set_token("secret");
  return signal;
}

constexpr uint64_t kAvailable = 123'456;

class FollowerTest : public ::testing::Test {
 protected:
  FollowerTest() : jobs_(ServerIndex{1}, Clock::Real()) {}

  // Ticks until `until` returns true.
  void RunUntil(Follower& follower, const std::function<bool()>& until) {
    EXPECT_TRUE(WaitUntil([&] {
      if (until()) return true;
      follower.Tick();
      return false;
    }));
  }
  FollowerOptions Options(const FakeCoordinator& coordinator) {
    return OptionsFor(coordinator.address());
  }
  FollowerOptions OptionsFor(const std::string& coordinator) {
    return {.coordinator = coordinator,
            .plan = {.index = ServerIndex{1},
                     .address = ":7001",
                     .incarnation = Incarnation{5},
                     .server_token = "servers",
                     .draw_incarnation = [] { return Incarnation{6}; },
                     .available_memory = [] { return kAvailable; }}};
  }

  LineJournal journal_;
  Jobs jobs_;
};

TEST_F(FollowerTest, ReportsItsLoadWithWhatItHasApplied) {
  FakeCoordinator coordinator({[](FollowStream& stream) {
    EXPECT_TRUE(Read(stream).has_hello());
    stream.Write(Opened(1));
    v1::ServerSignal signal = Read(stream);
    // The connection is known to work when the first change has arrived.
    while (!signal.has_load()) signal = Read(stream);
    EXPECT_EQ(signal.load().received_bytes(), 77u);
    EXPECT_TRUE(signal.has_applied());
    EXPECT_LE(signal.applied(), 1u);
    EXPECT_FALSE(signal.has_available_bytes());
    return grpc::Status::OK;
  }});
  FollowerOptions options = Options(coordinator);
  options.load = [] {
    v1::ServerLoad load;
    load.set_received_bytes(77);
    return load;
  };
  Follower follower(options, jobs_, Clock::Real(), journal_);
  RunUntil(follower, [&] { return coordinator.done(); });
}

TEST_F(FollowerTest, IntroducesItselfAppliesAndAcknowledges) {
  FakeCoordinator coordinator({[](FollowStream& stream) {
    const v1::ServerSignal hello = Read(stream);
    EXPECT_EQ(hello.hello().protocol_version(), 2u);
    EXPECT_EQ(hello.hello().index(), 1u);
    EXPECT_EQ(hello.hello().address(), ":7001");
    EXPECT_EQ(hello.hello().incarnation(), 5u);
    EXPECT_EQ(hello.hello().token(), "servers");
    EXPECT_EQ(hello.hello().applied(), 0u);
    EXPECT_EQ(hello.available_bytes(), kAvailable);
    stream.Write(Opened(1));
    const v1::ServerSignal applied = Read(stream);
    EXPECT_EQ(applied.applied(), 1u);
    EXPECT_EQ(applied.available_bytes(), kAvailable);
    return grpc::Status::OK;
  }});
  Follower follower(Options(coordinator), jobs_, Clock::Real(), journal_);
  RunUntil(follower, [&] { return coordinator.done(); });
  ASSERT_NE(jobs_.Find("iris"), nullptr);
  EXPECT_TRUE(jobs_.Find("iris")->HasToken("secret"));
}

TEST_F(FollowerTest, LooksForACoordinatorWhosePlanItHasForSoLong) {
  FakeCoordinator coordinator({[](FollowStream& stream) {
    Read(stream);
    stream.Write(Opened(1));
    Read(stream);
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "goes away");
  }});
  FollowerOptions options = Options(coordinator);
  options.coordinator_timeout = absl::Milliseconds(100);
  Follower follower(options, jobs_, Clock::Real(), journal_);
  RunUntil(follower, [&] { return !follower.status().ok(); });
  ExpectError(follower.status(), absl::StatusCode::kDeadlineExceeded, {coordinator.address()});
}

TEST_F(FollowerTest, IsPatientWithACoordinatorThatHasNothingToSay) {
  absl::Notification told;
  FakeCoordinator coordinator({[&](FollowStream& stream) {
    Read(stream);
    stream.Write(Opened(1));
    Read(stream);
    told.WaitForNotification();
    return grpc::Status::OK;
  }});
  FollowerOptions options = Options(coordinator);
  options.coordinator_timeout = absl::Milliseconds(50);
  Follower follower(options, jobs_, Clock::Real(), journal_);
  RunUntil(follower, [&] { return jobs_.applied() == 1; });
  const absl::Time later = MonotonicNow() + 4 * options.coordinator_timeout;
  RunUntil(follower, [&] { return MonotonicNow() > later; });
  EXPECT_TRUE(follower.status().ok()) << follower.status();
  told.Notify();
}

TEST_F(FollowerTest, WaitsForACoordinatorThatHasNotBeenStarted) {
  const testing::ReservedPort port;
  FollowerOptions options = OptionsFor(port.address());
  options.coordinator_timeout = absl::Milliseconds(50);
  Follower follower(options, jobs_, Clock::Real(), journal_);
  const absl::Time later = MonotonicNow() + 4 * options.coordinator_timeout;
  RunUntil(follower, [&] { return MonotonicNow() > later; });
  EXPECT_TRUE(follower.status().ok()) << follower.status();
}

TEST_F(FollowerTest, ComesBackAndSaysWhereItWas) {
  FakeCoordinator coordinator({[](FollowStream& stream) {
                                 Read(stream);
                                 stream.Write(Opened(1));
                                 Read(stream);
                                 return grpc::Status(grpc::StatusCode::UNAVAILABLE, "goes away");
                               },
                               [](FollowStream& stream) {
                                 EXPECT_EQ(Read(stream).hello().applied(), 1u);
                                 return grpc::Status::OK;
                               }});
  Follower follower(Options(coordinator), jobs_, Clock::Real(), journal_);
  RunUntil(follower, [&] { return coordinator.done(); });
  EXPECT_TRUE(follower.status().ok());
}

TEST_F(FollowerTest, SaysAgainHowFarItIsWhenTheStreamBreaksInAChangeOfTheEpoch) {
  Jobs& jobs = jobs_;
  FakeCoordinator coordinator({[&jobs](FollowStream& stream) {
                                 Read(stream);
                                 stream.Write(Opened(1));
                                 v1::PlanSignal proposal = Signal(2);
                                 proposal.mutable_proposal()->set_number(2);
                                 stream.Write(proposal);
                                 // The follower has applied the proposal, but nothing reads its
                                 // report.
                                 EXPECT_TRUE(WaitUntil([&] { return jobs.applied() == 2; }));
                                 return grpc::Status(grpc::StatusCode::UNAVAILABLE, "goes away");
                               },
                               [](FollowStream& stream) {
                                 EXPECT_EQ(Read(stream).hello().applied(), 2u);
                                 EXPECT_EQ(Read(stream).open_rounds().sequence(), 2u);
                                 v1::PlanSignal epoch = Signal(3);
                                 epoch.mutable_epoch()->set_number(2);
                                 stream.Write(epoch);
                                 EXPECT_EQ(Read(stream).applied(), 3u);
                                 return grpc::Status(grpc::StatusCode::UNAVAILABLE, "goes away");
                               },
                               [](FollowStream& stream) {
                                 EXPECT_EQ(Read(stream).hello().applied(), 3u);
                                 stream.Write(Opened(4));
                                 EXPECT_EQ(Read(stream).applied(), 4u)
                                     << "the epoch has come; it says nothing of rounds";
                                 return grpc::Status::OK;
                               }});
  Follower follower(Options(coordinator), jobs_, Clock::Real(), journal_);
  RunUntil(follower, [&] { return coordinator.done(); });
}

// Closer threads and data plane threads report while the stream ends, at a moment that these
// threads do not control.
TEST_F(FollowerTest, ReportsFromOtherThreadsWhileTheCoordinatorDiesAndComesBack) {
  constexpr int kLives = 100;
  std::atomic<int> deaths{0};
  std::vector<FakeCoordinator::Script> scripts;
  for (int life = 0; life < kLives; ++life) {
    scripts.push_back([&deaths, life](FollowStream& stream) {
      Read(stream);
      // Every second stream ends while a report may be in flight.
      v1::ServerSignal news;
      ++deaths;
      if (life % 2 == 1) stream.Read(&news);
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "dies");
    });
  }
  FakeCoordinator coordinator(std::move(scripts));
  FakeClock clock;
  Follower follower(Options(coordinator), jobs_, clock, journal_);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (uint32_t member = 0; member < 3; ++member) {
    threads.emplace_back([&, member] {
      std::minstd_rand random(member);
      const Arrival arrival{"iris", Generation{1}, GroupId{0}, Round{1}, MemberId{member}};
      ReducedChunk reduced;
      reduced.job = "iris";
      for (int seen = 0; !stop;) {
        const int now = deaths;
        if (now == seen) {
          std::this_thread::yield();
          continue;
        }
        seen = now;
        // Waits a random time, so that the reports come around the end of the stream.
        const absl::Time at = MonotonicNow() + absl::Microseconds(random() % 1000);
        while (MonotonicNow() < at) {
        }
        for (int i = 0; i < 20; ++i) {
          follower.Arrived(arrival);
          follower.Reduced(reduced);
        }
      }
    });
  }
  // Each life has a deadline of its own: all of them together may take minutes on a loaded machine.
  for (int life = 1; life <= kLives; ++life) {
    RunUntil(follower, [&] {
      clock.Advance(absl::Seconds(2));
      return deaths >= life;
    });
  }
  RunUntil(follower, [&] { return coordinator.done(); });
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(follower.status().ok()) << follower.status();
}

TEST_F(FollowerTest, TellsWhoHasArrivedAfterItHasToldThatMemoryIsPrepared) {
  const Arrival arrival{"iris", Generation{1}, GroupId{0}, Round{1}, MemberId{2}};
  std::atomic<bool> greeted{false};
  std::atomic<int> told{0};
  FakeCoordinator coordinator({[&](FollowStream& stream) {
    Read(stream);
    greeted = true;
    EXPECT_EQ(Read(stream).prepared().key(), 7u);
    told = 1;
    EXPECT_EQ(Read(stream).arrived().members(0), 2u);
    told = 2;
    return grpc::Status::OK;
  }});
  Follower follower(Options(coordinator), jobs_, Clock::Real(), journal_);
  RunUntil(follower, [&] { return greeted.load(); });
  follower.Prepared({.job = "iris", .generation = Generation{1}, .key = 7, .done = true});
  RunUntil(follower, [&] { return told == 1; });
  follower.Arrived(arrival);
  RunUntil(follower, [&] { return told == 2; });
}

TEST_F(FollowerTest, GivesUpWhenTheCoordinatorWillNotHaveIt) {
  FakeCoordinator coordinator({[](FollowStream&) {
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "wrong server token");
  }});
  Follower follower(Options(coordinator), jobs_, Clock::Real(), journal_);
  RunUntil(follower, [&] { return !follower.status().ok(); });
  ExpectError(follower.status(), absl::StatusCode::kPermissionDenied, {"wrong server token"});
}

TEST_F(FollowerTest, GivesUpOnAChangeThatItDoesNotUnderstand) {
  FakeCoordinator coordinator({[](FollowStream& stream) {
    Read(stream);
    stream.Write(Signal(1));
    v1::ServerSignal signal;
    EXPECT_FALSE(stream.Read(&signal));
    return grpc::Status::OK;
  }});
  Follower follower(Options(coordinator), jobs_, Clock::Real(), journal_);
  RunUntil(follower, [&] { return !follower.status().ok(); });
  ExpectError(follower.status(), absl::StatusCode::kInvalidArgument,
              {"plan signal 1", "version 2"});
}

}  // namespace
}  // namespace syncgrads::server
