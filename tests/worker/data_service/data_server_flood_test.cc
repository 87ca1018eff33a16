// Connections that cost a ps-worker that serves data more than they may: more of them than it has
// file descriptors, headers that never end, calls that are reset at once, and messages that are
// large once they are parsed. A reader that is connected continues, and a later one is served.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/file_descriptor.h"
#include "proto/served_data.grpc.pb.h"
#include "tests/testing/http2_frames.h"
#include "tests/testing/process/process.h"
#include "tests/testing/small_quarantine.h"
#include "tests/testing/wait_until.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/job/job_file.h"

namespace syncgrads {
namespace {

using ::syncgrads::testing::Process;
using ::syncgrads::testing::WaitUntil;
using ::testing::AnyOf;

constexpr rlim_t kDescriptors = 100;
constexpr int kFlood = 300;
// Programs with sanitizers are slow on a busy machine.
constexpr absl::Duration kLongEnough = absl::Minutes(1);

constexpr absl::string_view kJob = R"(
    name: "points"
    data { generated { rows: 100 seed: 3 } shards: 1 }
    model { layers { dense { outputs: 1 } } }
    loss { sigmoid_cross_entropy {} }
    optimizer { sgd {} }
    batch_size: 8
    epochs: 1)";

// An honest worker, with a connection of its own.
class Reader {
 public:
  explicit Reader(uint16_t port) : stub_(v1::ServedData::NewStub(Connect(port))) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + 2 * kLongEnough));
    context_.set_wait_for_ready(true);
    stream_ = stub_->Serve(&context_);
  }

  void Open() { EXPECT_TRUE(Opens()) << Error(); }
  // Whether the server accepts the call.
  bool Opens() {
    const auto job = ParseJobFile(std::string(kJob), "points.job");
    SYNCGRADS_EXPECT_OK(job);
    if (!job.ok()) return false;
    v1::ServedDataRequest request;
    v1::OpenServedData& open = *request.mutable_open();
    open.set_token("secret");
    open.set_job("points");
    *open.mutable_data() = job->file.data();
    open.set_world_size(1);
    open.set_dtype(v1::F64);
    v1::ServedDataReply reply;
    return stream_->Write(request) && stream_->Read(&reply) && reply.has_opened();
  }
  void ExpectRow(uint64_t row) {
    v1::ServedDataRequest request;
    request.mutable_ask()->add_shards(0);
    request.mutable_ask()->add_rows(row);
    EXPECT_TRUE(stream_->Write(request));
    v1::ServedDataReply reply;
    EXPECT_TRUE(stream_->Read(&reply) && reply.has_rows()) << Error();
  }

  void Write(const v1::ServedDataRequest& request) { (void)stream_->Write(request); }
  // Ends the call and returns its error.
  std::string Error() {
    if (!error_.has_value()) error_ = stream_->Finish().error_message();
    return *error_;
  }

 private:
  static std::shared_ptr<grpc::Channel> Connect(uint16_t port) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port),
                                     grpc::InsecureChannelCredentials(), arguments);
  }

  const std::unique_ptr<v1::ServedData::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ServedDataRequest, v1::ServedDataReply>> stream_;
  std::optional<std::string> error_;
};

class DataServerFloodTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string job = directory_.Write("points.job", std::string(kJob));
    // The limit of many systems is lower than what a process may set.
    rlimit before = {};
    getrlimit(RLIMIT_NOFILE, &before);
    const rlimit low = {256, before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &low);
    auto process = Process::Start({.program = "worker/ps-worker",
                                   .args = {absl::StrCat("--job=", job), "--serve_data=0"},
                                   .environment = {{"SYNCGRADS_TOKEN", "secret"},
                                                   {"ASAN_OPTIONS", testing::kSmallQuarantine}}});
    setrlimit(RLIMIT_NOFILE, &before);
    SYNCGRADS_ASSERT_OK(process);
    server_ = *std::move(process);
    const auto line = server_->WaitForLine(" on port ", kLongEnough);
    SYNCGRADS_ASSERT_OK(line);
    uint32_t port = 0;
    ASSERT_TRUE(absl::SimpleAtoi(line->substr(line->rfind(' ') + 1), &port)) << *line;
    port_ = static_cast<uint16_t>(port);
  }

  // Connects and sends nothing.
  FileDescriptor Connect() const {
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(port_);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    return socket;
  }

  // The value of a line of the server's status; of memory, in KiB.
  uint64_t Status(const std::string& name) const {
    std::string line;
    for (std::ifstream status(absl::StrCat("/proc/", server_->pid(), "/status"));
         std::getline(status, line);) {
      if (line.rfind(name + ":", 0) == 0) return std::stoull(line.substr(name.size() + 1));
    }
    ADD_FAILURE() << name;
    return 0;
  }

  const TemporaryDirectory directory_;
  std::unique_ptr<Process> server_;
  uint16_t port_ = 0;
};

