// Workers that get the rows of a data server.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/mutex.h"
#include "common/rpc/credentials.h"
#include "common/tls/certificate_authority.h"
#include "proto/served_data.grpc.pb.h"
#include "tests/testing/reserved_port.h"
#include "tests/worker/data_service/data_service_fixture.h"
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

namespace syncgrads {
namespace {

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

}  // namespace
}  // namespace syncgrads
