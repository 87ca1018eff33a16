// More connections than a ps-server has file descriptors for. Connected clients continue, and a
// later client is accepted when the flood is over.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/shm/region.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/service/stub_worker.h"
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

// A ps-server with a limit of kDescriptors file descriptors.
class ConnectionFloodTest : public ::testing::TestWithParam<Limit> {
 protected:
  void SetUp() override {
    auto process =
        Process::Start({.program = "server/ps-server",
                        .args = {"--port=0", "--bind=127.0.0.1", "--state=none", GetParam().flag}});
    ASSERT_TRUE(process.ok()) << process.status();
    server_ = *std::move(process);
    const auto line = server_->WaitForLine("listening on", kPatience);
    ASSERT_TRUE(line.ok()) << line.status();
    address_ = line->substr(line->rfind(' ') + 1);
    const rlimit few = {kDescriptors, kDescriptors};
    ASSERT_EQ(prlimit(server_->pid(), RLIMIT_NOFILE, &few, nullptr), 0);
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

  size_t Descriptors() const {
    const std::filesystem::directory_iterator all(absl::StrCat("/proc/", server_->pid(), "/fd"));
    return static_cast<size_t>(std::distance(begin(all), end(all)));
  }

  std::unique_ptr<Process> server_;
  std::string address_;
};

TEST_P(ConnectionFloodTest, DisturbsNobodyWhoIsConnectedAndEnds) {
  Worker worker(address_, "a", 1);
  worker.Begin();
  const auto stream = worker.Exchange();
  uint64_t round = 0;
  const auto expect_step = [&] {
    stream->Write(worker.Push(++round, 3));
    const v1::UpdateChunk update = stream->MustRead();
    EXPECT_EQ(update.round(), round);
    EXPECT_EQ(update.payload(), FourOf(3));
  };
  expect_step();
  const size_t before = Descriptors();

  std::vector<FileDescriptor> flood;
  for (int i = 0; i < kFlood; ++i) flood.push_back(Connect());
  ASSERT_TRUE(server_->WaitForLine(GetParam().line, kPatience).ok()) << server_->output();
  for (int i = 0; i < 10; ++i) expect_step();
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
  expect_step();
  // The later client has one more connection.
  EXPECT_TRUE(WaitUntil([&] { return Descriptors() <= before + 1; })) << Descriptors();
}

// The flood is limited per peer, or as strangers.
INSTANTIATE_TEST_SUITE_P(All, ConnectionFloodTest,
                         ::testing::Values(Limit{"--max_connections_per_peer=10",
                                                 "connections are refused"},
                                           Limit{"--max_connections=10000", "makes room"}));

}  // namespace
}  // namespace syncgrads::server
