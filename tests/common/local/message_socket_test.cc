#include "common/local/message_socket.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/local/socket_loop.h"
#include "common/mutex.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads {
namespace {

using Side = MessageSocket::Side;

constexpr size_t kMostBytes = 64 << 20;
constexpr size_t kLarge = 1 << 20;  // more than a socket has room for

// Two ends of a unix socket that do not block.
std::array<FileDescriptor, 2> SocketPair() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

// One end of a stream, which remembers what happens.
class End : public MessageSocket::Events {
 public:
  End(FileDescriptor socket, Side side, size_t most_bytes = kMostBytes)
      : socket_(std::make_shared<MessageSocket>(std::move(socket), side, most_bytes)) {}

  // `reads`: further messages are read without being asked for.
  static std::shared_ptr<End> Start(FileDescriptor socket, Side side, SocketLoop& loop,
                                    bool reads = true, size_t most_bytes = kMostBytes) {
    auto end = std::make_shared<End>(std::move(socket), side, most_bytes);
    end->reads_ = reads;
    end->socket_->Start(loop, end);
    end->socket_->ReadNext();
    return end;
  }

  MessageSocket& socket() { return *socket_; }
  bool Write(const std::string& message) {
    auto memory = std::make_shared<const std::string>(message);
    const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(memory->data()),
                                            memory->size());
    written_ = memory;
    // In two pieces and an empty one.
    const absl::Span<const std::byte> pieces[] = {
        bytes.first(bytes.size() / 2), {}, bytes.subspan(bytes.size() / 2)};
    return socket_->Write(pieces, std::move(memory));
  }
  // Whether somebody has the message that was written last.
  bool IsHeld() const { return !written_.expired(); }

  // Waits for the next message.
  std::string Next() {
    MutexLock lock(mutex_);
    while (messages_.size() == next_) changed_.WaitUntil(mutex_, absl::InfiniteFuture());
    return messages_[next_++];
  }
  size_t messages() {
    MutexLock lock(mutex_);
    return messages_.size();
  }
  void AwaitWritten(int count) {
    MutexLock lock(mutex_);
    while (writes_ < count) changed_.WaitUntil(mutex_, absl::InfiniteFuture());
  }
  bool is_closed() {
    MutexLock lock(mutex_);
    return closed_.has_value();
  }
  // The thread on which OnClosed came.
  std::thread::id closed_by() {
    MutexLock lock(mutex_);
    return closed_by_;
  }
  absl::Status AwaitClosed() {
    MutexLock lock(mutex_);
    while (!closed_.has_value()) changed_.WaitUntil(mutex_, absl::InfiniteFuture());
    return *closed_;
  }

 private:
  void OnMessage(MessageReader::Message message) override {
    {
      MutexLock lock(mutex_);
      EXPECT_FALSE(closed_.has_value());
      messages_.emplace_back(reinterpret_cast<const char*>(message.memory.get()), message.size);
      changed_.NotifyAll();
    }
    if (reads_) socket_->ReadNext();
  }
  void OnWritten() override {
    MutexLock lock(mutex_);
    ++writes_;
    changed_.NotifyAll();
  }
  void OnClosed(const absl::Status& status) override {
    MutexLock lock(mutex_);
    EXPECT_FALSE(closed_.has_value());
    closed_ = status;
    closed_by_ = std::this_thread::get_id();
    changed_.NotifyAll();
  }

  const std::shared_ptr<MessageSocket> socket_;
  bool reads_ = true;
  std::weak_ptr<const std::string> written_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> messages_ ABSL_GUARDED_BY(mutex_);
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  int writes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<absl::Status> closed_ ABSL_GUARDED_BY(mutex_);
  std::thread::id closed_by_ ABSL_GUARDED_BY(mutex_);
};

// A program that speaks the protocol by itself. Blocks.
class Raw {
 public:
  explicit Raw(FileDescriptor socket) : socket_(std::move(socket)) {}

