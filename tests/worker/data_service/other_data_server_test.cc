// Workers of a data server that sends what it should not.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "proto/served_data.grpc.pb.h"
#include "tests/worker/data_service/data_service_fixture.h"
#include "tests/worker/testing/status.h"
#include "worker/batches/data_set.h"
#include "worker/data_service/data_client.h"

namespace syncgrads {
namespace {

// A data server that sends what the test gives it.
class OtherServer : public v1::ServedData::Service {
 public:
  using Stream = grpc::ServerReaderWriter<v1::ServedDataReply, v1::ServedDataRequest>;

  OtherServer() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~OtherServer() override { server_->Shutdown(); }

  const std::string& address() const { return address_; }

  // Must be set before a worker opens rows.
  v1::OpenedServedData opened;
  v1::RowsAskedFor rows;
  // If it is not OK, it is the answer to the first request.
  grpc::Status status;

 private:
  grpc::Status Serve(grpc::ServerContext* /*context*/, Stream* stream) override {
    v1::ServedDataRequest request;
    v1::ServedDataReply reply;
    if (!stream->Read(&request) || !status.ok()) return status;
    *reply.mutable_opened() = opened;
    stream->Write(reply);
    *reply.mutable_rows() = rows;
    while (stream->Read(&request)) stream->Write(reply);
    return grpc::Status::OK;
  }

  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

// Shards 1 and 3 of 4, with two rows each, as worker 1 of 2 opens them.
v1::OpenedServedData TwoShards() {
  v1::OpenedServedData opened;
  opened.set_total_shards(4);
  for (const char* name : {"x", "y"}) opened.add_features(name);
  opened.set_channels(2);
  opened.set_height(1);
  opened.set_width(1);
  for (const uint32_t number : {1, 3}) {
    v1::ServedShard& shard = *opened.add_shards();
    shard.set_number(number);
    shard.set_rows(2);
    shard.set_targets_per_row(1);
    for (const double target : {0.0, 1.0}) shard.add_targets(target);
    for (const char* name : {"a", "b"}) shard.add_classes()->set_name(name);
  }
  return opened;
}

v1::OpenedServedData Images(int64_t channels, int64_t height, int64_t width) {
  v1::OpenedServedData opened = TwoShards();
  opened.set_is_image(true);
  opened.clear_features();
  opened.set_channels(channels);
  opened.set_height(height);
  opened.set_width(width);
  return opened;
}

using Change = std::function<void(v1::OpenedServedData&)>;

// What a data server sends, and what the error of the worker states besides the server's address.
struct Refused {
  v1::OpenedServedData opened;
  std::string sent;
  std::string needed;
};

Refused Changed(const Change& change, const std::string& sent, const std::string& needed) {
  Refused refused = {TwoShards(), sent, needed};
  change(refused.opened);
  return refused;
}

class OtherServerTest : public DataServiceTest {
 protected:
  OtherServerTest() { address_ = other_.address(); }

  void ExpectRefused(const Job& job, absl::Span<const Refused> cases) {
    for (const Refused& one : cases) {
      other_.opened = one.opened;
      ExpectError(LoadRows(ServedJob(job), kSecondOfTwo), absl::StatusCode::kDataLoss,
                  {absl::StrCat("data server ", address_), one.sent, one.needed});
    }
  }

