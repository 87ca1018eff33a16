// A member that does not read its results, with a real ps-server and its state in files.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "tests/server/service/stub_worker.h"
#include "tests/testing/files_in.h"
#include "tests/testing/process/process.h"
#include "tests/testing/small_quarantine.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::server {
namespace {

using ::syncgrads::testing::FilesIn;
using ::syncgrads::testing::Process;
using ::syncgrads::testing::WaitUntil;

constexpr size_t kResultBytes = 1 << 20;

// An upper bound on the memory that gRPC keeps for open connections. Unread results would need
// more. The address sanitizer maps memory of its own, too, and keeps freed memory.
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kBuffersMiB = 14 + 16 + 34;
#else
constexpr size_t kBuffersMiB = 14;
#endif

size_t EntriesOf(const std::string& folder) {
  const std::filesystem::directory_iterator all(folder);
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

class UnreadResultsTest : public ::testing::Test {
 protected:
  UnreadResultsTest() {
    std::filesystem::remove_all(state_);
    auto process = Process::Start({.program = "server/ps-server",
                                   // With one thread, a result is queued before the next round
                                   // closes.
                                   .args = {"--port=0", "--bind=127.0.0.1", "--closing_threads=1",
                                            absl::StrCat("--state=", state_)},
                                   .environment = {{"ASAN_OPTIONS", testing::kSmallQuarantine}}});
    EXPECT_TRUE(process.ok()) << process.status();
    server_ = *std::move(process);
    const auto line = server_->WaitForLine("listening on", kPatience);
    EXPECT_TRUE(line.ok()) << line.status();
    address_ = line->substr(line->rfind(' ') + 1);
    admin_ = v1::Admin::NewStub(ChannelTo(address_));
  }
  ~UnreadResultsTest() override {
    server_ = nullptr;
    std::filesystem::remove_all(state_);
  }

  size_t Descriptors() const { return EntriesOf(absl::StrCat("/proc/", server_->pid(), "/fd")); }
  size_t ResidentMiB() const {
    std::ifstream status(absl::StrCat("/proc/", server_->pid(), "/status"));
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("VmRSS:", 0) == 0) return std::stoul(line.substr(6)) >> 10;
    }
    return 0;
  }

  // Waits until the round has closed. The results of all earlier rounds are queued then.
  void AwaitClosed(uint64_t round) {
    while (true) {
      v1::GetStatusReply reply;
      const grpc::Status status = admin_->GetStatus(Context().get(), {}, &reply);
      // A busy server may learn late that an answer has been read.
      if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) continue;
      ASSERT_TRUE(status.ok()) << status.error_message();
      ASSERT_EQ(reply.jobs_size(), 1);
      ASSERT_EQ(reply.jobs(0).groups_size(), 1);
      if (reply.jobs(0).groups(0).open_round() > round) return;
    }
  }

  static v1::WorkerSignal RegisterLarge() {
    v1::WorkerSignal signal = RegisterModel();
    v1::GroupSpec& spec = *signal.mutable_register_group()->mutable_spec();
    spec.mutable_tensors(0)->set_shape(0, kResultBytes / 4);
    spec.set_chunk_bytes(kResultBytes);
    return signal;
  }

  const std::string state_ = absl::StrCat(::testing::TempDir(), "/unread_results_test");
  std::unique_ptr<Process> server_;
  std::string address_;
  std::unique_ptr<v1::Admin::Stub> admin_;
};

TEST_F(UnreadResultsTest, HoldSoMuchAndTheJobLeavesNothingBehind) {
  ASSERT_TRUE(
      admin_->GetStatus(Context().get(), {}, std::make_unique<v1::GetStatusReply>().get()).ok());
  const size_t descriptors = Descriptors(), files = FilesIn(state_), resident = ResidentMiB();
  {
    Worker worker(address_, "a", 1);
    worker.Begin(RegisterLarge());
    const auto push = [&](uint64_t round) {
      v1::PushChunk push = worker.Push(round, 1);
      push.set_payload(std::string(kResultBytes, '\0'));
      return push;
    };
    // Limits the flow control window, so that this process receives little unread data.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    const auto channel =
        grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments);
    // Two rounds on each stream, so that no single stream reaches the limit at which the server
    // stops reading it.
    std::vector<std::unique_ptr<DataStream>> streams;
    for (int i = 0; i < 20; ++i) streams.push_back(worker.Exchange(channel));
    const size_t with_streams = Descriptors();
    uint64_t round = 0;
    for (int i = 0; i < 40; ++i) {
      streams[i / 2]->Write(push(++round));
      AwaitClosed(round);
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_TRUE(WaitUntil([&] { return Descriptors() <= with_streams; }))
        << "a result takes a descriptor";
    // 16 results may wait. The server releases those of a stream that it has cut a moment later.
    EXPECT_LE(FilesIn(state_), files + 1 + 28) << "more results wait than may";
    // Not the last stream: its results may not have been queued yet and would be read one by one.
    ExpectStatus(streams[10]->Finish(), grpc::StatusCode::RESOURCE_EXHAUSTED,
                 {"bytes that the peer has not read", "the limit is 16777216"});
    streams.clear();
    // A repeated push is answered with the newest result.
    const auto again = worker.Exchange();
    again->Write(push(round));
    EXPECT_EQ(again->MustRead().round(), round);
    // A further slot that has been idle for some rounds is given back in a later round.
    EXPECT_TRUE(WaitUntil([&] {
      again->Write(push(++round));
      EXPECT_EQ(again->MustRead().round(), round);
      return HasFailure() || FilesIn(state_) <= files + 1 + 1;
    })) << FilesIn(state_);
    v1::WorkerSignal leave;
    leave.mutable_leave()->set_request(5);
    worker.join().Write(leave);
    EXPECT_TRUE(worker.join().Finish().ok());
    ExpectStatus(again->Finish(), grpc::StatusCode::UNAVAILABLE, {"is closed"});
  }
  EXPECT_TRUE(WaitUntil([&] { return Descriptors() <= descriptors; })) << Descriptors();
  EXPECT_TRUE(WaitUntil([&] { return ResidentMiB() <= resident + kBuffersMiB; })) << ResidentMiB();
  EXPECT_TRUE(WaitUntil([&] { return FilesIn(state_) <= files; })) << FilesIn(state_);
}

}  // namespace
}  // namespace syncgrads::server
