// What a data server grants to callers that open no rows: nobody else has to wait for them.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "proto/served_data.grpc.pb.h"
#include "tests/testing/wait_until.h"
#include "tests/worker/data_service/data_service_fixture.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/batches/data_set.h"
#include "worker/data_service/data_client.h"
#include "worker/data_service/data_server.h"

namespace syncgrads {
namespace {

// A call of somebody who does not open rows.
class Stranger {
 public:
  explicit Stranger(const std::string& address)
      : stub_(v1::ServedData::NewStub(grpc::CreateCustomChannel(
            address, grpc::InsecureChannelCredentials(), OwnConnection()))) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + kLongEnough));
  }

  grpc::ClientContext& context() { return context_; }
  void Begin() { stream_ = stub_->Serve(&context_); }
  void Send(const std::string& token) {
    v1::ServedDataRequest request;
    request.mutable_open()->set_token(token);
    Send(request);
  }
  void Send(const v1::ServedDataRequest& request) { (void)stream_->Write(request); }
  grpc::Status Finish() {
    v1::ServedDataReply reply;
    while (stream_->Read(&reply)) {
    }
    return stream_->Finish();
  }

 private:
  static grpc::ChannelArguments OwnConnection() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return arguments;
  }

  const std::unique_ptr<v1::ServedData::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ServedDataRequest, v1::ServedDataReply>> stream_;
};

TEST_F(DataServiceTest, TheTokenIsComparedBeforeTheRequestIsParsed) {
  Serve(PointsJob());
  const auto answer_to = [this](const std::string& token) {
    v1::ServedDataRequest request;
    v1::OpenServedData& open = *request.mutable_open();
    open.set_token(token);
    // A length of 5 bytes, and nothing after it.
    open.GetReflection()->MutableUnknownFields(&open)->AddLengthDelimited(
        v1::OpenServedData::kDataFieldNumber, "\x0a\x05");
    Stranger stranger(address_);
    stranger.Begin();
    stranger.Send(request);
    return stranger.Finish();
  };
  EXPECT_EQ(answer_to("guess").error_code(), grpc::StatusCode::PERMISSION_DENIED);
  const grpc::Status malformed = answer_to("secret");
  EXPECT_EQ(malformed.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(malformed.error_message(), ::testing::HasSubstr("malformed"));
}

// Also without a token: a server of only this host has none.
TEST_F(DataServiceTest, ARequestThatIsMuchLongerThanTheJobsDataIsNotParsed) {
  Serve(DataServer::Options{PointsJob(), ""});
  v1::ServedDataRequest request;
  request.mutable_open()->set_job("points");
  for (int i = 0; i < 100'000; ++i) {
    request.mutable_open()->mutable_data()->mutable_table()->add_tables();
  }
  Stranger stranger(address_);
  stranger.Begin();
  stranger.Send(request);
  const grpc::Status status = stranger.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(),
              ::testing::AllOf(::testing::HasSubstr(absl::StrCat(request.ByteSizeLong(), " bytes")),
                               ::testing::HasSubstr("\"points\"")));
}

TEST_F(DataServiceTest, ADescriptionOfTheJobsDataMayBeLong) {
  constexpr int kColumns = 20'000;
  std::string header, row;
  Job job = PointsJob();
  v1::DataSpec& data = *job.file.mutable_data();
  for (int i = 0; i < kColumns; ++i) {
    const std::string name = absl::StrCat("a column with a long name ", i);
    absl::StrAppend(&header, name, ",");
    absl::StrAppend(&row, i % 10, ",");
    data.add_features(name);
  }
  const TemporaryDirectory directory;
  directory.Write("wide.csv", absl::StrCat(header, "t\n", row, "0\n", row, "1\n"));
  job.directory = directory.path();
  data.mutable_table()->set_path("wide.csv");
  data.set_target("t");
  data.set_shards(1);
  data.set_validation_every(0);
  Serve(job);
  const auto served = LoadRows(ServedJob(job), {0, 1, 0, TargetKind::kClass});
  SYNCGRADS_ASSERT_OK(served);
  EXPECT_EQ(served->features.size(), size_t{kColumns});
}

TEST_F(DataServiceTest, ALongMessageIsRefused) {
  Serve(PointsJob());
  Stranger stranger(address_);
  stranger.Begin();
  stranger.Send(std::string(1 << 20, 't'));
  const grpc::Status status = stranger.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("1048576"));
}

TEST_F(DataServiceTest, ACompressedMessageIsRefused) {
  Serve(PointsJob());
  Stranger stranger(address_);
  stranger.context().set_compression_algorithm(GRPC_COMPRESS_GZIP);
  stranger.Begin();
  stranger.Send(std::string(100000, 't'));
  const grpc::Status status = stranger.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
}

