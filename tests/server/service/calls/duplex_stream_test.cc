#include "server/service/calls/duplex_stream.h"

#include <grpc/grpc.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/mutex.h"
#include "common/net/open_connections.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/data.grpc.pb.h"
#include "server/core/rounds/unread_bytes.h"
#include "server/service/calls/control_threads.h"
#include "server/service/calls/grpc_stream_call.h"
#include "server/service/calls/stream_deadlines.h"
#include "tests/server/core/fixtures.h"
#include "tests/server/service/stub_worker.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::server {
namespace {

constexpr size_t kMiB = 1 << 20;
constexpr absl::Duration kTimeout = absl::Seconds(10);

grpc::ByteBuffer BufferOf(const v1::UpdateChunk& update) {
  const grpc::Slice slice(update.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

v1::PushChunk LargePush() {
  v1::PushChunk push;
  push.set_payload(std::string(kLargeMessageBytes, 'x'));
  return push;
}

v1::UpdateChunk Update(uint64_t round, size_t bytes = 0) {
  v1::UpdateChunk update;
  update.set_round(round);
  update.set_payload(std::string(bytes, 'x'));
  return update;
}

// Calls `on_each` for each message.
class TestStream : public DuplexStream {
 public:
  using OnEach = std::function<void(TestStream&, int number)>;
  TestStream(std::unique_ptr<StreamCall> call, StreamDeadlines& deadlines,
             std::shared_ptr<UnreadBytes> unread, ControlThreads& threads, OnEach on_each,
             std::function<void()> on_over)
      : DuplexStream(std::move(call), deadlines, std::move(unread), &threads),
        on_each_(std::move(on_each)),
        on_over_(std::move(on_over)) {}

 private:
  void OnMessage(grpc::ByteBuffer&) override { on_each_(*this, ++messages_); }
  void OnOver() override { on_over_(); }

  const OnEach on_each_;
  const std::function<void()> on_over_;
  int messages_ = 0;
};

class DuplexStreamTest : public ::testing::Test,
                         public v1::Data::WithRawCallbackMethod_Exchange<v1::Data::Service> {
 protected:
  // Keeps gRPC initialised between tests: its shutdown after each test may take 10 s.
  static void SetUpTestSuite() { grpc_init(); }

  DuplexStreamTest() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<grpc::Service*>(this));
    server_ = builder.BuildAndStart();
  }
  ~DuplexStreamTest() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Exchange(
      grpc::CallbackServerContext* context) override {
    auto call = std::make_unique<GrpcStreamCall>(context, connections_);
    GrpcStreamCall* const reactor = call.get();
    auto stream = std::make_shared<TestStream>(std::move(call), deadlines_, unread_, threads_,
                                               on_each_, on_over_);
    stream->Start();
    MutexLock lock(mutex_);
    stream_ = stream;
    changed_.NotifyAll();
    return reactor;
  }

  // Returns the server end of the newest stream.
  std::shared_ptr<TestStream> ServersEnd() {
    MutexLock lock(mutex_);
    while (stream_.lock() == nullptr) changed_.WaitUntil(mutex_, absl::InfiniteFuture());
    return stream_.lock();
  }
  std::unique_ptr<DataStream> Open() {
    return std::make_unique<DataStream>(absl::StrCat("127.0.0.1:", port_));
  }
  // Sends 40 messages, each of which is answered with 1 MiB, and reads the answers only then.
  // Returns the most bytes that have waited.
  size_t MostUnreadByALateReader() {
    on_each_ = [this](TestStream& stream, int number) {
      stream.Enqueue(BufferOf(Update(static_cast<uint64_t>(number), kMiB)));
      most_unread_ = std::max<size_t>(most_unread_, unread_->total());
    };
    const auto client = Open();
    for (int i = 0; i < 40; ++i) EXPECT_TRUE(client->Write({}));
    for (uint64_t round = 1; round <= 40; ++round) EXPECT_EQ(client->MustRead().round(), round);
    return most_unread_;
  }

  FakeClock clock_;
  OpenConnections connections_{ConnectionLimits(), [](const std::string&) {}};
  StreamDeadlines deadlines_{kTimeout, clock_};
  std::shared_ptr<UnreadBytes> unread_ = std::make_shared<UnreadBytes>(8 * kMiB);
  std::atomic<size_t> most_unread_ = 0;
  TestStream::OnEach on_each_ = [](TestStream&, int) {};
  std::function<void()> on_over_ = [] {};
  ControlThreads threads_;
  Mutex mutex_;
  CondVar changed_;
  std::weak_ptr<TestStream> stream_ ABSL_GUARDED_BY(mutex_);
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(DuplexStreamTest, APeerThatDoesNotReadIsCutWhenTooMuchWaits) {
  const auto client = Open();
  const auto stream = ServersEnd();
  for (uint64_t round = 1; round <= 20; ++round) stream->Enqueue(BufferOf(Update(round, kMiB)));
  ExpectStatus(client->Finish(), grpc::StatusCode::RESOURCE_EXHAUSTED,
               {"bytes that the peer has not read", absl::StrCat("the limit is ", 8 * kMiB)});
  EXPECT_LT(unread_->total(), 2 * kMiB);
}

TEST_F(DuplexStreamTest, OneMessageMayBeLargerThanTheLimit) {
  unread_->set_limit(kMiB);
  const auto client = Open();
  const auto stream = ServersEnd();
  stream->Enqueue(BufferOf(Update(1, 2 * kMiB)));
  stream->Enqueue(BufferOf(Update(2)));
  EXPECT_EQ(client->MustRead().round(), 1u);
  EXPECT_EQ(client->MustRead().round(), 2u);
}

TEST_F(DuplexStreamTest, APeerThatReadsLateGetsEverythingAndLittleWaits) {
  EXPECT_LE(MostUnreadByALateReader(), 6 * kMiB);
}

TEST_F(DuplexStreamTest, APeerThatDoesNotReadIsNotReadFromItsBoundOn) {
  unread_ = std::make_shared<UnreadBytes>(64 * kMiB, /*pause_at=*/2 * kMiB);
  EXPECT_LE(MostUnreadByALateReader(), 4 * kMiB);
}

TEST_F(DuplexStreamTest, WhatWaitsIsDestroyedWithoutTheLock) {
  struct Hold {
    std::shared_ptr<TestStream> stream;
    std::string bytes = std::string(3 * kMiB, 'x');
  };
  const auto client = Open();
  const auto stream = ServersEnd();
  for (int i = 0; i < 5; ++i) {
    auto* hold = new Hold{stream};
    const grpc::Slice slice(
        hold->bytes.data(), hold->bytes.size(),
        [](void* held) {
          const std::unique_ptr<Hold> hold(static_cast<Hold*>(held));
          hold->stream->Enqueue(BufferOf(Update(1)));  // takes the stream's lock
        },
        hold);
    stream->Enqueue(grpc::ByteBuffer(&slice, 1));
  }
  ExpectStatus(client->Finish(), grpc::StatusCode::RESOURCE_EXHAUSTED, {"limit"});
}

TEST_F(DuplexStreamTest, ACutDoesNotWaitForAPeerThatDoesNotRead) {
  const auto client = Open();
  const auto stream = ServersEnd();
  for (uint64_t round = 1; round <= 4; ++round) stream->Enqueue(BufferOf(Update(round, kMiB)));
  stream->CutWith({grpc::StatusCode::UNAVAILABLE, "the member was dropped"});
  stream->CutWith({grpc::StatusCode::UNAVAILABLE, "again"});
  ExpectStatus(client->Finish(), grpc::StatusCode::UNAVAILABLE, {"the member was dropped"});
}

TEST_F(DuplexStreamTest, AStreamWithoutAHelloEndsInTime) {
  const auto client = Open();
  const auto stream = ServersEnd();
  clock_.Advance(kTimeout - absl::Seconds(1));
  deadlines_.Tick();
  stream->Enqueue(BufferOf(Update(1)));
  EXPECT_EQ(client->MustRead().round(), 1u);
  clock_.Advance(absl::Seconds(1));
  deadlines_.Tick();
  ExpectStatus(client->Finish(), grpc::StatusCode::DEADLINE_EXCEEDED, {"no hello", "10s"});
}

TEST_F(DuplexStreamTest, AStreamWithAHelloHasNoDeadline) {
  on_each_ = [](TestStream& stream, int number) {
    stream.Enqueue(BufferOf(Update(static_cast<uint64_t>(number))));
  };
  const auto client = Open();
  client->Write({});
  EXPECT_EQ(client->MustRead().round(), 1u);
  clock_.Advance(100 * kTimeout);
  deadlines_.Tick();
  client->Write({});
  EXPECT_EQ(client->MustRead().round(), 2u);
}

TEST_F(DuplexStreamTest, AnEndThatIsNotReadIsCutInTime) {
  std::weak_ptr<TestStream> weak;
  const auto client = Open();
  {
    const auto stream = ServersEnd();
    weak = stream;
    for (uint64_t round = 1; round <= 4; ++round) stream->Enqueue(BufferOf(Update(round, kMiB)));
    stream->FinishAfterSending({grpc::StatusCode::ABORTED, "the job is over"});
    clock_.Advance(kTimeout);
    deadlines_.Tick();
  }
  // The client has not read anything.
  EXPECT_TRUE(syncgrads::testing::WaitUntil([&] { return weak.expired(); }));
  ExpectStatus(client->Finish(), grpc::StatusCode::ABORTED, {"the job is over"});
}

TEST_F(DuplexStreamTest, LargeMessagesDoNotHoldUpOtherStreams) {
  absl::Notification other_was_answered;
  on_each_ = [&](TestStream& stream, int number) {
    if (number == 2) other_was_answered.WaitForNotification();
    stream.Enqueue(BufferOf(Update(static_cast<uint64_t>(number))));
  };
  // There are more such streams than gRPC has threads.
  std::vector<std::unique_ptr<DataStream>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(Open());
    clients.back()->Write({});
    clients.back()->Write(LargePush());
    EXPECT_EQ(clients.back()->MustRead().round(), 1u);
  }
  const auto other = Open();
  other->Write({});
  EXPECT_EQ(other->MustRead().round(), 1u);
  other_was_answered.Notify();
  for (const auto& client : clients) EXPECT_EQ(client->MustRead().round(), 2u);
}

TEST_F(DuplexStreamTest, MessagesDoNotHoldUpGrpcsThreads) {
  absl::Notification go_on;
  std::atomic<int> handling = 0, handled = 0;
  on_each_ = [&](TestStream&, int) {
    ++handling;
    go_on.WaitForNotification();
    ++handled;
  };
  // There are more such streams than gRPC has threads.
  std::vector<std::unique_ptr<DataStream>> clients;
  std::shared_ptr<TestStream> newest;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(Open());
    clients.back()->Write({});
    const std::shared_ptr<TestStream> earlier = newest;
    ASSERT_TRUE(syncgrads::testing::WaitUntil([&] { return (newest = ServersEnd()) != earlier; }));
    newest->Enqueue(BufferOf(Update(7)));
    EXPECT_EQ(clients.back()->MustRead().round(), 7u);
  }
  EXPECT_TRUE(syncgrads::testing::WaitUntil([&] { return handling == 1; }));
  go_on.Notify();
  EXPECT_TRUE(syncgrads::testing::WaitUntil([&] { return handled == 20; }));
}

