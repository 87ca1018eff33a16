// Which transport the streams to one server use, with a fake transport that the test drives.

#include "client/link/payload_path.h"

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/link/server_link.h"
#include "client/memory/shared_buffers.h"
#include "common/shm/fd_socket.h"
#include "common/shm/handover.h"
#include "common/shm/region.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_transport.h"
#include "tests/client/reported_paths.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kLongEnough = absl::Minutes(2);

std::string Welcome(const std::string& stream, const std::string& refusal = "no memory here",
                    const std::string& socket = "") {
  UpdateHeader header;
  header.welcome = DataWelcome{socket, refusal, stream};
  return EncodeHeader(header, 0);
}

class PayloadPathTest : public ::testing::Test {
 protected:
  // Starts the link. Its streams are open over TCP and have sent their hellos.
  void Start(int connections = 1) {
    ServerLink::Options options;
    options.address = "server0";
    options.connections = connections;
    options.hello.protocol_version = 1;
    options.hello.job = "job";
    options.hello.host_id = host_id_;
    options.unix_socket = unix_socket_;
    options.window = std::make_shared<SendWindow>(timers_);
    options.on_path = [record = lines_.Recorder()](const PathReport& report) {
      record(report.line);
    };
    options.on_update = [this](const UpdateFrame& update, const auto&) {
      if (update.header.shared.has_value()) updates_.push_back(TotalBytes(update.payload));
      return absl::OkStatus();
    };
    options.on_lost = [this](absl::Status status) { lost_ = status; };
    if (shares_) {
      memory_ = std::make_shared<MemoryLink>(options.hello, buffers_);
      options.memory = memory_;
    }
    link_ = std::make_shared<ServerLink>(std::move(options), transport_, timers_);
    link_->Start();
    for (int i = 0; i < connections; ++i) stream(i).Accept();
  }

  void Send(uint32_t chunk) {
    PushHeader header;
    header.chunk = ChunkId{chunk};
    link_->Send({GroupId{}, ChunkId{chunk}, Round{1}}, /*made_in=*/1,
                std::make_shared<const OutgoingMessage>(EncodeHeader(header, 0), Pieces(), nullptr,
                                                        nullptr));
  }
  static std::string AnswerTo(uint32_t chunk) {
    UpdateHeader header;
    header.chunk = ChunkId{chunk};
    header.round = Round{1};
    return EncodeHeader(header, 0);
  }

  FakeDataStream& stream(size_t i) { return *transport_.data.at(i); }
  // Ends the stream `closed` and returns the stream that the link opens next.
  FakeDataStream& Next(FakeDataStream& closed, const absl::Status& status) {
    const size_t before = transport_.data.size();
    closed.Close(status);
    timers_.Advance(absl::Seconds(1));
    EXPECT_EQ(transport_.data.size(), before + 1);
    return *transport_.data.back();
  }
  // Waits until the link cancels `cancelled`, possibly on the thread that sets up shared memory.
  // Ends that stream, and returns the stream that the link opens next.
  FakeDataStream& Replaced(FakeDataStream& cancelled) {
    EXPECT_TRUE(testing::WaitUntil([&] { return cancelled.cancelled.load(); }));
    return Next(cancelled, absl::CancelledError("by this end"));
  }

  void TearDown() override {
    if (link_ == nullptr) return;
    link_->Stop();
    for (const auto& stream : transport_.data) {
      stream->held.clear();
      if (!stream->closed && stream->started) stream->Close(absl::CancelledError("over"));
    }
    link_->AwaitStopped();
  }

  bool shares_ = true;
  bool unix_socket_ = true;
  std::string host_id_ = "this host";
  SharedBuffers buffers_;
  FakeTransport transport_;
  FakeTimers timers_;
  testing::ReportedPaths lines_;
  std::shared_ptr<MemoryLink> memory_;
  std::shared_ptr<ServerLink> link_;
  // The bytes of each result in shared memory.
  std::vector<size_t> updates_;
  absl::Status lost_;
};

