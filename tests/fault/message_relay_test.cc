#include "tests/fault/message_relay.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "proto/data.grpc.pb.h"

namespace syncgrads::fault {
namespace {

// Answers each push with an update of the same round. When the client ends the stream, returns the
// status DATA_LOSS, "the end".
class Echo : public v1::Data::Service {
 public:
  Echo() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  uint16_t port() const { return static_cast<uint16_t>(port_); }

  grpc::Status Exchange(grpc::ServerContext*,
                        grpc::ServerReaderWriter<v1::UpdateChunk, v1::PushChunk>* stream) override {
    v1::PushChunk push;
    while (stream->Read(&push)) {
      v1::UpdateChunk update;
      update.set_round(push.round());
      if (!stream->Write(update)) break;
    }
    return {grpc::StatusCode::DATA_LOSS, "the end"};
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// A stream through a relay with the given fates.
class Stream {
 public:
  Stream(FateOfMessage fate, uint16_t server, absl::Duration longest_hold = absl::Milliseconds(5)) {
    auto relay = MessageRelay::Start(std::move(fate), longest_hold);
    EXPECT_TRUE(relay.ok()) << relay.status();
    relay_ = *std::move(relay);
    if (server != 0) relay_->SetUpstream(server);
    stub_ = v1::Data::NewStub(grpc::CreateChannel(absl::StrCat("127.0.0.1:", relay_->port()),
                                                  grpc::InsecureChannelCredentials()));
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
    stream_ = stub_->Exchange(&context_);
  }
  void Push(uint64_t round) {
    v1::PushChunk push;
    push.set_round(round);
    stream_->Write(push);
  }
  // Returns the rounds of all answers until the end, and the status of the stream.
  std::pair<std::vector<uint64_t>, grpc::Status> Finish() {
    stream_->WritesDone();
    std::vector<uint64_t> rounds;
    v1::UpdateChunk update;
    while (stream_->Read(&update)) rounds.push_back(update.round());
    return {rounds, stream_->Finish()};
  }

 private:
  std::unique_ptr<MessageRelay> relay_;
  std::unique_ptr<v1::Data::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::PushChunk, v1::UpdateChunk>> stream_;
};

// Applies `fate` to message `number` of requests only. Both directions count from 0 and use the
// same function, so the direction is recognised by the order: a request comes before its answer.
FateOfMessage Always(Fate fate, uint64_t number) {
  auto seen = std::make_shared<std::set<uint64_t>>();
  auto mutex = std::make_shared<std::mutex>();
  return [=](const std::string&, uint64_t n) {
    std::lock_guard lock(*mutex);
    // The first call for a number is for the request.
    return n == number && seen->insert(n).second ? fate : Fate::kPassed;
  };
}

TEST(MessageRelayTest, PassesMessagesAndTheEnd) {
  Echo echo;
  Stream stream(Always(Fate::kPassed, 0), echo.port());
  for (uint64_t round = 1; round <= 50; ++round) stream.Push(round);
  const auto [rounds, status] = stream.Finish();
  std::vector<uint64_t> all(50);
  std::iota(all.begin(), all.end(), 1);
  EXPECT_EQ(rounds, all);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(status.error_message(), "the end");
}

TEST(MessageRelayTest, ADroppedMessageBreaksTheStream) {
  Echo echo;
  Stream stream(Always(Fate::kDropped, 2), echo.port());
  for (uint64_t round = 1; round <= 5; ++round) stream.Push(round);
  const auto [rounds, status] = stream.Finish();
  EXPECT_LE(rounds.size(), 2u);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(MessageRelayTest, ADuplicateArrivesTwice) {
  Echo echo;
  Stream stream(Always(Fate::kDuplicated, 1), echo.port());
  for (uint64_t round = 1; round <= 3; ++round) stream.Push(round);
  EXPECT_EQ(stream.Finish().first, (std::vector<uint64_t>{1, 2, 2, 3}));
}

TEST(MessageRelayTest, AHeldMessageIsOvertaken) {
  Echo echo;
  // The message is held until the next one arrives, however late that is.
  Stream stream(Always(Fate::kHeld, 1), echo.port(), absl::Minutes(1));
  for (uint64_t round = 1; round <= 3; ++round) stream.Push(round);
  EXPECT_EQ(stream.Finish().first, (std::vector<uint64_t>{1, 3, 2}));
}

TEST(MessageRelayTest, AHeldMessageThatNothingOvertakesIsSentAllTheSame) {
  Echo echo;
  Stream stream(Always(Fate::kHeld, 0), echo.port());
  stream.Push(1);
  EXPECT_EQ(stream.Finish().first, (std::vector<uint64_t>{1}));
}

TEST(MessageRelayTest, WithoutAServerCallsAreUnavailable) {
  Stream stream(Always(Fate::kPassed, 0), 0);
  EXPECT_EQ(stream.Finish().second.error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(RandomFatesTest, OnlyPushesAndUpdatesAreRepeatedAndSwapped) {
  const FateOfMessage fates = RandomFates({.drop = 0, .duplicate = 0.5, .reorder = 0.5}, 1);
  std::set<Fate> exchanged;
  for (uint64_t number = 1; number < 100; ++number) {
    EXPECT_EQ(fates("/syncgrads.v1.Control/Join", number), Fate::kPassed);
    exchanged.insert(fates("/syncgrads.v1.Data/Exchange", number));
  }
  EXPECT_EQ(exchanged, (std::set<Fate>{Fate::kDuplicated, Fate::kHeld}));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(fates("/syncgrads.v1.Data/Exchange", 0), Fate::kPassed);
}

}  // namespace
}  // namespace syncgrads::fault
