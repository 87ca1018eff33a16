// What a peer can do to the HTTP server before and while it is answered: each test has peers that
// send too much, too slowly, or nothing, and a page that must be answered beside them.

#include <httplib.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/file_descriptor.h"
#include "common/http/http_server.h"
#include "common/http/network_share.h"
#include "common/tls/certificate_authority.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"
#include "tests/testing/wait_until.h"

namespace syncgrads {
namespace {

// How many of the next calls of accept4() fail as if the host had no descriptor left.
std::atomic<int> failing_accepts = 0;

}  // namespace
}  // namespace syncgrads

// Replaces the function of the C library in this program.
extern "C" int accept4(int socket, sockaddr* address, socklen_t* size, int flags) {
  if (syncgrads::failing_accepts > 0) {
    --syncgrads::failing_accepts;
    errno = ENFILE;
    return -1;
  }
  return static_cast<int>(syscall(SYS_accept4, socket, address, size, flags));
}

namespace syncgrads {
namespace {

using ::syncgrads::testing::WaitUntil;
using ::testing::StartsWith;

constexpr HttpTimes kNoLimits = {absl::Hours(1), absl::Hours(1)};

// A connection that does as it likes.
class Peer {
 public:
  explicit Peer(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }

  // Returns false if the server has ended the connection.
  bool Send(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  // Whether the server has ended the connection. Bytes that it has sent are lost.
  bool HasEnded() {
    char buffer[4096];
    while (true) {
      const ssize_t size = recv(socket_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
      if (size > 0) continue;
      return size == 0 || errno != EAGAIN;
    }
  }
  // Reads up to `size` bytes; an empty text at the end of the connection.
  std::string Read(size_t size) {
    std::string text(size, '\0');
    const ssize_t read = recv(socket_.get(), text.data(), size, 0);
    text.resize(read > 0 ? static_cast<size_t>(read) : 0);
    return text;
  }
  std::string ReadAll() {
    std::string all;
    for (std::string part = Read(4096); !part.empty(); part = Read(4096)) all += part;
    return all;
  }

 private:
  FileDescriptor socket_;
};

// Each test runs in plain text and with TLS.
class HttpLimitsTest : public ::testing::TestWithParam<bool> {
 protected:
  void Start(HttpTimes times) {
    HttpSecurity security;
    if (GetParam()) {
      folder_ = absl::StrCat(::testing::TempDir(), "/http-XXXXXX");
      ASSERT_NE(mkdtemp(folder_.data()), nullptr);
      const CertificateAuthority authority("a");
      std::ofstream(absl::StrCat(folder_, "/ca.pem")) << authority.certificate();
      const auto issued = authority.Issue({"IP:127.0.0.1"});
      ASSERT_THAT(issued, IsOk());
      ASSERT_THAT(issued->Write(absl::StrCat(folder_, "/server")), IsOk());
      security.tls.certificate = absl::StrCat(folder_, "/server.pem");
      security.tls.key = absl::StrCat(folder_, "/server.key");
    }
    HttpPages pages;
    pages["/livez"] = [] { return HttpReply{.body = "alive"}; };
    pages["/readyz"] = [] { return HttpReply{.body = "ready"}; };
    pages["/status.json"] = [this] {
      ++statuses_;
      send_statuses_.WaitForNotification();
      return HttpReply{.body = std::string(4 << 20, 'x')};
    };
    // More than the buffers of a connection.
    pages["/large"] = [] { return HttpReply{.body = std::string(64 << 20, 'x')}; };
    auto started =
        HttpServer::Start({"127.0.0.1", 0}, std::move(pages), {}, std::move(security), times);
    ASSERT_THAT(started, IsOk());
    server_ = *std::move(started);
  }
  uint16_t port() const { return server_->address().port; }
  // /status.json, a page of 4 MiB, is not sent before SendStatuses. The number of requests for it
  // that have a thread or had one:
  int statuses() const { return statuses_; }
  void SendStatuses() { send_statuses_.Notify(); }

  std::string Get(const std::string& path, const httplib::Headers& headers = {}) const {
    std::unique_ptr<httplib::ClientImpl> client;
    if (GetParam()) {
      auto with_tls = std::make_unique<httplib::SSLClient>("127.0.0.1", port());
      with_tls->set_ca_cert_path(absl::StrCat(folder_, "/ca.pem").c_str());
      client = std::move(with_tls);
    } else {
      client = std::make_unique<httplib::ClientImpl>("127.0.0.1", port());
    }
    client->set_read_timeout(30, 0);
    client->set_write_timeout(60, 0);
    const httplib::Result answer = client->Get(path, headers);
    if (!answer) return httplib::to_string(answer.error());
    return absl::StrCat(answer->status, " ", answer->body);
  }

  // Opens connections that send nothing.
  std::list<Peer> OpenIdle(int count) const {
    std::list<Peer> peers;
    for (int i = 0; i < count; ++i) peers.emplace_back(port());
    return peers;
  }

 private:
  std::string folder_;
  std::atomic<int> statuses_ = 0;
  absl::Notification send_statuses_;
  std::unique_ptr<HttpServer> server_;
};

// Requests in plain text.
class HttpRequestLimitsTest : public HttpLimitsTest {};

int CountEnded(std::list<Peer>& peers) {
  int ended = 0;
  for (Peer& peer : peers) ended += peer.HasEnded() ? 1 : 0;
  return ended;
}

TEST(NetworkShareTest, ANetworkGivesUpItsOwnPlaceOrTheFullestOneDoes) {
  const std::vector<std::string> taken = {"a", "b", "a", "c", "a"};
  EXPECT_EQ(NetworkToEvict(taken, "d", 4, 6), std::nullopt);
  EXPECT_EQ(NetworkToEvict(taken, "a", 3, 6), "a");
  EXPECT_EQ(NetworkToEvict(taken, "b", 3, 6), std::nullopt);
  EXPECT_EQ(NetworkToEvict(taken, "d", 4, 5), "a");
  EXPECT_EQ(NetworkToEvict(taken, "a", 4, 5), "a");
  // No other has more.
  EXPECT_EQ(NetworkToEvict({"a", "b"}, "b", 2, 2), "b");
  EXPECT_EQ(NetworkToEvict({}, "b", 2, 2), std::nullopt);
}

TEST(NetworkTurnsTest, EachNetworkHasOne) {
  NetworkTurns turns;
  EXPECT_TRUE(turns.Take("a"));
  EXPECT_FALSE(turns.Take("a"));
  EXPECT_TRUE(turns.Take("b"));
  EXPECT_TRUE(NetworkTurns().Take("a"));
}

TEST_P(HttpLimitsTest, APageIsAnsweredBesideManyIdleConnections) {
  Start(kNoLimits);
  std::list<Peer> idle = OpenIdle(100);
  EXPECT_EQ(Get("/livez"), "200 alive");
  // 15 of them and the page's had a place: 16 are for this network. Those that were opened first
  // were ended.
  ASSERT_TRUE(WaitUntil([&] { return CountEnded(idle) == 85; }));
  for (int i = 0; i < 85; ++i) idle.pop_front();
  EXPECT_EQ(Get("/livez"), "200 alive");
  EXPECT_EQ(CountEnded(idle), 0);
}

TEST_P(HttpLimitsTest, APageIsAnsweredBesideConnectionsThatSendSlowly) {
  Start(kNoLimits);
  std::list<Peer> slow = OpenIdle(15);
  // The first byte of a TLS handshake, or of a request.
  for (Peer& peer : slow) EXPECT_TRUE(peer.Send(GetParam() ? "\x16" : "G"));
  EXPECT_EQ(Get("/livez"), "200 alive");
  EXPECT_EQ(CountEnded(slow), 0);
}

TEST_P(HttpLimitsTest, AConnectionThatSendsSlowlyIsEndedInTheEnd) {
  Start({.request = absl::Milliseconds(50)});
  std::list<Peer> slow = OpenIdle(20);
  // The header of a record that is longer than what is sent.
  const std::string begin = GetParam() ? "\x16\x03\x01\x40" : "GET /";
  for (Peer& peer : slow) (void)peer.Send(begin);
  EXPECT_TRUE(WaitUntil([&] { return CountEnded(slow) == 20; }));
}

TEST_P(HttpLimitsTest, AReaderThatIsSlowIsEndedInTheEnd) {
  if (GetParam()) GTEST_SKIP() << "the peer has no TLS";
  Start({.request = absl::Hours(1), .answer = absl::Milliseconds(100)});
  Peer slow(port());
  EXPECT_TRUE(slow.Send("GET /large HTTP/1.1\r\n\r\n"));
  size_t read = 0;
  while (!slow.Read(16).empty()) read += 16;
  EXPECT_LT(read, size_t{64} << 20);
}

TEST_P(HttpLimitsTest, ALargePageIsSentAsAWhole) {
  Start({});
  EXPECT_EQ(Get("/large").size(), 4 + (size_t{64} << 20));
}

TEST_P(HttpLimitsTest, ConnectionsAreAcceptedAfterAnErrorOfAccept) {
  Start({});
  failing_accepts = 3;
  EXPECT_EQ(Get("/livez"), "200 alive");
  EXPECT_EQ(failing_accepts, 0);
}

TEST_P(HttpRequestLimitsTest, OfConnectionsThatWaitTogetherEachHasATurn) {
  Start(kNoLimits);
  // All of them arrive before one is accepted.
  failing_accepts = 1;
  std::list<Peer> together;
  for (int i = 0; i < 40; ++i) {
    EXPECT_TRUE(together.emplace_back(port()).Send("GET /livez HTTP/1.1\r\n\r\n"));
  }
  for (Peer& peer : together) EXPECT_THAT(peer.ReadAll(), StartsWith("HTTP/1.1 200"));
}

TEST_P(HttpRequestLimitsTest, ProbesAreAnsweredBesideSlowReadersThatOccupyAllThreads) {
  Start(kNoLimits);
  std::list<Peer> slow;
  const auto add_readers = [&](int count) {
    for (int i = 0; i < count; ++i) {
      EXPECT_TRUE(slow.emplace_back(port()).Send("GET /status.json HTTP/1.1\r\n\r\n"));
    }
  };
  const auto expect_probes = [&] {
    EXPECT_EQ(Get("/livez"), "200 alive");
    EXPECT_EQ(Get("/readyz?verbose"), "200 ready");
  };
  add_readers(8);
  EXPECT_TRUE(WaitUntil([&] { return statuses() == 8; }));
  expect_probes();
  // As many as may wait.
  add_readers(64);
  expect_probes();
  EXPECT_EQ(statuses(), 8);
  SendStatuses();
  expect_probes();
}

TEST_P(HttpRequestLimitsTest, ARequestWithoutEndIsCutOff) {
  Start(kNoLimits);
  const std::string line = "GET /livez HTTP/1.1\r\n";
  const std::pair<std::string, std::string> kRequests[] = {
      {"", std::string(4096, 'a')},                               // a line without an end
      {line, absl::StrCat("a: ", std::string(90, 'b'), "\r\n")},  // headers without an end
      {line + "a: ", std::string(4096, 'b')},                     // a header without an end
      {"POST /livez HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
       absl::StrCat("1000\r\n", std::string(4096, 'c'), "\r\n")},  // a body without an end
  };
  for (const auto& [begin, more] : kRequests) {
    Peer peer(port());
    bool open = peer.Send(begin);
    for (size_t sent = 0; open && sent < (64 << 20); sent += more.size()) open = peer.Send(more);
    EXPECT_FALSE(open) << begin << more.substr(0, 10);
  }
  EXPECT_EQ(Get("/livez"), "200 alive");
}

TEST_P(HttpRequestLimitsTest, ARequestOfMoreThan32KiBIsRefused) {
  Start({});
  Peer peer(port());
  std::string request = "GET /livez HTTP/1.1\r\n";
  while (request.size() < (32 << 10)) absl::StrAppend(&request, "a: b\r\n");
  // No byte is left unread when the server ends the connection: the answer is not lost.
  request.resize(32 << 10);
  ASSERT_TRUE(peer.Send(request));
  EXPECT_THAT(peer.ReadAll(), StartsWith("HTTP/1.1 400 "));
}

// The library matches ranges, and the headers of a part of a body, with regular expressions that
// take hundreds of bytes of the stack for each byte.
TEST_P(HttpRequestLimitsTest, LongRangesAndPartsNeedNoStack) {
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 1 << 20);
  pthread_attr_t before;
  pthread_getattr_default_np(&before);
  pthread_setattr_default_np(&small);
  Start({});
  pthread_setattr_default_np(&before);
  std::string ranges = "bytes=0-";
  while (ranges.size() < 8000) ranges += ",0-";
  EXPECT_EQ(Get("/livez", {{"rAnge", ranges}}), "200 alive");
  Peer peer(port());
  const std::string part = absl::StrCat("--x\r\nContent-Disposition: form-data; name=\"",
                                        std::string(20000, 'a'), "\"\r\n\r\n");
  ASSERT_TRUE(
      peer.Send(absl::StrCat("POST /livez HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"
                             "Content-Type: multipart/form-data; boundary=x\r\n\r\n",
                             absl::Hex(part.size()), "\r\n", part, "\r\n0\r\n\r\n")));
  (void)peer.ReadAll();
  EXPECT_EQ(Get("/livez"), "200 alive");
}

TEST_P(HttpRequestLimitsTest, ARequestInSmallPiecesIsAnswered) {
  Start(kNoLimits);
  Peer peer(port());
  for (const char c : std::string("POST /livez HTTP/1.1\r\ncontent-length:  2 \r\n\r\nab")) {
    ASSERT_TRUE(peer.Send(std::string(1, c)));
  }
  EXPECT_THAT(peer.ReadAll(), StartsWith("HTTP/1.1 404 "));
  Peer other(port());
  for (const char* piece : {"GET /livez HTTP/1.1\r", "\na: b\r\n", "\r", "\n"}) {
    ASSERT_TRUE(other.Send(piece));
  }
  EXPECT_THAT(other.ReadAll(), StartsWith("HTTP/1.1 200 "));
}

INSTANTIATE_TEST_SUITE_P(PlainText, HttpLimitsTest, ::testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Tls, HttpLimitsTest, ::testing::Values(true));
INSTANTIATE_TEST_SUITE_P(PlainText, HttpRequestLimitsTest, ::testing::Values(false));

}  // namespace
}  // namespace syncgrads