TEST_F(PayloadPathTest, StreamsMoveToTheServersUnixSocketWhereNoMemoryIsShared) {
  Start(/*connections=*/2);
  Send(4);
  ASSERT_EQ(stream(0).headers.size(), 2u);
  stream(0).Receive(Welcome("near"));
  EXPECT_TRUE(stream(1).cancelled);
  FakeDataStream& first = Replaced(stream(0));
  FakeDataStream& second = Replaced(stream(1));
  EXPECT_EQ(first.address, "local:near");
  EXPECT_EQ(second.address, "local:near");
  EXPECT_THAT(lines_.lines(), IsEmpty()) << "it is not known yet whether that works";
  first.Accept();
  ASSERT_EQ(first.headers.size(), 2u) << "what had not been answered goes again";
  EXPECT_EQ(first.headers[1].chunk, ChunkId{4});
  first.Receive(Welcome("near"));
  second.Accept();
  second.Receive(Welcome("near"));
  EXPECT_FALSE(first.cancelled);
  EXPECT_FALSE(second.cancelled);
  EXPECT_THAT(lines_.lines(),
              ElementsAre("payloads go over a unix socket (@near): no memory here"));
}

TEST_F(PayloadPathTest, WhatIsSentMeanwhileIsAnsweredOnce) {
  Start();
  stream(0).Receive(Welcome("near"));
  Send(1);
  EXPECT_EQ(stream(0).headers.size(), 1u) << "nothing more goes out on a stream that is replaced";
  FakeDataStream& moved = Replaced(stream(0));
  moved.Accept();
  ASSERT_EQ(moved.headers.size(), 2u);
  moved.Accept();
  moved.Receive(AnswerTo(1));
  FakeDataStream& again = Next(moved, absl::UnavailableError("broken"));
  again.Accept();
  EXPECT_EQ(again.headers.size(), 1u) << "it has been answered";
}

TEST_F(PayloadPathTest, StreamsGoBackToTcpWhereTheUnixSocketIsOutOfReach) {
  Start();
  stream(0).Receive(Welcome("elsewhere"));
  FakeDataStream& moved = Replaced(stream(0));
  ASSERT_EQ(moved.address, "local:elsewhere");
  FakeDataStream& back = Next(moved, absl::UnavailableError("connection refused"));
  EXPECT_EQ(back.address, "server0");
  back.Accept();
  back.Receive(Welcome("elsewhere"));
  EXPECT_FALSE(back.cancelled) << "it has been tried";
  EXPECT_THAT(lines_.lines(),
              ElementsAre("payloads go over TCP: no memory here; the unix "
                          "socket @elsewhere does not work either: connection refused"));
}

TEST_F(PayloadPathTest, WhatAStrangerSaysAtTheUnixSocketIsNotTheServersWord) {
  Start();
  stream(0).Receive(Welcome("a stranger's"));
  FakeDataStream& back = Next(Replaced(stream(0)), absl::PermissionDeniedError("who are you?"));
  EXPECT_EQ(back.address, "server0");
  EXPECT_TRUE(lost_.ok()) << lost_;
  back.Accept();
  back.Close(absl::PermissionDeniedError("who are you?"));
  EXPECT_TRUE(absl::IsPermissionDenied(lost_)) << "of the server itself: " << lost_;
}

TEST_F(PayloadPathTest, AServerThatStartsAgainIsAskedOverTcpAndHasAnother) {
  Start();
  stream(0).Receive(Welcome("old"));
  FakeDataStream& old = Replaced(stream(0));
  old.Accept();
  old.Receive(Welcome("old"));
  FakeDataStream& asked = Next(old, absl::UnavailableError("killed"));
  EXPECT_EQ(asked.address, "server0");
  asked.Accept();
  asked.Receive(Welcome("new"));
  FakeDataStream& moved = Replaced(asked);
  EXPECT_EQ(moved.address, "local:new");
  moved.Accept();
  moved.Receive(Welcome("new"));
  EXPECT_THAT(lines_.lines(), ElementsAre("payloads go over a unix socket (@old): no memory here",
                                          "payloads go over a unix socket (@new): no memory here"));
}