TEST_F(DuplexStreamTest, EndsDoNotHoldUpGrpcsThreads) {
  absl::Notification go_on;
  std::atomic<int> ending = 0, ended = 0;
  on_over_ = [&] {
    ++ending;
    go_on.WaitForNotification();
    ++ended;
  };
  on_each_ = [](TestStream& stream, int) { stream.Enqueue(BufferOf(Update(1))); };
  // There are more such streams than gRPC has threads.
  std::vector<std::unique_ptr<DataStream>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(Open());
    clients.back()->Write({});
    EXPECT_EQ(clients.back()->MustRead().round(), 1u);
  }
  auto other = Open();
  other->Write({});
  EXPECT_EQ(other->MustRead().round(), 1u);
  const std::shared_ptr<TestStream> others_end = ServersEnd();
  clients.clear();
  EXPECT_TRUE(syncgrads::testing::WaitUntil([&] { return ending == 1; }));
  others_end->Enqueue(BufferOf(Update(7)));
  EXPECT_EQ(other->MustRead().round(), 7u);
  go_on.Notify();
  other = nullptr;
  EXPECT_TRUE(syncgrads::testing::WaitUntil([&] { return ended == 21; }));
}

TEST_F(DuplexStreamTest, MessagesStayInOrderWhateverTheirSize) {
  on_each_ = [](TestStream& stream, int number) {
    stream.Enqueue(BufferOf(Update(static_cast<uint64_t>(number))));
  };
  const auto client = Open();
  for (int i = 0; i < 10; ++i) client->Write(i % 3 == 1 ? LargePush() : v1::PushChunk());
  for (uint64_t round = 1; round <= 10; ++round) EXPECT_EQ(client->MustRead().round(), round);
}