TEST_F(DataServiceTest, ACallThatOpensNothingIsCancelled) {
  DataServer::Options options{PointsJob(), "secret"};
  options.opening.timeout = absl::Milliseconds(50);
  Serve(std::move(options));
  Stranger stranger(address_);
  stranger.Begin();
  const grpc::Status status = stranger.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED) << status.error_message();
}

TEST_F(DataServiceTest, ACallThatHasOpenedRowsHasNoDeadline) {
  const Job job = PointsJob();
  DataServer::Options options{job, "secret"};
  options.opening.timeout = absl::Seconds(10);
  Serve(std::move(options));
  SlowWorker worker(address_, job);
  // By the time that this call is cancelled, the worker's deadline would have passed too.
  Stranger stranger(address_);
  stranger.Begin();
  EXPECT_FALSE(stranger.Finish().ok());
  worker.Ask(2);
  EXPECT_TRUE(worker.Read().has_rows());
}

// Calls whose first message does not arrive, each with a connection of its own.
class SilentCalls {
 public:
  SilentCalls(const std::string& address, int count) {
    for (int i = 0; i < count; ++i) {
      Stranger& call = calls_.emplace_back(address);
      call.Begin();
      ends_.emplace_back([this, &call] {
        if (call.Finish().error_code() == grpc::StatusCode::CANCELLED) ++cancelled_;
      });
    }
  }
  ~SilentCalls() {
    for (Stranger& call : calls_) call.context().TryCancel();
    for (std::thread& end : ends_) end.join();
  }

  // The number of calls that the server has cancelled.
  int cancelled() const { return cancelled_; }

 private:
  std::list<Stranger> calls_;
  std::atomic<int> cancelled_ = 0;
  std::vector<std::thread> ends_;
};

TEST_F(DataServiceTest, CallsThatOpenNothingTakeNoPlaceOfAWorkersCall) {
  const Job job = PointsJob();
  DataServer::Options options{job, "secret"};
  options.max_calls = 1;
  options.opening = {.calls_per_peer = 4, .timeout = absl::Hours(1)};
  Serve(std::move(options));
  const SilentCalls silent(address_, 20);
  // The oldest make room.
  EXPECT_TRUE(testing::WaitUntil([&] { return silent.cancelled() == 16; }));
  // They do not keep the server from ending either.
  EXPECT_TRUE(server_->AwaitIdle(absl::ZeroDuration(), [] { return false; }));
  SlowWorker worker(address_, job);
  worker.Ask(2);
  EXPECT_TRUE(worker.Read().has_rows());
  EXPECT_TRUE(testing::WaitUntil([&] { return silent.cancelled() == 17; }));
}

TEST_F(DataServiceTest, CallsThatOpenNothingAreFewInAll) {
  DataServer::Options options{PointsJob(), "secret"};
  options.opening = {.calls = 4, .timeout = absl::Hours(1)};
  Serve(std::move(options));
  const SilentCalls silent(address_, 20);
  EXPECT_TRUE(testing::WaitUntil([&] { return silent.cancelled() == 16; }));
}

TEST_F(DataServiceTest, GuessesOfTheTokenAreLoggedAndSlowed) {
  const Job job = PointsJob();
  DataServer::Options options{job, "secret"};
  Mutex mutex;
  std::vector<std::string> lines;
  options.warn = [&](const std::string& line) {
    MutexLock lock(mutex);
    lines.push_back(line);
  };
  Serve(std::move(options));
  const auto guess = [&] { return LoadRows(ServedJob(job, "guess"), kSecondOfTwo).status(); };
  absl::Status status = guess();
  {
    MutexLock lock(mutex);
    EXPECT_THAT(lines, ::testing::ElementsAre("a wrong token has come from 127.0.0.1"));
  }
  // One more guess is allowed each second.
  for (int i = 0; i < 1000 && absl::IsPermissionDenied(status); ++i) status = guess();
  ExpectError(status, absl::StatusCode::kUnavailable, {"too many wrong tokens", "127.0.0.1"});
  EXPECT_TRUE(LoadRows(ServedJob(job), kSecondOfTwo).ok());
}

TEST_F(DataServiceTest, MoreCallsThanTheLimitAreRefused) {
  const Job job = PointsJob();
  DataServer::Options options{job, "secret"};
  options.max_calls = 2;
  Serve(std::move(options));
  SlowWorker first(address_, job);
  SlowWorker second(address_, job);
  ExpectError(LoadRows(ServedJob(job), kSecondOfTwo), absl::StatusCode::kResourceExhausted,
              {address_, "2 calls of this data server are open, the limit is 2"});
  first.WritesDone();
  EXPECT_TRUE(first.Read().has_end());
  EXPECT_TRUE(first.Finish().ok());
  // A call counts until shortly after its status was sent.
  EXPECT_TRUE(testing::WaitUntil([&] { return LoadRows(ServedJob(job), kSecondOfTwo).ok(); }));
}

}  // namespace
}  // namespace syncgrads