TEST_F(DataServerFloodTest, DisturbsNoReaderAndEnds) {
  const rlimit few = {kDescriptors, kDescriptors};
  ASSERT_EQ(prlimit(server_->pid(), RLIMIT_NOFILE, &few, nullptr), 0);
  Reader reader(port_);
  reader.Open();
  reader.ExpectRow(0);
  std::vector<FileDescriptor> flood;
  for (int i = 0; i < kFlood; ++i) flood.push_back(Connect());
  SYNCGRADS_EXPECT_OK(server_->WaitForLine("connections are cut", kLongEnough));
  for (uint64_t row = 1; row < 10; ++row) reader.ExpectRow(row);
  flood.clear();
  Reader later(port_);
  later.Open();
  later.ExpectRow(0);
  reader.ExpectRow(0);
}

TEST_F(DataServerFloodTest, HeadersThatNeverEndEndTheConnection) {
  Reader reader(port_);
  reader.Open();
  const FileDescriptor hostile = Connect();
  const timeval timeout = {absl::ToInt64Seconds(kLongEnough), 0};
  setsockopt(hostile.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  // The preface, settings, the first headers, and then more of them: HTTP/2's frames 4, 1 and 9.
  std::string bytes("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
  bytes += std::string("\0\0\4\1\0\0\0\0\1\x83\x86\x40\x7f", 13);
  const std::string more = std::string("\0\x40\0\x9\0\0\0\0\1", 9) + std::string(0x4000, '\x80');
  size_t sent = 0;
  while (sent < (64 << 20) && send(hostile.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0) {
    sent += bytes.size();
    bytes = more;
  }
  EXPECT_THAT(errno, AnyOf(ECONNRESET, EPIPE)) << sent << " bytes were sent";
  reader.ExpectRow(0);
}

TEST_F(DataServerFloodTest, CallsThatAreResetAtOnceTakeFewThreads) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "a thousand threads are too much for the sanitizer";
#endif
  Reader reader(port_);
  reader.Open();
  std::string calls = testing::Http2Preface();
  for (uint32_t stream = 1; stream < 20'000; stream += 2) {
    calls += testing::Http2Call(stream, "/syncgrads.v1.ServedData/Serve");
    calls += testing::Http2Reset(stream);
  }
  std::atomic<int> floods = 3;
  std::vector<std::thread> strangers;
  for (int i = 0; i < 3; ++i) {
    strangers.emplace_back([&] {
      for (int j = 0; j < 3; ++j) {
        const FileDescriptor socket = Connect();
        send(socket.get(), calls.data(), calls.size(), MSG_NOSIGNAL);
      }
      --floods;
    });
  }
  uint64_t most = 0;
  while (floods > 0) most = std::max(most, Status("Threads"));
  for (std::thread& stranger : strangers) stranger.join();
  reader.ExpectRow(0);
  // The calls that are left end too. A worker that finds all threads busy is started again
  // (RowStream).
  std::optional<Reader> later;
  EXPECT_TRUE(WaitUntil([&] {
    most = std::max(most, Status("Threads"));
    return later.emplace(port_).Opens();
  }));
  later->ExpectRow(0);
  // 1,024 calls may be open, and 256 that open.
  EXPECT_LE(most, 1400u);
}

// Opens 64 calls with a wrong token, 16 at a time, whose messages have almost 1 MiB of empty
// tables. Returns the number of calls whose message has arrived: a connection may be closed before.
int OpenWithManyTables(uint16_t port) {
  constexpr int kTables = (1 << 20) / 2 - 100;
  v1::ServedDataRequest request;
  v1::OpenServedData& open = *request.mutable_open();
  open.set_token("guess");
  for (int i = 0; i < kTables; ++i) open.mutable_data()->mutable_table()->add_tables();
  int arrived = 0;
  for (int round = 0; round < 4; ++round) {
    std::vector<std::unique_ptr<Reader>> calls;
    for (int i = 0; i < 16; ++i) calls.push_back(std::make_unique<Reader>(port));
    for (const auto& call : calls) call->Write(request);
    for (const auto& call : calls) {
      EXPECT_NE(call->Error(), "");
      if (absl::StrContains(call->Error(), "wrong token")) ++arrived;
    }
  }
  return arrived;
}

TEST_F(DataServerFloodTest, ARequestOfAStrangerIsNotParsed) {
  Reader reader(port_);
  reader.Open();
  // Resets the peak memory (VmHWM).
  std::ofstream(absl::StrCat("/proc/", server_->pid(), "/clear_refs")) << 5;
  const uint64_t before = Status("VmRSS");
  std::atomic<int> arrived = 0;
  std::vector<std::thread> strangers;
  for (int i = 0; i < 4; ++i) {
    strangers.emplace_back([&] { arrived += OpenWithManyTables(port_); });
  }
  for (std::thread& stranger : strangers) stranger.join();
  EXPECT_GT(arrived, 0);
  // gRPC holds the bytes of up to 64 messages. One that is parsed takes dozens of times its bytes.
  EXPECT_LE(Status("VmHWM") - before, 200u << 10) << arrived << " messages";
  reader.ExpectRow(0);
}

// Connections are limited to three quarters of the descriptors.
TEST_F(DataServerFloodTest, TheServerHasAsManyDescriptorsAsItMay) {
  rlimit limit = {};
  ASSERT_EQ(prlimit(server_->pid(), RLIMIT_NOFILE, nullptr, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
}

}  // namespace
}  // namespace syncgrads
