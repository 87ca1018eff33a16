// The data service: one process reads rows and another trains on them. In these tests both are this
// process.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/mutex.h"
#include "common/rpc/credentials.h"
#include "common/tls/certificate_authority.h"
#include "proto/served_data.grpc.pb.h"
#include "tests/testing/reserved_port.h"
#include "tests/testing/wait_until.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/batches/batch_reader.h"
#include "worker/batches/data_set.h"
#include "worker/batches/feature_statistics.h"
#include "worker/data/images/image_source.h"
#include "worker/data/readers/custom_readers.h"
#include "worker/data/shards.h"
#include "worker/data_service/data_client.h"
#include "worker/data_service/data_server.h"
#include "worker/job/job_file.h"

namespace syncgrads {
namespace {

// Programs with sanitizers are slow on a busy machine.
constexpr absl::Duration kLongEnough = absl::Minutes(1);

Job PointsJob(uint64_t rows = 100) {
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

constexpr ServedDataRequest kSecondOfTwo = {1, 2, 0, TargetKind::kClass};

TEST_F(DataServiceTest, ServedRowsAreThoseThatAWorkerWouldHaveRead) {
  const Job job = PointsJob();
  Serve(job);
  const auto read = LoadRows(job, kSecondOfTwo);
  const auto served = LoadRows(ServedJob(job), kSecondOfTwo);
  SYNCGRADS_ASSERT_OK(read);
  SYNCGRADS_ASSERT_OK(served);
  EXPECT_EQ(served->features, read->features);
  EXPECT_EQ(served->shape, read->shape);
  EXPECT_EQ(served->data.total_shards, 4u);
  ASSERT_EQ(served->data.shards.size(), 2u);
  EXPECT_EQ(served->data.shards[1].number, 3u);
  const std::vector<RowId> rows = RowsOf(served->data, 5, /*held_out=*/false);
  ASSERT_EQ(rows, RowsOf(read->data, 5, /*held_out=*/false));
  Matrix<float> ours, theirs;
  std::vector<double> our_targets, their_targets;
  SYNCGRADS_ASSERT_OK(ReadRows(*read, rows, ImageUse(), ours, our_targets, nullptr));
  SYNCGRADS_ASSERT_OK(ReadRows(*served, rows, ImageUse(), theirs, their_targets, nullptr));
  EXPECT_EQ(theirs, ours);
  EXPECT_EQ(their_targets, our_targets);
  // The ranges of F32 rows lose no precision either, because the layer that uses them is F32.
  SoleWorker alone;
  const auto our_ranges = FindStatistics(job.file, *read, 1, DeviceChoice(), nullptr, alone);
  const auto their_ranges = FindStatistics(job.file, *served, 1, DeviceChoice(), nullptr, alone);
  SYNCGRADS_ASSERT_OK(our_ranges);
  SYNCGRADS_ASSERT_OK(their_ranges);
  for (size_t i = 0; i < our_ranges->minimum.size(); ++i) {
    EXPECT_EQ(static_cast<float>(their_ranges->minimum[i]),
              static_cast<float>(our_ranges->minimum[i]));
  }
}

TEST_F(DataServiceTest, TheSplitOfTheRowsIsThatOfTheWorker) {
  Job job = PointsJob(/*rows=*/101);
  job.file.mutable_data()->set_split(v1::DataSpec::DROP_REMAINDER);
  Serve(job);
  const auto rows_of = [](const Job& served) -> size_t {
    const auto set = LoadRows(served, {0, 1, 0, TargetKind::kNone});
    SYNCGRADS_EXPECT_OK(set);
    return set.ok() ? RowsOf(set->data, /*validation_every=*/0, /*held_out=*/false).size() : 0;
  };
  Job served = ServedJob(job);
  EXPECT_EQ(rows_of(served), 100u);
  served.file.mutable_data()->set_split(v1::DataSpec::KEEP_REMAINDER);
  EXPECT_EQ(rows_of(served), 101u);
}

TEST_F(DataServiceTest, BatchesAreAskedForAheadAndTakenInAnyOrder) {
  const Job job = PointsJob();
  Serve(job);
  const auto served = LoadRows(ServedJob(job), kSecondOfTwo);
  SYNCGRADS_ASSERT_OK(served);
  BatchReader<float> reader(*served, served->served);
  for (uint64_t batch = 0; batch < 4; ++batch) {
    SYNCGRADS_ASSERT_OK(reader.Begin(batch, {{0, batch}, {1, batch}}, ImageUse()));
  }
  reader.ForgetBefore(1);
  Matrix<float> features, again;
  std::vector<double> targets;
  for (const uint64_t batch : {3, 1, 2}) {
    SYNCGRADS_ASSERT_OK(reader.Take(batch, features, targets, nullptr));
    const RowId rows[] = {{0, batch}, {1, batch}};
    SYNCGRADS_ASSERT_OK(ReadRows(*served, rows, ImageUse(), again, targets, nullptr));
    EXPECT_EQ(features, again) << batch;
  }
  ExpectError(reader.Take(0, features, targets, nullptr), absl::StatusCode::kInternal,
              {"batch 0 has not been started"});
}

TEST_F(DataServiceTest, ImagesOfBytesTravelAsBytesAndAreNormalisedByTheWorker) {
  const TemporaryDirectory directory;
  std::string records;  // of CIFAR-10: a label, and planes of 32x32 bytes
  for (int i = 0; i < 4; ++i) {
    records.push_back(static_cast<char>(i));
    for (int j = 0; j < 3 * 32 * 32; ++j) records.push_back(static_cast<char>(i * 50 + j % 200));
  }
  directory.Write("batch.bin", records);
  Job job = PointsJob();
  job.directory = directory.path();
  job.file.mutable_data()->mutable_cifar10()->add_files("batch.bin");
  job.file.mutable_data()->set_shards(1);
  for (const double mean : {0.4, 0.5, 0.6})
    job.file.mutable_data()->mutable_image()->add_mean(mean);
  job.file.mutable_data()->mutable_image()->add_std(0.25);
  Serve(job);
  constexpr ServedDataRequest kAll = {0, 1, 0, TargetKind::kClass};
  const auto read = LoadRows(job, kAll);
  const auto served = LoadRows(ServedJob(job), kAll);
  SYNCGRADS_ASSERT_OK(read);
  SYNCGRADS_ASSERT_OK(served);
  EXPECT_EQ(served->shape, read->shape);
  const std::vector<RowId> rows = {{0, 3}, {0, 1}};
  const auto asked = served->served->Ask(rows, ImageUse());
  SYNCGRADS_ASSERT_OK(asked);
  const auto batch = served->served->Take(*asked);
  SYNCGRADS_ASSERT_OK(batch);
  EXPECT_TRUE(batch->has_bytes);
  EXPECT_EQ(batch->features.size(), 2u * 3 * 32 * 32);
  Matrix<float> ours, theirs;
  std::vector<double> our_targets, their_targets;
  SYNCGRADS_ASSERT_OK(ReadRows(*read, rows, ImageUse(), ours, our_targets, nullptr));
  SYNCGRADS_ASSERT_OK(ReadRows(*served, rows, ImageUse(), theirs, their_targets, nullptr));
  EXPECT_EQ(theirs, ours);
  EXPECT_EQ(their_targets, our_targets);
  EXPECT_EQ(ours(0, 0), static_cast<float>(static_cast<double>(150 / 255.0f) / 0.25 - 0.4 / 0.25));
}

// Grey images of one pixel. Records which threads read them. Thread-safe.
class RecordingImages : public ImageSource {
 public:
  const Shape& shape() const override { return shape_; }
  std::string NameOf(size_t image) const override { return absl::StrCat("image ", image); }
  bool is_slow() const override { return true; }
  absl::Status Read(size_t, const ImageUse&, absl::Span<float> pixels) const override {
    pixels[0] = 0;
    MutexLock lock(mutex_);
    threads_.insert(std::this_thread::get_id());
    return absl::OkStatus();
  }

  size_t CountThreads() const {
    MutexLock lock(mutex_);
    return threads_.size();
  }

 private:
  const Shape shape_ = Shape::Image(1, 1, 1);
  mutable Mutex mutex_;
  mutable std::set<std::thread::id> threads_ ABSL_GUARDED_BY(mutex_);
};

// There are more workers than processors, so that each has one thread.
TEST_F(DataServiceTest, AllWorkersOfTheJobShareTheProcessors) {
  constexpr uint32_t kWorkers = 1 << 14;
  constexpr size_t kRows = 10'000;
  for (const ServedDataRequest& request : {ServedDataRequest{0, kWorkers, 1, TargetKind::kNone},
                                           ServedDataRequest{0, 1, kWorkers, TargetKind::kNone}}) {
    const auto images = std::make_shared<RecordingImages>();
    CustomReaders readers;
    readers.Add("recording", [&](const CustomReaderOptions&) {
      Table table;
      table.images = images;
      table.rows = kRows;
      return table;
    });
    Job job = PointsJob();
    job.file.mutable_data()->mutable_custom()->set_kind("recording");
    job.file.mutable_data()->set_shards(1);
    job.readers = &readers;
    Serve(job);
    const auto served = LoadRows(ServedJob(job), request);
    SYNCGRADS_ASSERT_OK(served);
    std::vector<RowId> rows;
    for (size_t row = 0; row < kRows; ++row) rows.push_back({0, row});
    const auto asked = served->served->Ask(rows, ImageUse());
    SYNCGRADS_ASSERT_OK(asked);
    SYNCGRADS_ASSERT_OK(served->served->Take(*asked));
    EXPECT_EQ(images->CountThreads(), 1u);
  }
}

// The image is a named pipe: whoever opens it waits.
TEST_F(DataServiceTest, AnImageThatIsNotReadInTheTimeOfTheJobFileIsNamed) {
  const TemporaryDirectory directory;
  directory.Write("LOC_synset_mapping.txt", "n00000001 one\n");
  directory.Write("LOC_train_solution.csv", "ImageId,PredictionString\na_1,n00000001 1 2 3 4\n");
  const std::string image = directory.path() + "/ILSVRC/Data/CLS-LOC/train/n00000001/a_1.JPEG";
  directory.Write("ILSVRC/Data/CLS-LOC/train/n00000001/a_1.JPEG", "");
  std::filesystem::remove(image);
  ASSERT_EQ(mkfifo(image.c_str(), 0600), 0);
  Job job = PointsJob();
  v1::ImageNetSource& source = *job.file.mutable_data()->mutable_imagenet();
  source.set_path(directory.path());
  source.set_timeout_s(1);
  job.file.mutable_data()->set_shards(1);
  Serve(job);
  const auto served = LoadRows(ServedJob(job), {0, 1, 0, TargetKind::kClass});
  SYNCGRADS_ASSERT_OK(served);
  const auto asked = served->served->Ask({{0, 0}}, ImageUse());
  SYNCGRADS_ASSERT_OK(asked);
  ExpectError(served->served->Take(*asked), absl::StatusCode::kDeadlineExceeded,
              {address_, image, " was not read within 1s"});
}

TEST_F(DataServiceTest, OthersAreRefusedAndToldWhy) {
  const Job job = PointsJob();
  Serve(job);
  ExpectError(LoadRows(ServedJob(job, "guess"), kSecondOfTwo), absl::StatusCode::kPermissionDenied,
              {address_, "wrong token"});
  Job other = job;
  other.file.set_name("lines");
  ExpectError(LoadRows(ServedJob(other), kSecondOfTwo), absl::StatusCode::kFailedPrecondition,
              {address_, "\"lines\"", "\"points\""});
  other = job;
  other.file.mutable_data()->mutable_generated()->set_seed(4);
  ExpectError(LoadRows(ServedJob(other), kSecondOfTwo), absl::StatusCode::kFailedPrecondition,
              {"seed: 4", "seed: 3"});
  ExpectError(LoadRows(ServedJob(job), {0, 9, 0, TargetKind::kClass}),
              absl::StatusCode::kInvalidArgument, {"9 workers", "4"});
}

TEST_F(DataServiceTest, AWorkerCannotHaveTheDataCutIntoTooManyShards) {
  Job job = PointsJob();
  job.file.mutable_data()->clear_shards();
  Serve(job);
  ExpectError(LoadRows(ServedJob(job), {0, 1, /*owners=*/kMostShards + 1, TargetKind::kClass}),
              absl::StatusCode::kInvalidArgument, {address_, "1048577 shards"});
}

TEST_F(DataServiceTest, WithCertificatesAndNoTokenOnlyWorkersGetRows) {
  const TemporaryDirectory folder;
  const auto path = [&](const std::string& name) { return absl::StrCat(folder.path(), "/", name); };
  const CertificateAuthority authority("test");
  SYNCGRADS_ASSERT_OK(WriteSecretFile(path("ca.pem"), authority.certificate()));
  const auto issue = [&](const std::string& name, const std::vector<std::string>& names) {
    const auto issued = authority.Issue(names);
    SYNCGRADS_ASSERT_OK(issued);
    SYNCGRADS_ASSERT_OK(issued->Write(path(name)));
  };
  issue("server", {"IP:127.0.0.1"});
  issue("worker", {"URI:syncgrads:worker"});
  issue("viewer", {"URI:syncgrads:viewer", "DNS:syncgrads:worker.example.org"});
  const Job job = PointsJob();
  DataServer::Options options{job, ""};
  options.tls.certificate = path("server.pem");
  options.tls.key = path("server.key");
  options.tls.client_ca = path("ca.pem");
  const auto load = [&](const std::string& caller, const std::string& token) {
    TlsOptions tls;
    tls.ca = path("ca.pem");
    tls.certificate = path(caller + ".pem");
    tls.key = path(caller + ".key");
    Job served = job;
    served.file.mutable_data()->add_served_from(address_);
    served.data_host = ConnectToDataHosts(served.file, token, kLongEnough, ChannelSecurity(tls));
    return LoadRows(served, kSecondOfTwo).status();
  };
  Serve(options);
  SYNCGRADS_EXPECT_OK(load("worker", ""));
  for (const std::string token : {"", "guess"}) {
    ExpectError(load("viewer", token), absl::StatusCode::kPermissionDenied,
                {"URI syncgrads:worker"});
  }
  // With a token, the token decides.
  options.token = "secret";
  Serve(options);
  SYNCGRADS_EXPECT_OK(load("viewer", "secret"));
  ExpectError(load("worker", ""), absl::StatusCode::kPermissionDenied, {"wrong token"});
}

TEST_F(DataServiceTest, RowsThatThereAreNotAreRefused) {
  const Job job = PointsJob();
  Serve(job);
  for (const RowId row : {RowId{2, 0}, RowId{0, 25}}) {
    const auto served = LoadRows(ServedJob(job), kSecondOfTwo);
    SYNCGRADS_ASSERT_OK(served);
    const auto asked = served->served->Ask({row}, ImageUse());
    SYNCGRADS_ASSERT_OK(asked);
    ExpectError(served->served->Take(*asked), absl::StatusCode::kInvalidArgument,
                {address_, absl::StrCat("unknown row ", row.row, " of shard ", row.shard)});
  }
}

TEST_F(DataServiceTest, AServerThatDiesInTheMiddleIsNamed) {
  const Job job = PointsJob();
  Serve(job);
  const auto served = LoadRows(ServedJob(job), kSecondOfTwo);
  SYNCGRADS_ASSERT_OK(served);
  const auto first = served->served->Ask({{0, 0}}, ImageUse());
  SYNCGRADS_ASSERT_OK(first);
  SYNCGRADS_ASSERT_OK(served->served->Take(*first));
  server_.reset();
  absl::Status status;
  const auto second = served->served->Ask({{0, 1}}, ImageUse());
  status = second.ok() ? served->served->Take(*second).status() : second.status();
  ExpectError(status, absl::StatusCode::kUnavailable, {address_});
}

TEST_F(DataServiceTest, WhoeverIsWaitedForInVainIsNamed) {
  const testing::ReservedPort port;
  address_ = port.address();
  ExpectError(LoadRows(ServedJob(PointsJob(), "secret", absl::Milliseconds(300)), kSecondOfTwo),
              absl::StatusCode::kDeadlineExceeded,
              {address_, "has not reported its rows within 300ms"});
}

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

TEST_F(DataServiceTest, TheEndIsMarkedWithTheNumberOfBatches) {
  const Job job = PointsJob();
  Serve(job);
  SlowWorker worker(address_, job);
  for (int i = 0; i < 3; ++i) worker.Ask(2);
  worker.WritesDone();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(worker.Read().rows().features().size(), 2 * 2 * sizeof(double));
  }
  const v1::ServedDataReply last = worker.Read();
  ASSERT_TRUE(last.has_end());
  EXPECT_EQ(last.end().batches(), 3u);
  EXPECT_TRUE(worker.Finish().ok());
}

TEST_F(DataServiceTest, ASlowWorkerCostsTheServerNoMoreMemory) {
  // The batches have 2 MiB: the buffers of a connection hold few of them, but many requests.
  constexpr uint64_t kRows = 64, kColumns = 4096, kBatches = 40;
  std::string row, header;
  for (uint64_t i = 0; i < kColumns; ++i) {
    absl::StrAppend(&header, "c", i, ",");
    absl::StrAppend(&row, i % 10, ",");
  }
  std::string table = header + "t\n";
  for (uint64_t i = 0; i < kRows; ++i) absl::StrAppend(&table, row, "1\n");
  const TemporaryDirectory directory;
  directory.Write("wide.csv", table);
  Job job = PointsJob();
  job.directory = directory.path();
  job.file.mutable_data()->mutable_table()->set_path("wide.csv");
  job.file.mutable_data()->set_target("t");
  job.file.mutable_data()->set_shards(1);
  Serve(job);
  SlowWorker slow(address_, job);
  SlowWorker quick(address_, job);
  for (uint64_t i = 0; i < kBatches; ++i) slow.Ask(kRows);
  slow.WritesDone();
  for (uint64_t taken = 1; taken <= kBatches; ++taken) {
    EXPECT_EQ(slow.Read().rows().features().size(), kRows * kColumns * sizeof(double));
    // The server has time to prepare more batches, and prepares them for another worker.
    quick.Ask(kRows);
    EXPECT_EQ(quick.Read().rows().features().size(), kRows * kColumns * sizeof(double));
    // The buffers on both sides of the connection hold less than a batch. So at most one batch
    // has been made that the slow worker has not taken.
    EXPECT_LE(server_->batches_made(), 2 * taken + 1);
  }
  EXPECT_TRUE(slow.Read().has_end());
  EXPECT_TRUE(slow.Finish().ok());
}

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