TEST_F(DuplexStreamTest, AStreamThatIsCutEndsAfterItsLargeMessageWasHandled) {
  absl::Notification handling, go_on, over;
  std::atomic<bool> handled = false;
  on_each_ = [&](TestStream&, int number) {
    if (number == 1) return;
    handling.Notify();
    go_on.WaitForNotification();
    handled = true;
  };
  on_over_ = [&] {
    EXPECT_TRUE(handled);
    over.Notify();
  };
  const auto client = Open();
  client->Write({});
  client->Write(LargePush());
  handling.WaitForNotification();
  ServersEnd()->CutWith({grpc::StatusCode::UNAVAILABLE, "the member was dropped"});
  ExpectStatus(client->Finish(), grpc::StatusCode::UNAVAILABLE, {"the member was dropped"});
  EXPECT_FALSE(over.HasBeenNotified());
  go_on.Notify();
  over.WaitForNotification();
}

TEST_F(DuplexStreamTest, ALargeMessageOfAStreamThatHasEndedIsNotHandled) {
  absl::Notification go_on, over;
  std::atomic<int> handled = 0;
  on_each_ = [&](TestStream&, int) { ++handled; };
  on_over_ = [&] { over.Notify(); };
  threads_.Handle(MessageWeight::kLarge, "a", [&] { go_on.WaitForNotification(); });
  const auto client = Open();
  client->Write({});
  client->Write(LargePush());
  EXPECT_TRUE(
      syncgrads::testing::WaitUntil([&] { return threads_.waiting(MessageWeight::kLarge) == 2; }));
  ServersEnd()->FinishAfterSending({grpc::StatusCode::ABORTED, "evicted"});
  go_on.Notify();
  ExpectStatus(client->Finish(), grpc::StatusCode::ABORTED, {"evicted"});
  over.WaitForNotification();
  EXPECT_EQ(handled, 1);
}