TEST_F(PayloadPathTest, AStreamThatIsNotWantedAnyMoreSaysNothingOfItsSocket) {
  Start(/*connections=*/2);
  stream(0).Receive(Welcome("near"));
  FakeDataStream& first = Replaced(stream(0));
  FakeDataStream& second = Replaced(stream(1));
  first.Accept();
  first.Receive(Welcome("near"));
  link_->SetConnections(1);
  second.Close(absl::CancelledError("by this end"));
  link_->SetConnections(2);
  EXPECT_EQ(transport_.data.back()->address, "local:near");
  EXPECT_THAT(lines_.lines(),
              ElementsAre("payloads go over a unix socket (@near): no memory here"));
}

TEST_F(PayloadPathTest, MemoryThatWasRefusedIsRefusedOnTheNextStreamToo) {
  Start();
  // The memory link tries to connect on its own thread.
  stream(0).Receive(Welcome("", "", "nowhere"));
  EXPECT_TRUE(lines_.AwaitCount(1, absl::Now() + kLongEnough));
  FakeDataStream& again = Next(stream(0), absl::UnavailableError("broken"));
  again.Accept();
  again.Receive(Welcome("near", "", "nowhere"));
  EXPECT_EQ(Replaced(again).address, "local:near");
}

TEST_F(PayloadPathTest, WhereMemoryHasBeenLostTheServerIsAskedAgain) {
  const std::string socket = absl::StrCat("payload-path-test-", std::random_device()());
  auto listener = FdListener::Listen(socket);
  ASSERT_TRUE(listener.ok()) << listener.status();
  std::thread server([&listener] {
    auto accepted = listener->Accept(absl::Now() + kLongEnough);
    ASSERT_TRUE(accepted.ok()) << accepted.status();
    const absl::Time deadline = absl::Now() + kLongEnough;
    EXPECT_TRUE(accepted->Receive(deadline).ok());
    EXPECT_TRUE(accepted->Send(kHandoverOk, nullptr, deadline).ok());
    EXPECT_TRUE(accepted->Receive(deadline).ok());  // then closes the connection
  });
  Start();
  stream(0).Receive(Welcome("near", "", socket));
  FakeDataStream& near = Replaced(stream(0));
  EXPECT_EQ(near.address, "local:near") << "descriptions go there too";
  near.Accept();
  near.Receive(Welcome("near", "", socket));
  EXPECT_TRUE(lines_.AwaitCount(1, absl::Now() + kLongEnough));
  EXPECT_FALSE(near.cancelled);
  memory_->Fetch(GroupId{3});
  EXPECT_TRUE(lines_.AwaitCount(2, absl::Now() + kLongEnough));
  server.join();
  FakeDataStream& asked = Replaced(near);
  EXPECT_EQ(asked.address, "server0") << "a name that the server gave before may be gone with it";
  asked.Accept();
  asked.Receive(Welcome("near", "", socket));
  FakeDataStream& moved = Replaced(asked);
  EXPECT_EQ(moved.address, "local:near");
  moved.Accept();
  moved.Receive(Welcome("near", "", socket));
  EXPECT_THAT(
      lines_.lines(),
      ElementsAre(HasSubstr("payloads go through shared memory"),
                  HasSubstr("payloads go over TCP: the peer has closed"),
                  HasSubstr("payloads go over a unix socket (@near): the peer has closed")));
}

