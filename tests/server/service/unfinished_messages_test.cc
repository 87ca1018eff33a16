// Connections that send no first frame, and calls whose message is never complete. Both are made of
// raw frames of HTTP/2, since no gRPC library sends them.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/shm/region.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "tests/server/service/stub_worker.h"
#include "tests/testing/cluster.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::server {
namespace {

using ::syncgrads::testing::Cluster;
using ::syncgrads::testing::WaitUntil;

FileDescriptor Connect(const std::string& address) {
  uint32_t port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  return socket;
}

enum Kind : uint8_t {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kWindowUpdate = 8
};
constexpr uint8_t kAcknowledges = 1;
constexpr uint8_t kEndStream = 1;
constexpr uint8_t kEndHeaders = 4;
constexpr size_t kHeaderBytes = 9;
constexpr size_t kFrameBytes = 16 << 10;
// RFC 9113, 6.9.2.
constexpr int64_t kFirstWindow = 65535;

std::string Number(uint32_t number, int bytes) {
  std::string text;
  while (bytes-- > 0) text += static_cast<char>(number >> (8 * bytes));
  return text;
}

uint32_t NumberIn(absl::string_view text) {
  uint32_t number = 0;
  for (const char byte : text) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

std::string Frame(Kind kind, uint8_t flags, uint32_t stream, const std::string& payload) {
  return Number(static_cast<uint32_t>(payload.size()), 3) + static_cast<char>(kind) +
         static_cast<char>(flags) + Number(stream, 4) + payload;
}

std::string Text(const std::string& text) { return static_cast<char>(text.size()) + text; }

// Calls of Admin.GetStatus on one connection.
class RawCalls {
 public:
  explicit RawCalls(const std::string& address) : address_(address), socket_(Connect(address)) {
    out_ = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, "");
  }

  // Begins a call with an empty message.
  void BeginWhole() { Begin(0, kEndStream); }
  // Begins a call that announces a message, and never sends the last byte of it.
  void BeginUnfinished(uint32_t message_bytes) {
    Begin(message_bytes, 0);
    calls_[next_stream_ - 2].left = message_bytes - 1;
  }

  // Reads what the server has sent, and sends what it permits. Does not wait.
  void Continue() {
    std::string read(1 << 16, '\0');
    const ssize_t length = recv(socket_.get(), read.data(), read.size(), MSG_DONTWAIT);
    if (length == 0 || (length < 0 && errno != EAGAIN)) {
      closed_ = true;
      calls_.clear();
      out_.clear();
    }
    if (length > 0) in_.append(read, 0, static_cast<size_t>(length));
    while (in_.size() >= kHeaderBytes) {
      const size_t payload = NumberIn(absl::string_view(in_).substr(0, 3));
      if (in_.size() < kHeaderBytes + payload) break;
      OnFrame(static_cast<Kind>(in_[3]), static_cast<uint8_t>(in_[4]),
              NumberIn(absl::string_view(in_).substr(5, 4)), in_.substr(kHeaderBytes, payload));
      in_.erase(0, kHeaderBytes + payload);
    }
    for (auto& [stream, call] : calls_) {
      if (!out_.empty()) break;
      const int64_t bytes = std::min({static_cast<int64_t>(call.left),
                                      static_cast<int64_t>(kFrameBytes), call.window, window_});
      if (bytes <= 0) continue;
      out_ = Frame(kData, 0, stream, std::string(static_cast<size_t>(bytes), '\0'));
      call.left -= static_cast<size_t>(bytes);
      call.sent += static_cast<size_t>(bytes);
      call.window -= bytes;
      window_ -= bytes;
      Send();
    }
    Send();
  }

  // Whether the server has closed the connection.
  bool closed() const { return closed_; }
  // The number of calls that the server has not ended.
  size_t open() const { return calls_.size(); }
  // The bytes that were sent in these calls.
  size_t held() const {
    size_t bytes = 0;
    for (const auto& [stream, call] : calls_) bytes += call.sent;
    return bytes;
  }
  // Whether all of these calls lack only the last byte.
  bool all_sent() const {
    return out_.empty() && std::all_of(calls_.begin(), calls_.end(),
                                       [](const auto& call) { return call.second.left == 0; });
  }

 private:
  struct Call {
    size_t left = 0;
    int64_t window = 0;
    size_t sent = 0;
  };

  // The message is a prefix of 5 bytes, then `message_bytes`.
  void Begin(uint32_t message_bytes, uint8_t flags_of_prefix) {
    const std::string method = "/syncgrads.v1.Admin/GetStatus";
    // The literal fields :path, :authority, content-type and te, after POST and http.
    out_ +=
        Frame(kHeaders, kEndHeaders, next_stream_,
              "\x83\x86\x04" + Text(method) + "\x01" + Text(address_) + "\x0f\x10" +
                  Text("application/grpc") + std::string(1, '\0') + Text("te") + Text("trailers"));
    out_ += Frame(kData, flags_of_prefix, next_stream_,
                  std::string(1, '\0') + Number(message_bytes, 4));
    calls_[next_stream_] = {0, first_window_ - 5};
    window_ -= 5;
    next_stream_ += 2;
  }

  void Send() {
    const ssize_t sent = send(socket_.get(), out_.data(), out_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) out_.erase(0, static_cast<size_t>(sent));
  }

  void OnFrame(Kind kind, uint8_t flags, uint32_t stream, const std::string& payload) {
    if (kind == kReset || (kind == kHeaders && (flags & kEndStream) != 0)) {
      calls_.erase(stream);
    } else if (kind == kWindowUpdate) {
      const auto call = calls_.find(stream);
      if (stream == 0) window_ += NumberIn(payload);
      if (call != calls_.end()) call->second.window += NumberIn(payload);
    } else if (kind == kPing && (flags & kAcknowledges) == 0) {
      out_ += Frame(kPing, kAcknowledges, 0, payload);
    } else if (kind == kSettings && (flags & kAcknowledges) == 0) {
      constexpr uint32_t kInitialWindow = 4;
      for (size_t at = 0; at + 6 <= payload.size(); at += 6) {
        if (NumberIn(payload.substr(at, 2)) != kInitialWindow) continue;
        const int64_t window = NumberIn(payload.substr(at + 2, 4));
        for (auto& [id, call] : calls_) call.window += window - first_window_;
        first_window_ = window;
      }
      out_ += Frame(kSettings, kAcknowledges, 0, "");
    }
  }

  const std::string address_;
  FileDescriptor socket_;
  std::string in_;
  std::string out_;
  bool closed_ = false;
  uint32_t next_stream_ = 1;
  // The connection's window, and that of a new stream.
  int64_t window_ = kFirstWindow;
  int64_t first_window_ = kFirstWindow;
  std::map<uint32_t, Call> calls_;
};

// Begins calls that never end, and sends what the server permits, until it permits no more.
constexpr size_t kQuota = 64 << 20;
void SendUnfinished(RawCalls& calls) {
  for (int i = 0; i < 16; ++i) calls.BeginUnfinished(19 << 20);
  EXPECT_TRUE(WaitUntil([&] {
    calls.Continue();
    return calls.all_sent() && calls.held() <= kQuota;
  })) << calls.open()
      << " calls hold " << calls.held() << " bytes";
}

ServerOptions WithQuota() {
  ServerOptions options;
  options.memory = 2 * kQuota;
  return options;
}

TEST(UnfinishedMessagesTest, TakeNoMoreMemoryThanTheQuota) {
  Cluster cluster(1, WithQuota());
  {
    RawCalls calls(cluster.coordinator());
    calls.BeginWhole();
    ASSERT_TRUE(WaitUntil([&] {
      calls.Continue();
      return calls.open() == 0;
    }));
    ASSERT_FALSE(calls.closed()) << "the call was admitted";
    SendUnfinished(calls);
  }
  const auto admin = v1::Admin::NewStub(ChannelTo(cluster.coordinator()));
  EXPECT_TRUE(WaitUntil([&] {
    v1::GetStatusReply reply;
    return admin->GetStatus(Context().get(), {}, &reply).ok();
  }));
}

TEST(UnfinishedMessagesTest, EndTheConnectionOfAStranger) {
  Cluster cluster(1, WithQuota());
  RawCalls calls(cluster.coordinator());
  SendUnfinished(calls);
  EXPECT_TRUE(calls.closed());
}

TEST(UnfinishedMessagesTest, AConnectionWithoutAFirstFrameIsClosed) {
  ServerOptions options;
  options.hello_timeout = absl::Milliseconds(100);
  Cluster cluster(1, options);
  const FileDescriptor socket = Connect(cluster.coordinator());
  // The server sends its own first frame.
  char byte;
  ssize_t length = 1;
  while (length > 0) {
    pollfd readable = {socket.get(), POLLIN, 0};
    ASSERT_EQ(poll(&readable, 1, 60'000), 1) << "the connection is open";
    length = recv(socket.get(), &byte, 1, 0);
  }
}

}  // namespace
}  // namespace syncgrads::server
