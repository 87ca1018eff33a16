// More connections than a ps-server has file descriptors for, and more calls on a connection than
// are permitted. Connected clients continue, and a later client is accepted when the flood is over.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/shm/region.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/service/stub_worker.h"
#include "tests/testing/http2_frames.h"
#include "tests/testing/process/process.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::server {
namespace {

using ::syncgrads::testing::Process;
using ::syncgrads::testing::WaitUntil;

constexpr rlim_t kDescriptors = 100;
constexpr int kFlood = 300;

struct Limit {
  const char* flag;
  const char* line;  // that the server writes when the limit is reached
};

// A ps-server with a worker.
class FloodTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--port=0", "--bind=127.0.0.1", "--state=none"});
    auto process = Process::Start({.program = "server/ps-server", .args = std::move(flags)});
    ASSERT_TRUE(process.ok()) << process.status();
    server_ = *std::move(process);
    const auto line = server_->WaitForLine("listening on", kPatience);
    ASSERT_TRUE(line.ok()) << line.status();
    address_ = line->substr(line->rfind(' ') + 1);
    worker_.emplace(address_, "a", 1);
    worker_->Begin();
    stream_ = worker_->Exchange();
  }
  void ExpectStep() {
    stream_->Write(worker_->Push(++round_, 3));
    const v1::UpdateChunk update = stream_->MustRead();
    EXPECT_EQ(update.round(), round_);
    EXPECT_EQ(update.payload(), FourOf(3));
  }

  // Connects and sends nothing.
  FileDescriptor Connect() {
    const std::vector<std::string> parts = absl::StrSplit(address_, ':');
    uint32_t port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(parts.at(1), &port));
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, parts.at(0).c_str(), &to.sin_addr);
    FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    return socket;
  }

  std::unique_ptr<Process> server_;
  std::string address_;
  std::optional<Worker> worker_;
  std::unique_ptr<DataStream> stream_;
  uint64_t round_ = 0;
};

// The server has a limit of kDescriptors file descriptors.
class ConnectionFloodTest : public FloodTest, public ::testing::WithParamInterface<Limit> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(Start({GetParam().flag}));
    const rlimit few = {kDescriptors, kDescriptors};
    ASSERT_EQ(prlimit(server_->pid(), RLIMIT_NOFILE, &few, nullptr), 0);
  }

  size_t Descriptors() const {
    const std::filesystem::directory_iterator all(absl::StrCat("/proc/", server_->pid(), "/fd"));
    return static_cast<size_t>(std::distance(begin(all), end(all)));
  }
};

TEST_P(ConnectionFloodTest, DisturbsNobodyWhoIsConnectedAndEnds) {
  ExpectStep();
  const size_t before = Descriptors();

  std::vector<FileDescriptor> flood;
  for (int i = 0; i < kFlood; ++i) flood.push_back(Connect());
  ASSERT_TRUE(server_->WaitForLine(GetParam().line, kPatience).ok()) << server_->output();
  for (int i = 0; i < 10; ++i) ExpectStep();
  EXPECT_LE(Descriptors(), kDescriptors / 4 * 3 + before);

  flood.clear();
  // Uses a new connection instead of a shared one.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto later = v1::Control::NewStub(
      grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments));
  const auto context = Context();
  context->set_wait_for_ready(true);
  v1::ProbeReply reply;
  const grpc::Status probed = later->Probe(context.get(), {}, &reply);
  EXPECT_TRUE(probed.ok()) << probed.error_message();
  ExpectStep();
  // The later client has one more connection.
  EXPECT_TRUE(WaitUntil([&] { return Descriptors() <= before + 1; })) << Descriptors();
}

// The flood is limited per peer, or as strangers.
INSTANTIATE_TEST_SUITE_P(All, ConnectionFloodTest,
                         ::testing::Values(Limit{"--max_connections_per_peer=10",
                                                 "connections are refused"},
                                           Limit{"--max_connections=10000", "makes room"}));

TEST_F(FloodTest, AConnectionWithTooManyOpenCallsIsReset) {
  ASSERT_NO_FATAL_FAILURE(Start({}));
  ExpectStep();
  std::string calls = testing::Http2Preface();
  for (uint32_t i = 0; i < 401; ++i) {
    calls += testing::Http2Call(1 + 2 * i, "/syncgrads.v1.Control/Join");
  }
  const FileDescriptor socket = Connect();
  ASSERT_EQ(send(socket.get(), calls.data(), calls.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(calls.size()));
  ASSERT_TRUE(
      server_->WaitForLine("has begun 401 calls that have not ended; the limit is 400", kPatience)
          .ok())
      << server_->output();
  std::string answers(1 << 20, '\0');
  ssize_t received = 1;
  while (received > 0) received = recv(socket.get(), answers.data(), answers.size(), 0);
  EXPECT_EQ(received, -1);
  EXPECT_EQ(errno, ECONNRESET);
  for (int i = 0; i < 10; ++i) ExpectStep();
}

}  // namespace
}  // namespace syncgrads::server
