#include "common/rpc/client_stream.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/rpc/grpc_reaper.h"
#include "gtest/gtest.h"
#include "proto/control.grpc.pb.h"

namespace syncgrads {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(1);

using FollowStream = grpc::ServerReaderWriter<v1::PlanSignal, v1::ServerSignal>;
using Script = std::function<grpc::Status(FollowStream&)>;

// A server that runs the same script on every stream.
class FakeServer : public v1::Control::Service {
 public:
  explicit FakeServer(Script script) : script_(std::move(script)) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    stub_ = v1::Control::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                                     grpc::InsecureChannelCredentials()));
  }
  ~FakeServer() override { server_->Shutdown(absl::ToChronoTime(absl::Now())); }

  v1::Control::Stub& stub() { return *stub_; }

  grpc::Status Follow(grpc::ServerContext*, FollowStream* stream) override {
    return script_(*stream);
  }

 private:
  const Script script_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Control::Stub> stub_;
};

v1::ServerSignal Numbered(uint64_t number) {
  v1::ServerSignal signal;
  signal.set_applied(number);
  return signal;
}

// Records the events of a stream. Must outlive the stream.
class Events {
 public:
  void Received(uint64_t number) {
    MutexLock lock(mutex_);
    received_.push_back(number);
    changed_.NotifyAll();
  }
  void Sent() {
    MutexLock lock(mutex_);
    ++sent_;
    changed_.NotifyAll();
  }
  void Over(const grpc::Status& status) {
    MutexLock lock(mutex_);
    ++overs_;
    status_ = status;
    changed_.NotifyAll();
  }

  grpc::Status AwaitOver() {
    MutexLock lock(mutex_);
    const absl::Time deadline = MonotonicNow() + kPatience;
    while (!status_.has_value() && changed_.WaitUntil(mutex_, deadline)) {
    }
    EXPECT_TRUE(status_.has_value()) << "the stream does not end";
    return status_.value_or(grpc::Status::OK);
  }
  // Waits until `count` messages have been received, and returns all that have.
  std::vector<uint64_t> AwaitReceived(size_t count) {
    MutexLock lock(mutex_);
    const absl::Time deadline = MonotonicNow() + kPatience;
    while (received_.size() < count && changed_.WaitUntil(mutex_, deadline)) {
    }
    return received_;
  }
  std::vector<uint64_t> received() const {
    MutexLock lock(mutex_);
    return received_;
  }
  int sent() const {
    MutexLock lock(mutex_);
    return sent_;
  }
  int overs() const {
    MutexLock lock(mutex_);
    return overs_;
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<uint64_t> received_ ABSL_GUARDED_BY(mutex_);
  int sent_ ABSL_GUARDED_BY(mutex_) = 0;
  int overs_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<grpc::Status> status_ ABSL_GUARDED_BY(mutex_);
};

class FollowCall : public ClientStream<v1::PlanSignal, v1::ServerSignal> {
 public:
  explicit FollowCall(Events& events, size_t max_queued = 1 << 16)
      : ClientStream(grpc::WriteOptions(), max_queued), events_(events) {}

  void Start(FakeServer& server, std::deque<v1::ServerSignal> first = {}) {
    server.stub().async()->Follow(&context(), this);
    Begin(std::move(first));
  }

 private:
  void OnMessage(v1::PlanSignal& message) override { events_.Received(message.sequence()); }
  void OnSent() override { events_.Sent(); }
  void OnOver(const grpc::Status& status) override { events_.Over(status); }

  Events& events_;
};

// Reads a message only after ReadNext.
class PatientCall : public FollowCall {
 public:
  using FollowCall::FollowCall;
  using FollowCall::ReadNext;

