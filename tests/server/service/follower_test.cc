#include "server/service/follower.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/mutex.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using FollowStream = grpc::ServerReaderWriter<v1::PlanSignal, v1::ServerSignal>;

// Plays one script for each stream that is opened.
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
  // Whether every script has been played to its end.
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

class FollowerTest : public testing::Test {
 protected:
  FollowerTest() : jobs_(ServerIndex{1}, Clock::Real()) {}

  // Ticks until then.
  void RunUntil(Follower& follower, const std::function<bool()>& until) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (!until() && absl::Now() < deadline) {
      follower.Tick();
      absl::SleepFor(absl::Milliseconds(5));
    }
    EXPECT_TRUE(until());
  }
  FollowerOptions Options(const FakeCoordinator& coordinator) {
    return {.coordinator = coordinator.address(),
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

TEST_F(FollowerTest, IntroducesItselfAppliesAndAcknowledges) {
  FakeCoordinator coordinator({[](FollowStream& stream) {
    const v1::ServerSignal hello = Read(stream);
    EXPECT_EQ(hello.hello().protocol_version(), 1u);
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
  EXPECT_EQ(jobs_.Find("iris")->token(), "secret");
}

TEST_F(FollowerTest, LooksForACoordinatorWhosePlanItHasForSoLong) {
  FakeCoordinator coordinator({[](FollowStream& stream) {
    Read(stream);
    stream.Write(Opened(1));
    Read(stream);
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "goes away");
  }});
  FollowerOptions options = Options(coordinator);
  options.patience = absl::Milliseconds(100);
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
  options.patience = absl::Milliseconds(50);
  Follower follower(options, jobs_, Clock::Real(), journal_);
  RunUntil(follower, [&] { return jobs_.applied() == 1; });
  const absl::Time later = absl::Now() + 4 * options.patience;
  RunUntil(follower, [&] { return absl::Now() > later; });
  EXPECT_TRUE(follower.status().ok()) << follower.status();
  told.Notify();
}

TEST_F(FollowerTest, WaitsForACoordinatorThatHasNotBeenStarted) {
  FollowerOptions options = Options(FakeCoordinator({}));  // which is gone again
  options.patience = absl::Milliseconds(50);
  Follower follower(options, jobs_, Clock::Real(), journal_);
  const absl::Time later = absl::Now() + 4 * options.patience;
  RunUntil(follower, [&] { return absl::Now() > later; });
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
                                 // It has applied the proposal, and nobody reads what it says.
                                 while (jobs.applied() < 2) absl::SleepFor(absl::Milliseconds(1));
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

TEST_F(FollowerTest, GivesUpWhenTheCoordinatorWillNotHaveIt) {
  FakeCoordinator coordinator({[](FollowStream&) {
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "the servers' token is another");
  }});
  Follower follower(Options(coordinator), jobs_, Clock::Real(), journal_);
  RunUntil(follower, [&] { return !follower.status().ok(); });
  ExpectError(follower.status(), absl::StatusCode::kPermissionDenied, {"token is another"});
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
              {"plan signal 1", "version 1"});
}

}  // namespace
}  // namespace syncgrads::server
