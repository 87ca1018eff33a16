// The clients of the benchmark of reconnections (storm.py): the members of one job. Each has a
// connection of its own with a Join and an Exchange stream.
//
// Each line SECONDS on stdin requests storms for so long. In a storm, all members close their
// connections and reconnect at once, without a backoff. A storm begins every --interval, or when
// the one before has ended. The line is answered with STORMS MEDIAN_MS LONGEST_MS.

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/process_setup.h"
#include "common/rpc/channel_arguments.h"
#include "proto/control.grpc.pb.h"
#include "proto/data.grpc.pb.h"

ABSL_FLAG(std::string, coordinator, "", "host:port of server 0");
ABSL_FLAG(uint32_t, members, 500, "of the job");
ABSL_FLAG(absl::Duration, interval, absl::Seconds(1), "between the beginnings of two storms");

namespace syncgrads::bench {
namespace {

constexpr char kJob[] = "storm";
constexpr ReconnectTimes kReconnect = {absl::Seconds(20), absl::Milliseconds(50), absl::Minutes(1)};

[[noreturn]] void Fail(const std::string& what, const grpc::Status& status) {
  std::cerr << what << ": " << status.error_message() << std::endl;
  std::_Exit(1);
}

class Member {
 public:
  explicit Member(uint32_t rank) : rank_(rank) {}

  // Joins the job, or returns to it.
  void Connect() {
    channel_ =
        grpc::CreateCustomChannel(absl::GetFlag(FLAGS_coordinator),
                                  grpc::InsecureChannelCredentials(), OwnConnection(kReconnect));
    join_context_ = std::make_unique<grpc::ClientContext>();
    join_ = v1::Control::NewStub(channel_)->Join(join_context_.get());
    v1::WorkerSignal signal;
    v1::Hello& hello = *signal.mutable_hello();
    hello.set_protocol_version(2);
    hello.set_job(kJob);
    hello.set_incarnation(rank_ + 1);
    hello.set_rank(rank_);
    hello.set_world_size(absl::GetFlag(FLAGS_members));
    hello.set_generation(generation_);
    hello.set_member_secret(absl::StrCat("secret of ", rank_));
    join_->Write(signal);
    v1::JobSignal answer;
    do {
      if (!join_->Read(&answer)) Fail(absl::StrCat("member ", rank_), join_->Finish());
    } while (!answer.has_welcome());
    generation_ = answer.generation();
    data_context_ = std::make_unique<grpc::ClientContext>();
    data_ = v1::Data::NewStub(channel_)->Exchange(data_context_.get());
    v1::PushChunk push;
    push.set_generation(generation_);
    push.mutable_hello()->set_protocol_version(2);
    push.mutable_hello()->set_job(kJob);
    push.mutable_hello()->set_member(answer.welcome().member());
    push.mutable_hello()->set_incarnation(rank_ + 1);
    push.mutable_hello()->set_member_secret(hello.member_secret());
    data_->Write(push);
  }

  void Disconnect() {
    join_context_->TryCancel();
    data_context_->TryCancel();
    join_->Finish();
    data_->Finish();
    join_ = nullptr;
    data_ = nullptr;
    channel_ = nullptr;
  }

 private:
  const uint32_t rank_;
  uint64_t generation_ = 0;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<grpc::ClientContext> join_context_, data_context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerSignal, v1::JobSignal>> join_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::PushChunk, v1::UpdateChunk>> data_;
};

// Calls `call` for all members at once.
template <typename Call>
void ForAll(std::vector<Member>& members, Call call) {
  std::vector<std::thread> threads;
  threads.reserve(members.size());
  for (Member& member : members) threads.emplace_back([&member, call] { call(member); });
  for (std::thread& thread : threads) thread.join();
}

int Main() {
  std::vector<Member> members;
  for (uint32_t rank = 0; rank < absl::GetFlag(FLAGS_members); ++rank) members.emplace_back(rank);
  ForAll(members, [](Member& member) { member.Connect(); });
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    double seconds = 0;
    if (!absl::SimpleAtod(line, &seconds)) return 2;
    const absl::Time end = MonotonicNow() + absl::Seconds(seconds);
    std::vector<double> storms;
    for (absl::Time begin = MonotonicNow(); begin < end;
         begin = std::max(begin + absl::GetFlag(FLAGS_interval), MonotonicNow())) {
      absl::SleepFor(begin - MonotonicNow());
      ForAll(members, [](Member& member) {
        member.Disconnect();
        member.Connect();
      });
      storms.push_back(absl::ToDoubleMilliseconds(MonotonicNow() - begin));
    }
    std::sort(storms.begin(), storms.end());
    std::cout << storms.size() << " " << storms[storms.size() / 2] << " " << storms.back()
              << std::endl;
  }
  // Skips the orderly end of 500 connections.
  std::_Exit(0);
}

}  // namespace
}  // namespace syncgrads::bench

int main(int argc, char** argv) {
  syncgrads::SetUpProcess();
  absl::ParseCommandLine(argc, argv);
  return syncgrads::bench::Main();
}