  void Send(MessageKind kind, const std::string& body = "") {
    SendPart(kind, body, kMessageHeaderBytes + body.size());
  }
  // Sends the first `part` bytes of a message.
  void SendPart(MessageKind kind, const std::string& body, size_t part) {
    const MessageHeaderBytes header = EncodeMessageHeader(kind, static_cast<uint32_t>(body.size()));
    std::string bytes = absl::StrCat(
        absl::string_view(reinterpret_cast<const char*>(header.data()), header.size()), body);
    bytes.resize(part);
    EXPECT_EQ(send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // Returns the next message; nullopt at the end of the connection.
  std::optional<std::pair<MessageKind, std::string>> Next() {
    while (true) {
      absl::StatusOr<std::optional<MessageReader::Message>> next = reader_.Next();
      EXPECT_TRUE(next.ok()) << next.status();
      if (!next.ok()) return std::nullopt;
      if (next->has_value()) {
        return std::pair(
            (*next)->kind,
            std::string(reinterpret_cast<const char*>((*next)->memory.get()), (*next)->size));
      }
      const absl::Span<std::byte> space = reader_.Space();
      const ssize_t count = recv(socket_.get(), space.data(), space.size(), 0);
      if (count < 0 && errno == EAGAIN) {
        std::this_thread::yield();
        continue;
      }
      if (count <= 0) return std::nullopt;
      reader_.Filled(static_cast<size_t>(count));
    }
  }
  absl::Status NextEnd() {
    const auto next = Next();
    EXPECT_TRUE(next.has_value());
    if (!next.has_value()) return absl::OkStatus();
    EXPECT_EQ(next->first, MessageKind::kEnd);
    return DecodeEnd(
        {reinterpret_cast<const std::byte*>(next->second.data()), next->second.size()});
  }

 private:
  FileDescriptor socket_;
  MessageReader reader_{kMostBytes};
};

class MessageSocketTest : public ::testing::Test {
 protected:
  explicit MessageSocketTest(absl::Duration tick = absl::Seconds(1))
      : loop_(*SocketLoop::Start(/*threads=*/3, tick)) {
    std::array<FileDescriptor, 2> ends = SocketPair();
    clients_ = std::move(ends[0]);
    servers_ = std::move(ends[1]);
  }

  std::shared_ptr<End> Client(bool reads = true) {
    return End::Start(std::move(clients_), Side::kClient, *loop_, reads);
  }
  std::shared_ptr<End> Server(bool reads = true, size_t most_bytes = kMostBytes) {
    return End::Start(std::move(servers_), Side::kServer, *loop_, reads, most_bytes);
  }

  std::unique_ptr<SocketLoop> loop_;
  FileDescriptor clients_, servers_;
};

TEST_F(MessageSocketTest, MessagesArriveInOrderBothWays) {
  const auto client = Client();
  const auto server = Server();
  for (int i = 0, written = 0; i < 1000; ++i) {
    if (!client->Write(absl::StrCat(i))) client->AwaitWritten(++written);
    EXPECT_FALSE(client->IsHeld());
    EXPECT_EQ(server->Next(), absl::StrCat(i));
    EXPECT_TRUE(server->Write(absl::StrCat("answer ", i)));
    EXPECT_EQ(client->Next(), absl::StrCat("answer ", i));
  }
}

TEST_F(MessageSocketTest, AClientSendsNothingBeforeTheServerIsReady) {
  const auto client = Client();
  Raw server(std::move(servers_));
  EXPECT_FALSE(client->Write("hello"));
  EXPECT_TRUE(client->IsHeld());
  server.Send(MessageKind::kReady);
  client->AwaitWritten(1);
  EXPECT_EQ(server.Next()->second, "hello");
}

TEST_F(MessageSocketTest, ALargeMessageIsWrittenWhenTheOtherEndReadsIt) {
  const auto client = Client();
  const auto server = Server(/*reads=*/false);
  int written = 0;
  if (!client->Write("first")) client->AwaitWritten(++written);
  EXPECT_EQ(server->Next(), "first");
  const std::string large(kLarge, 'x');
  EXPECT_FALSE(client->Write(large));
  EXPECT_TRUE(client->IsHeld());
  EXPECT_EQ(server->messages(), 1u);
  server->socket().ReadNext();
  EXPECT_EQ(server->Next(), large);
  client->AwaitWritten(written + 1);
  EXPECT_FALSE(client->IsHeld());
}

TEST_F(MessageSocketTest, MessagesThatHaveArrivedAreReadOneByOne) {
  const auto server = Server(/*reads=*/false);
  Raw client(std::move(clients_));
  for (const char* text : {"a", "b", "c"}) client.Send(MessageKind::kMessage, text);
  for (const char* text : {"a", "b", "c"}) {
    EXPECT_EQ(server->Next(), text);
    EXPECT_EQ(server->messages(), static_cast<size_t>(text[0] - 'a' + 1));
    server->socket().ReadNext();
  }
}

TEST_F(MessageSocketTest, TheEndFollowsWhatWasSent) {
  const auto client = Client();
  const auto server = Server();
  const std::string large(kLarge, 'x');
  server->Write(large);
  server->socket().End(absl::DataLossError("the end"));
  EXPECT_EQ(client->Next(), large);
  EXPECT_EQ(client->AwaitClosed(), absl::DataLossError("the end"));
  EXPECT_EQ(server->AwaitClosed(), absl::DataLossError("the end"));
  EXPECT_FALSE(server->Write("after the end"));
  EXPECT_FALSE(client->Write("after the end"));
}

TEST_F(MessageSocketTest, AClientIsToldWhyItsStreamIsCut) {
  const auto client = Client();
  const auto server = Server();
  client->Write("hello");
  server->Next();
  server->socket().Cancel(absl::ResourceExhaustedError("too much"));
  EXPECT_EQ(client->AwaitClosed(), absl::ResourceExhaustedError("too much"));
  EXPECT_EQ(server->AwaitClosed(), absl::ResourceExhaustedError("too much"));
}

TEST_F(MessageSocketTest, AClientThatDoesNotReadIsCutAtOnce) {
  Raw client(std::move(clients_));
  const auto server = Server();
  // Until this is sent, the message would wait whole, and Cancel could send the reason before it.
  EXPECT_EQ(client.Next()->first, MessageKind::kReady);
  EXPECT_FALSE(server->Write(std::string(kLarge, 'x')));
  server->socket().Cancel(absl::ResourceExhaustedError("too much"));
  EXPECT_EQ(server->AwaitClosed(), absl::ResourceExhaustedError("too much"));
  EXPECT_FALSE(server->IsHeld());
  EXPECT_EQ(client.Next(), std::nullopt) << "a part of a message, and no end";
}

TEST_F(MessageSocketTest, AClientMayCancel) {
  const auto client = Client();
  const auto server = Server();
  client->socket().Cancel(absl::CancelledError("enough"));
  EXPECT_EQ(client->AwaitClosed(), absl::CancelledError("enough"));
  EXPECT_TRUE(absl::IsUnavailable(server->AwaitClosed()));
}

TEST_F(MessageSocketTest, OneThatIsCancelledBeforeItStartsIsClosed) {
  const auto client = std::make_shared<End>(std::move(clients_), Side::kClient);
  client->socket().Cancel(absl::CancelledError("enough"));
  client->socket().Start(*loop_, client);
  EXPECT_EQ(client->AwaitClosed(), absl::CancelledError("enough"));
}

TEST_F(MessageSocketTest, ASocketThatIsClosedEndsTheStream) {
  const auto client = Client();
  { Raw server(std::move(servers_)); }
  ExpectError(client->AwaitClosed(), absl::StatusCode::kUnavailable, {"closed"});
}

TEST_F(MessageSocketTest, ATooLongMessageIsRefusedBeforeItArrives) {
  const auto server = Server(/*reads=*/true, /*most_bytes=*/10);
  Raw client(std::move(clients_));
  EXPECT_EQ(client.Next()->first, MessageKind::kReady);
  client.Send(MessageKind::kMessage, "0123456789");
  EXPECT_EQ(server->Next(), "0123456789");
  client.Send(MessageKind::kMessage, "0123456789a");
  ExpectError(client.NextEnd(), absl::StatusCode::kResourceExhausted, {"11 bytes", "at most 10"});
  EXPECT_EQ(client.Next(), std::nullopt);
}

TEST_F(MessageSocketTest, WhatOnlyTheServerSendsIsRefusedByTheServer) {
  for (const MessageKind kind : {MessageKind::kReady, MessageKind::kEnd, MessageKind::kPong}) {
    std::array<FileDescriptor, 2> ends = SocketPair();
    const auto server = End::Start(std::move(ends[1]), Side::kServer, *loop_);
    Raw client(std::move(ends[0]));
    EXPECT_EQ(client.Next()->first, MessageKind::kReady);
    client.Send(kind);
    ExpectError(client.NextEnd(), absl::StatusCode::kInvalidArgument, {"a client has sent"});
    EXPECT_TRUE(absl::IsInvalidArgument(server->AwaitClosed()));
  }
}

TEST_F(MessageSocketTest, PingsAreAnswered) {
  const auto server = Server();
  Raw client(std::move(clients_));
  EXPECT_EQ(client.Next()->first, MessageKind::kReady);
  for (int i = 0; i < 3; ++i) {
    client.Send(MessageKind::kPing);
    EXPECT_EQ(client.Next()->first, MessageKind::kPong);
  }
  EXPECT_EQ(server->messages(), 0u);
}

TEST_F(MessageSocketTest, OneThatPingsWithoutAPauseKeepsNobodyWaiting) {
  loop_ = *SocketLoop::Start(/*threads=*/1);
  std::array<FileDescriptor, 2> ends = SocketPair();
  const int pinging = ends[0].get();
  const auto pinged = End::Start(std::move(ends[1]), Side::kServer, *loop_);
  std::atomic<bool> is_over = false;
  std::thread pings([&] {
    const MessageHeaderBytes ping = EncodeMessageHeader(MessageKind::kPing, 0);
    std::string many;
    for (int i = 0; i < 1000; ++i) {
      many.append(reinterpret_cast<const char*>(ping.data()), ping.size());
    }
    char pongs[4096];
    // What fits is a whole number of pings.
    for (size_t sent = 0; !is_over;) {
      const ssize_t count =
          send(pinging, many.data() + sent, many.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count > 0) sent = (sent + static_cast<size_t>(count)) % many.size();
      while (recv(pinging, pongs, sizeof pongs, MSG_DONTWAIT) > 0) {
      }
    }
  });
  const auto client = Client();
  const auto server = Server();
  for (int i = 0, written = 0; i < 100; ++i) {
    if (!client->Write("message")) client->AwaitWritten(++written);
    EXPECT_EQ(server->Next(), "message");
  }
  is_over = true;
  pings.join();
  loop_ = nullptr;
}

TEST_F(MessageSocketTest, TheLoopClosesWhatIsOpen) {
  const auto client = Client();
  const auto server = Server();
  client->Write("hello");
  server->Next();
  loop_ = nullptr;
  EXPECT_TRUE(absl::IsUnavailable(client->AwaitClosed()));
  EXPECT_TRUE(absl::IsUnavailable(server->AwaitClosed()));
}

TEST_F(MessageSocketTest, TheLoopRunsClosures) {
  std::atomic<int> runs = 0;
  for (int i = 0; i < 100; ++i) loop_->Run([&runs] { ++runs; });
  loop_ = nullptr;
  EXPECT_EQ(runs, 100);
}

TEST_F(MessageSocketTest, AThreadThatPollsHandlesMessages) {
  const auto client = Client();
  Raw server(std::move(servers_));
  server.Send(MessageKind::kReady);
  server.Send(MessageKind::kMessage, "the first one is left to the loop");
  client->Next();
  for (size_t i = 2; i < 50; ++i) {
    server.Send(MessageKind::kMessage, "answer");
    while (client->messages() < i) loop_->Poll([&] { return client->messages() == i; });
    EXPECT_EQ(client->Next(), "answer");
  }
  // Without a thread that polls, the loop goes on.
  server.Send(MessageKind::kMessage, "last");
  EXPECT_EQ(client->Next(), "last");
}

TEST_F(MessageSocketTest, AThreadThatPollsClosesNothing) {
  const auto client = Client();
  {
    Raw server(std::move(servers_));
    server.Send(MessageKind::kReady);
    server.Send(MessageKind::kMessage, "first");
    client->Next();
  }
  loop_->Poll([&] { return client->is_closed(); });
  EXPECT_TRUE(absl::IsUnavailable(client->AwaitClosed()));
  EXPECT_NE(client->closed_by(), std::this_thread::get_id());
}

TEST_F(MessageSocketTest, ThreadsPollWhileOthersWrite) {
  const auto client = Client();
  const auto server = Server();
  std::atomic<bool> is_over = false;
  std::vector<std::thread> pollers;
  for (int i = 0; i < 3; ++i) {
    pollers.emplace_back([&] {
      while (!is_over) loop_->Poll([&] { return is_over.load(); });
    });
  }
  for (int i = 0, written = 0; i < 300; ++i) {
    const std::string text(static_cast<size_t>((i % 10 == 0) ? 300'000 : i), 'x');
    if (!client->Write(text)) client->AwaitWritten(++written);
    EXPECT_EQ(server->Next(), text);
  }
  is_over = true;
  for (std::thread& poller : pollers) poller.join();
}

// Ends write and are cancelled while others do so.
TEST_F(MessageSocketTest, ManyStreamsAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int n = 0; n < 6; ++n) {
        std::array<FileDescriptor, 2> ends = SocketPair();
        const auto server = End::Start(std::move(ends[1]), Side::kServer, *loop_);
        const auto client = End::Start(std::move(ends[0]), Side::kClient, *loop_);
        int written = 0;
        for (int i = 0; i < 12; ++i) {
          const std::string text(static_cast<size_t>((i % 3 == 0) ? 300'000 : i), 'x');
          if (!client->Write(text)) client->AwaitWritten(++written);
          EXPECT_EQ(server->Next(), text);
        }
        if (t % 2 == 0) {
          server->socket().End(absl::AbortedError("done"));
          EXPECT_EQ(client->AwaitClosed(), absl::AbortedError("done"));
        } else {
          client->Write(std::string(kLarge, 'x'));
          client->socket().Cancel(absl::CancelledError(""));
          EXPECT_TRUE(absl::IsCancelled(client->AwaitClosed()));
        }
        EXPECT_FALSE(server->AwaitClosed().ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class SilentPeerTest : public MessageSocketTest {
 protected:
  SilentPeerTest() : MessageSocketTest(/*tick=*/absl::Milliseconds(1)) {}
};

TEST_F(SilentPeerTest, OneThatIsNeverReadyIsGivenUp) {
  const auto client = Client();
  const Raw server(std::move(servers_));
  ExpectError(client->AwaitClosed(), absl::StatusCode::kUnavailable, {"ready"});
}

TEST_F(SilentPeerTest, OneThatAnswersNoPingIsGivenUp) {
  const auto client = Client();
  Raw server(std::move(servers_));
  server.Send(MessageKind::kReady);
  EXPECT_EQ(server.Next()->first, MessageKind::kPing);
  ExpectError(client->AwaitClosed(), absl::StatusCode::kUnavailable, {"ping"});
}

TEST_F(SilentPeerTest, OneThatAnswersPingsIsKept) {
  const auto server = Server();
  const auto client = Client();
  if (!client->Write("a")) client->AwaitWritten(1);
  EXPECT_EQ(server->Next(), "a");
  // 100 ticks pass while another server is given up five times.
  for (int i = 0; i < 5; ++i) {
    std::array<FileDescriptor, 2> ends = SocketPair();
    const auto other = End::Start(std::move(ends[0]), Side::kClient, *loop_);
    Raw silent(std::move(ends[1]));
    silent.Send(MessageKind::kReady);
    EXPECT_FALSE(other->AwaitClosed().ok());
  }
  EXPECT_TRUE(client->Write("b"));
  EXPECT_EQ(server->Next(), "b");
}

TEST_F(SilentPeerTest, AClientThatSendsAPartOfAMessageIsCut) {
  for (const size_t sent : {size_t{1}, kMessageHeaderBytes, kMessageHeaderBytes + 5}) {
    std::array<FileDescriptor, 2> ends = SocketPair();
    const auto server = End::Start(std::move(ends[1]), Side::kServer, *loop_);
    Raw client(std::move(ends[0]));
    EXPECT_EQ(client.Next()->first, MessageKind::kReady);
    // A whole one before, which the part directly follows.
    client.Send(MessageKind::kMessage, "whole");
    client.SendPart(MessageKind::kMessage, "0123456789", sent);
    EXPECT_EQ(server->Next(), "whole");
    ExpectError(client.NextEnd(), absl::StatusCode::kUnavailable, {"the rest of a message"});
    ExpectError(server->AwaitClosed(), absl::StatusCode::kUnavailable, {"the rest of a message"});
  }
}

TEST_F(SilentPeerTest, AClientThatSendsNothingIsKept) {
  const auto server = Server();
  Raw client(std::move(clients_));
  EXPECT_EQ(client.Next()->first, MessageKind::kReady);
  client.Send(MessageKind::kMessage, "a");
  EXPECT_EQ(server->Next(), "a");
  // More ticks pass than another client has to send the rest of a message.
  for (int i = 0; i < 2; ++i) {
    std::array<FileDescriptor, 2> ends = SocketPair();
    const auto other = End::Start(std::move(ends[1]), Side::kServer, *loop_);
    Raw partial(std::move(ends[0]));
    partial.SendPart(MessageKind::kMessage, "b", kMessageHeaderBytes);
    EXPECT_FALSE(other->AwaitClosed().ok());
  }
  client.Send(MessageKind::kMessage, "c");
  EXPECT_EQ(server->Next(), "c");
}

}  // namespace
}  // namespace syncgrads