 private:
  bool ReadsOnRequest() const override { return true; }
};

TEST(ClientStreamTest, SendsInOrderAndFinishes) {
  std::vector<uint64_t> read;
  FakeServer server([&read](FollowStream& stream) {
    for (v1::ServerSignal signal; stream.Read(&signal);) {
      read.push_back(signal.applied());
      v1::PlanSignal answer;
      answer.set_sequence(signal.applied() + 1000);
      stream.Write(answer);
    }
    return grpc::Status::OK;
  });
  Events events;
  {
    GrpcReaper reaper;
    auto call = reaper.Make<FollowCall>(events);
    call->Send(Numbered(77));  // dropped, because the stream is not open
    std::deque<v1::ServerSignal> first;
    first.push_back(Numbered(0));
    first.push_back(Numbered(1));
    call->Start(server, std::move(first));
    for (uint64_t i = 2; i < 100; ++i) call->Send(Numbered(i));
    call->FinishSending();
    call->Send(Numbered(78));  // dropped
    EXPECT_TRUE(events.AwaitOver().ok());
    call->Send(Numbered(79));  // dropped
  }
  ASSERT_EQ(read.size(), 100u);
  const std::vector<uint64_t> answers = events.received();
  ASSERT_EQ(answers.size(), 100u);
  for (uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(read[i], i);
    EXPECT_EQ(answers[i], i + 1000);
  }
  EXPECT_EQ(events.sent(), 100);
  EXPECT_EQ(events.overs(), 1);
}

TEST(ClientStreamTest, LivesUntilItsEndWithoutAnybodyElse) {
  FakeServer server([](FollowStream& stream) {
    v1::ServerSignal signal;
    stream.Read(&signal);
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "nothing is here");
  });
  Events events;
  {
    GrpcReaper reaper;
    std::deque<v1::ServerSignal> first;
    first.push_back(Numbered(0));
    reaper.Make<FollowCall>(events)->Start(server, std::move(first));
  }
  EXPECT_EQ(events.overs(), 1);
  EXPECT_EQ(events.AwaitOver().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST(ClientStreamTest, CancelEndsAStreamThatIsIdle) {
  FakeServer server([](FollowStream& stream) {
    v1::ServerSignal signal;
    while (stream.Read(&signal)) {
    }
    return grpc::Status::OK;
  });
  Events events;
  GrpcReaper reaper;
  auto call = reaper.Make<FollowCall>(events);
  call->Start(server);
  call->Cancel();
  EXPECT_EQ(events.AwaitOver().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(ClientStreamTest, AQueueThatIsFullEndsTheStream) {
  std::atomic<bool> go_on{false};
  FakeServer server([&go_on](FollowStream&) {
    while (!go_on) std::this_thread::yield();
    return grpc::Status::OK;
  });
  Events events;
  GrpcReaper reaper;
  auto call = reaper.Make<FollowCall>(events, 3);
  call->Start(server);
  v1::ServerSignal large;
  large.mutable_hello()->set_token(std::string(1 << 20, 'x'));
  // gRPC and the connection buffer some messages, so several are needed to fill the queue.
  for (int i = 0; i < 100 && events.overs() == 0; ++i) call->Send(v1::ServerSignal(large));
  const grpc::Status status = events.AwaitOver();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(status.error_message().find("3 messages"), std::string::npos) << status.error_message();
  go_on = true;
}

TEST(ClientStreamTest, ReadsTheNextMessageOnRequest) {
  FakeServer server([](FollowStream& stream) {
    for (uint64_t i = 0; i < 20; ++i) {
      v1::PlanSignal message;
      message.set_sequence(i);
      stream.Write(message);
    }
    return grpc::Status::OK;
  });
  Events events;
  GrpcReaper reaper;
  auto call = reaper.Make<PatientCall>(events);
  call->Start(server);
  for (size_t i = 1; i <= 20; ++i) {
    EXPECT_EQ(events.AwaitReceived(i).size(), i);
    EXPECT_EQ(events.overs(), 0) << "the end is read like a message";
    call->ReadNext();
  }
  EXPECT_TRUE(events.AwaitOver().ok());
  call->ReadNext();  // does nothing
  EXPECT_EQ(events.overs(), 1);
}

// The hold prevents a write to a call that gRPC has already freed.
TEST(ClientStreamTest, IsWrittenToFromManyThreadsWhileItEnds) {
  constexpr int kThreads = 3;
  constexpr int kMostQueued = 60'000;  // less than what the queue holds
  FakeServer server([](FollowStream& stream) {
    v1::ServerSignal signal;
    stream.Read(&signal);
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "dies");
  });
  for (int life = 0; life < 200; ++life) {
    Events events;
    GrpcReaper reaper;
    auto call = reaper.Make<FollowCall>(events);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; events.overs() == 0; ++i) {
          // Keeps the queue from being full: at most this many messages of all threads are in it.
          while (kThreads * i > events.sent() + kMostQueued && events.overs() == 0) {
            std::this_thread::yield();
          }
          call->Send(Numbered(static_cast<uint64_t>(i)));
          // The pause sometimes lets the stream end while no write is in progress.
          for (int pause = 0; pause < i % 8 * t; ++pause) std::this_thread::yield();
        }
      });
    }
    // The server reads one message, and what the threads send before the start is dropped. They may
    // have sent all that they can by now, so the stream begins with a message of its own.
    std::deque<v1::ServerSignal> first;
    first.push_back(Numbered(0));
    call->Start(server, std::move(first));
    EXPECT_EQ(events.AwaitOver().error_code(), grpc::StatusCode::UNAVAILABLE);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(events.overs(), 1);
  }
}

}  // namespace
}  // namespace syncgrads