  OtherServer other_;
};

TEST_F(OtherServerTest, RowsOfAnyShapeThatIsPossibleAreOpened) {
  for (const auto& opened : {TwoShards(), Images(3, 2, 2), Images(16384, 1, 1)}) {
    other_.opened = opened;
    SYNCGRADS_EXPECT_OK(LoadRows(ServedJob(PointsJob()), kSecondOfTwo));
  }
}

TEST_F(OtherServerTest, ShapesThatAreImpossibleAreRefused) {
  using Opened = v1::OpenedServedData;
  Refused named = {Images(3, 2, 2), "3x2x2", "2 features"};
  for (const char* name : {"x", "y"}) named.opened.add_features(name);
  const Refused cases[] = {
      Changed([](Opened& to) { to.set_channels(3); }, "3x1x1", "2x1x1"),
      Changed([](Opened& to) { to.set_channels(-1); }, "-1x1x1", "2x1x1"),
      Changed([](Opened& to) { to.set_channels(int64_t{1} << 40); }, "1099511627776x1", "2x1x1"),
      Changed([](Opened& to) { to.set_height(2); }, "2x2x1", "2x1x1"),
      Changed([](Opened& to) { to.set_width(0); }, "2x1x0", "2x1x1"),
      Changed(
          [](Opened& to) {
            to.clear_features();
            to.set_channels(0);
          },
          "0x1x1", "67108864"),
      {Images(0, 2, 2), "0x2x2", "16384"},
      {Images(1, -2, -2), "1x-2x-2", "16384"},
      {Images(1, 16385, 1), "1x16385x1", "16384"},
      {Images(1, int64_t{0x6DB6DB6DB6DB6DB7}, 7), "1x7905747460161236407x7", "16384"},
      {Images(1, 16384, 16384), "1x16384x16384", "67108864"},
      named,
  };
  ExpectRefused(PointsJob(), cases);
}

TEST_F(OtherServerTest, ShardsThatAreNotThoseOfTheWorkerAreRefused) {
  using Opened = v1::OpenedServedData;
  const Refused cases[] = {
      Changed([](Opened& to) { to.set_total_shards(0); }, "0 shards", "must have 4"),
      Changed([](Opened& to) { to.set_total_shards(6); }, "6 shards", "must have 4"),
      Changed([](Opened& to) { to.clear_shards(); }, "0 of 4 shards", "must be 2"),
      Changed([](Opened& to) { to.mutable_shards(1)->set_number(1); }, "number 1", "must be 3"),
      Changed([](Opened& to) { to.mutable_shards(1)->set_rows(3); }, "shard 3 of 3 rows",
              "targets"),
      Changed(
          [](Opened& to) {
            for (v1::ServedShard& shard : *to.mutable_shards()) {
              shard.set_targets_per_row(2);
              shard.set_rows(1);
            }
          },
          "2 targets per row", "must be 1"),
  };
  ExpectRefused(PointsJob(), cases);
  Job job = PointsJob();
  job.file.mutable_data()->clear_shards();
  const Refused further[] = {
      Changed([](Opened& to) { to.set_total_shards(0); }, "0 shards", "1048576"),
      Changed([](Opened& to) { to.set_total_shards(~uint32_t{0}); }, "4294967295", "1048576"),
      Changed([](Opened& to) { to.set_total_shards(6); }, "2 of 6 shards", "must be 3"),
  };
  ExpectRefused(job, further);
}

TEST_F(OtherServerTest, AnotherShapeThanThatOfTheJobFileIsRefused) {
  Job job = PointsJob();
  v1::ImageSpec& image = *job.file.mutable_data()->mutable_image();
  image.set_channels(1);
  image.set_height(2);
  image.set_width(1);
  const Refused cases[] = {{Images(1, 1, 2), "1x1x2", "1x2x1"}, {TwoShards(), "2x1x1", "1x2x1"}};
  ExpectRefused(job, cases);
}

TEST_F(OtherServerTest, ManyRowsWithoutTargetsAreRefused) {
  other_.opened = TwoShards();
  for (v1::ServedShard& shard : *other_.opened.mutable_shards()) {
    shard.clear_targets();
    shard.set_rows(uint64_t{1} << 26);
  }
  ExpectError(LoadRows(ServedJob(PointsJob()), {1, 2, 0, TargetKind::kNone}),
              absl::StatusCode::kDataLoss, {address_, "134217728 rows", "67108864"});
}

TEST_F(OtherServerTest, ManyNamesOfFeaturesAreRefused) {
  other_.opened = TwoShards();
  other_.opened.set_total_shards(8000);
  other_.opened.clear_shards();
  for (uint32_t number = 1; number < 8000; number += 2) {
    other_.opened.add_shards()->set_number(number);
  }
  for (int i = 2; i < 5000; ++i) other_.opened.add_features("z");
  other_.opened.set_channels(5000);
  Job job = PointsJob();
  job.file.mutable_data()->clear_shards();
  ExpectError(LoadRows(ServedJob(job), {1, 2, 0, TargetKind::kNone}), absl::StatusCode::kDataLoss,
              {address_, "4000 shards", "5000 features", "16777216"});
}

TEST_F(OtherServerTest, RowsWithoutTheWeightsOfTheJobAreRefused) {
  Job job = PointsJob();
  job.file.mutable_data()->set_weight_column("w");
  const Refused cases[] = {{TwoShards(), "shard 1 of 2 rows", "0 weights"}};
  ExpectRefused(job, cases);
}

TEST_F(OtherServerTest, ReasonsWhyRowsAreLeftOutAreCutAndEscaped) {
  other_.opened = TwoShards();
  other_.rows.add_left_out(0);
  other_.rows.add_reasons("\x1b[31m\n" + std::string(100'000, 'z'));
  const auto served = LoadRows(ServedJob(PointsJob()), kSecondOfTwo);
  SYNCGRADS_ASSERT_OK(served);
  const auto asked = served->served->Ask({{0, 0}}, ImageUse());
  SYNCGRADS_ASSERT_OK(asked);
  const auto batch = served->served->Take(*asked);
  SYNCGRADS_ASSERT_OK(batch);
  ASSERT_EQ(batch->reasons.size(), 1u);
  const std::string reason(batch->reasons[0].message());
  EXPECT_THAT(reason, ::testing::StartsWith("\\x1b[31m\\x0azzz"));
  EXPECT_LT(reason.size(), 1100u);
}

TEST_F(OtherServerTest, TheErrorOfTheServerIsEscaped) {
  other_.status = {grpc::StatusCode::NOT_FOUND, "\x1b[31mno\nfile"};
  ExpectError(LoadRows(ServedJob(PointsJob()), kSecondOfTwo), absl::StatusCode::kNotFound,
              {address_, "\\x1b[31mno\\x0afile"});
}

}  // namespace
}  // namespace syncgrads
