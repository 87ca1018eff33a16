// A data server in this process, and workers that get its rows.

#ifndef SYNCGRADS_TESTS_WORKER_DATA_SERVICE_DATA_SERVICE_FIXTURE_H_
#define SYNCGRADS_TESTS_WORKER_DATA_SERVICE_DATA_SERVICE_FIXTURE_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/served_data.grpc.pb.h"
#include "tests/worker/testing/status.h"
#include "worker/batches/data_set.h"
#include "worker/data_service/data_client.h"
#include "worker/data_service/data_server.h"
#include "worker/job/job_file.h"

namespace syncgrads {

// Programs with sanitizers are slow on a busy machine.
inline constexpr absl::Duration kLongEnough = absl::Minutes(1);

inline Job PointsJob(uint64_t rows = 100) {
  const auto job = ParseJobFile(absl::StrCat(R"(
      name: "points"
      data { generated { rows: )",
                                             rows, R"( seed: 3 } shards: 4 validation_every: 5 }
      model { layers { dense { outputs: 1 } } }
      loss { sigmoid_cross_entropy {} }
      optimizer { sgd {} }
      batch_size: 8
      epochs: 1)"),
                                "points.job");
  SYNCGRADS_EXPECT_OK(job);
  return *job;
}

class DataServiceTest : public ::testing::Test {
 protected:
  void Serve(const Job& job) { Serve(DataServer::Options{job, "secret"}); }
  void Serve(DataServer::Options options) {
    auto server = DataServer::Start(std::move(options));
    SYNCGRADS_ASSERT_OK(server);
    server_ = std::move(*server);
    address_ = absl::StrCat("127.0.0.1:", server_->port());
  }

  // Makes the job of a worker that gets its rows from the service and reads no files.
  Job ServedJob(Job job, const std::string& token = "secret",
                absl::Duration timeout = kLongEnough) const {
    job.file.mutable_data()->add_served_from(address_);
    job.data_host = ConnectToDataHosts(job.file, token, timeout);
    return job;
  }

  std::unique_ptr<DataServer> server_;
  std::string address_;
};

inline constexpr ServedDataRequest kSecondOfTwo = {1, 2, 0, TargetKind::kClass};

// Makes the RPC directly, as a worker that reads slowly.
class SlowWorker {
 public:
  SlowWorker(const std::string& address, const Job& job)
      : stub_(v1::ServedData::NewStub(grpc::CreateCustomChannel(
            address, grpc::InsecureChannelCredentials(), SmallBuffers()))) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + kLongEnough));
    stream_ = stub_->Serve(&context_);
    v1::ServedDataRequest request;
    v1::OpenServedData& open = *request.mutable_open();
    open.set_token("secret");
    open.set_job(job.file.name());
    *open.mutable_data() = job.file.data();
    open.set_world_size(1);
    open.set_dtype(v1::F64);
    EXPECT_TRUE(stream_->Write(request));
    EXPECT_TRUE(Read().has_opened());
  }

  // Requests rows 0 to `rows` - 1 of the first shard.
  void Ask(uint64_t rows) {
    v1::ServedDataRequest request;
    for (uint64_t row = 0; row < rows; ++row) {
      request.mutable_ask()->add_shards(0);
      request.mutable_ask()->add_rows(row);
    }
    EXPECT_TRUE(stream_->Write(request));
  }

  v1::ServedDataReply Read() {
    v1::ServedDataReply reply;
    EXPECT_TRUE(stream_->Read(&reply));
    return reply;
  }

  grpc::Status Finish() { return stream_->Finish(); }
  void WritesDone() { EXPECT_TRUE(stream_->WritesDone()); }

 private:
  // Otherwise gRPC enlarges its buffers with the connection's round-trip time, which is long on a
  // busy machine.
  static grpc::ChannelArguments SmallBuffers() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    return arguments;
  }

  const std::unique_ptr<v1::ServedData::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ServedDataRequest, v1::ServedDataReply>> stream_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_DATA_SERVICE_DATA_SERVICE_FIXTURE_H_