// A server that shares a file of another size than it should, or names a place that is not in it.
TEST_F(PayloadPathTest, ResultsOutsideOfTheSharedMemoryAreRefused) {
  constexpr size_t kShared = 4096;
  const std::string socket = absl::StrCat("payload-path-test-", std::random_device()());
  auto listener = FdListener::Listen(socket);
  ASSERT_TRUE(listener.ok()) << listener.status();
  std::thread server([&listener] {
    const absl::Time deadline = absl::Now() + kLongEnough;
    auto accepted = listener->Accept(deadline);
    ASSERT_TRUE(accepted.ok()) << accepted.status();
    EXPECT_TRUE(accepted->Receive(deadline).ok());
    EXPECT_TRUE(accepted->Send(kHandoverOk, nullptr, deadline).ok());
    auto request = accepted->Receive(deadline);
    ASSERT_TRUE(request.ok()) << request.status();
    EXPECT_EQ(request->text, ToText({HandoverRequest::Kind::kResults, 3}));
    const auto region = SharedRegion::Create("results", kShared);
    ASSERT_TRUE(region.ok()) << region.status();
    const auto descriptor = (*region)->ReadOnlyDescriptor();
    ASSERT_TRUE(descriptor.ok()) << descriptor.status();
    EXPECT_TRUE(accepted->Send(kHandoverOk, &*descriptor, deadline).ok());
    EXPECT_FALSE(accepted->Receive(deadline).ok());  // until the worker has gone
  });
  Start();
  stream(0).Receive(Welcome("near", "", socket));
  FakeDataStream* current = &Replaced(stream(0));
  current->Accept();
  current->Receive(Welcome("near", "", socket));
  memory_->Fetch(GroupId{3});
  memory_->AwaitSettled(absl::Now() + kLongEnough);
  ASSERT_NE(memory_->Results(GroupId{3}), nullptr);
  Send(0);
  const auto shared_answer = [](SharedPiece piece) {
    UpdateHeader header;
    header.round = Round{1};
    header.shared = piece;
    return EncodeHeader(header, 0);
  };
  const SharedPiece outside[] = {{3, 0, kShared + 1},  {3, kShared, 1},      {3, kShared + 1, 0},
                                 {3, ~uint64_t{0}, 2}, {3, 2, ~uint64_t{0}}, {4, 0, 1}};
  for (const SharedPiece& piece : outside) {
    current->Receive(shared_answer(piece));
    EXPECT_TRUE(current->cancelled) << piece.offset;
    EXPECT_THAT(updates_, IsEmpty());
    current = &Next(*current, absl::CancelledError("by this end"));
    current->Accept();
    current->Receive(Welcome("near", "", socket));
  }
  current->Receive(shared_answer({3, 16, kShared - 16}));
  EXPECT_FALSE(current->cancelled);
  EXPECT_THAT(updates_, ElementsAre(kShared - 16));
  memory_->Stop();
  server.join();
}

TEST_F(PayloadPathTest, AWorkerThatSharesNoMemoryMovesToo) {
  shares_ = false;
  Start();
  stream(0).Receive(Welcome("near", "", "memory"));
  FakeDataStream& moved = Replaced(stream(0));
  moved.Accept();
  moved.Receive(Welcome("near", "", "memory"));
  EXPECT_THAT(lines_.lines(), ElementsAre("payloads go over a unix socket (@near): this worker "
                                          "shares no memory"));
}

TEST_F(PayloadPathTest, AWorkerThatIsToldSoStaysWithTcp) {
  unix_socket_ = false;
  Start();
  stream(0).Receive(Welcome("near"));
  EXPECT_FALSE(stream(0).cancelled);
  EXPECT_THAT(lines_.lines(), ElementsAre("payloads go over TCP: no memory here"));
}

TEST_F(PayloadPathTest, AWorkerThatSaysNoHostSaysThatItGoesOverTcp) {
  host_id_ = "";
  Start(/*connections=*/2);
  EXPECT_THAT(lines_.lines(), ElementsAre("payloads go over TCP: the host id of this worker is "
                                          "unknown"));
}

TEST_F(PayloadPathTest, AServerElsewhereIsReachedOverTcpAndThatIsSaidOnce) {
  Start(/*connections=*/2);
  stream(0).Receive(Welcome("", "the server is on another host"));
  stream(1).Receive(Welcome("", "the server is on another host"));
  Next(stream(0), absl::UnavailableError("broken")).Accept();
  transport_.data.back()->Receive(Welcome("", "the server is on another host"));
  EXPECT_THAT(lines_.lines(), ElementsAre("payloads go over TCP: the server is on another host"));
}

}  // namespace
}  // namespace syncgrads::client