TEST(ControlThreadsTest, NoKindOfMessageWaitsForAnother) {
  ControlThreads threads;
  absl::Notification go_on, large, registration, light;
  threads.Handle(MessageWeight::kLarge, "a", [&] { go_on.WaitForNotification(); });
  threads.Handle(MessageWeight::kLarge, "a", [&] { large.Notify(); });
  threads.Handle(MessageWeight::kRegistration, "a", [&] { go_on.WaitForNotification(); });
  threads.Handle(MessageWeight::kRegistration, "a", [&] { registration.Notify(); });
  threads.Handle(MessageWeight::kLight, "a", [&] { light.Notify(); });
  light.WaitForNotification();
  EXPECT_FALSE(large.HasBeenNotified());
  EXPECT_FALSE(registration.HasBeenNotified());
  go_on.Notify();
  large.WaitForNotification();
  registration.WaitForNotification();
}

TEST(ControlThreadsTest, OwnersTakeTurns) {
  for (const MessageWeight weight :
       {MessageWeight::kLight, MessageWeight::kRegistration, MessageWeight::kLarge}) {
    absl::Notification started, go_on, done;
    std::string order;  // written by one thread, read after `done`
    ControlThreads threads;
    threads.Handle(weight, "busy", [&] {
      started.Notify();
      go_on.WaitForNotification();
    });
    started.WaitForNotification();
    for (int i = 0; i < 3; ++i) threads.Handle(weight, "busy", [&] { order += 'b'; });
    threads.Handle(weight, "other", [&] { order += 'o'; });
    if (weight == MessageWeight::kLight) threads.End("third", [&] { order += 'e'; });
    threads.Handle(weight, "busy", [&] { done.Notify(); });
    go_on.Notify();
    done.WaitForNotification();
    EXPECT_EQ(order, weight == MessageWeight::kLight ? "boebb" : "bobb");
  }
}

TEST_F(DuplexStreamTest, AHelloIsSmall) {
  on_each_ = [](TestStream&, int) { ADD_FAILURE() << "is not parsed"; };
  const auto client = Open();
  v1::PushChunk push;
  push.set_payload(std::string(kMaxHelloBytes, 'x'));
  client->Write(push);
  ExpectStatus(client->Finish(), grpc::StatusCode::RESOURCE_EXHAUSTED, {"first message", "65536"});
}

}  // namespace
}  // namespace syncgrads::server
