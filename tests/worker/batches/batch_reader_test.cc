#include "worker/batches/batch_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "tests/testing/no_threads.h"
#include "tests/worker/testing/status.h"
#include "worker/batches/own_rows.h"
#include "worker/data/images/byte_images.h"

namespace syncgrads {
namespace {

// Test images. The pixels of an image are its number and the step. Image 13 is damaged, image 14
// cannot be read, and one image can be made to hang. Thread-safe.
class TestImages : public ImageSource {
 public:
  ~TestImages() override { Release(); }

  const Shape& shape() const override { return shape_; }
  std::string NameOf(size_t image) const override { return absl::StrCat("image ", image); }
  bool is_slow() const override { return true; }
  absl::Status Read(size_t image, const ImageUse& use, absl::Span<float> pixels) const override {
    if (image == 13) return absl::DataLossError("image 13: damaged");
    if (image == 14) return absl::InternalError("image 14: the disk is broken");
    MutexLock lock(mutex_);
    read_.push_back(image);
    changed_.NotifyAll();
    while (image == hanging_) changed_.WaitUntil(mutex_, absl::InfiniteFuture());
    pixels[0] = static_cast<float>(image);
    pixels[1] = static_cast<float>(use.step);
    return absl::OkStatus();
  }

  void Hang(size_t image) {
    MutexLock lock(mutex_);
    hanging_ = image;
  }
  void Release() {
    MutexLock lock(mutex_);
    hanging_ = kNone;
    changed_.NotifyAll();
  }
  // Waits until a thread reads the image that hangs.
  void AwaitHanging() {
    MutexLock lock(mutex_);
    while (read_.empty() || read_.back() != hanging_) {
      changed_.WaitUntil(mutex_, absl::InfiniteFuture());
    }
  }
  // Waits until so many images are being read or have been read. Returns false if this takes longer
  // than a minute.
  bool AwaitReads(size_t images) {
    MutexLock lock(mutex_);
    const absl::Time deadline = MonotonicNow() + absl::Minutes(1);
    while (read_.size() < images) {
      if (!changed_.WaitUntil(mutex_, deadline)) return false;
    }
    return true;
  }
  // Returns the images that were read (not the damaged ones), in the order in which their reads
  // began.
  std::vector<size_t> read() const {
    MutexLock lock(mutex_);
    return read_;
  }

 private:
  static constexpr size_t kNone = 1000;
  const Shape shape_ = Shape::Image(1, 1, 2);
  mutable Mutex mutex_;
  mutable CondVar changed_;
  size_t hanging_ ABSL_GUARDED_BY(mutex_) = kNone;
  mutable std::vector<size_t> read_ ABSL_GUARDED_BY(mutex_);
};

class BatchReaderTest : public ::testing::Test {
 protected:
  BatchReaderTest() {
    Shard shard;
    shard.table.images = images_;
    shard.table.rows = 20;
    shard.table.target_kind = TargetKind::kClass;
    for (int i = 0; i < 20; ++i) shard.table.targets.push_back(100 + i);
    data_.data.shards.push_back(shard);
    data_.shape = images_->shape();
    data_.scale.factor = {2};
    data_.scale.addend = {1};
  }

  std::shared_ptr<RowSource> Source(const OwnRowsOptions& options) {
    return std::make_shared<OwnRows>(data_, options);
  }

  const std::shared_ptr<TestImages> images_ = std::make_shared<TestImages>();
  DataSet data_;
  Matrix<float> features_;
  std::vector<double> targets_;
};

std::vector<RowId> Rows(std::initializer_list<size_t> rows) {
  std::vector<RowId> ids;
  for (const size_t row : rows) ids.push_back({0, row});
  return ids;
}

TEST_F(BatchReaderTest, BatchesThatWereBegunAreTakenInAnyOrderAsTheyAreRead) {
  BatchReader<float> reader(data_, Source({.threads = 3}));
  for (uint64_t step = 0; step < 5; ++step) {
    SYNCGRADS_ASSERT_OK(reader.Begin(step, Rows({step, 9, step + 1}), {true, 0, step}));
  }
  SYNCGRADS_ASSERT_OK(reader.Begin(3, Rows({1}), {}));  // ignored, because step 3 has begun already
  for (const uint64_t step : {3, 0, 4, 1, 2}) {
    SYNCGRADS_ASSERT_OK(reader.Take(step, features_, targets_, nullptr));
    const float n = static_cast<float>(step);
    EXPECT_EQ(features_,
              (Matrix<float>{{2 * n + 1, 2 * n + 1}, {19, 2 * n + 1}, {2 * n + 3, 2 * n + 1}}));
    EXPECT_EQ(targets_, (std::vector<double>{100.0 + n, 109, 101.0 + n}));
  }
}

TEST_F(BatchReaderTest, DamagedImagesAreLeftOutAndNamedOrRefused) {
  BatchReader<float> reader(data_, Source({.threads = 2}));
  DamagedImages damaged;
  SYNCGRADS_ASSERT_OK(reader.Begin(0, Rows({3, 13, 4}), {}));
  SYNCGRADS_ASSERT_OK(reader.Take(0, features_, targets_, &damaged));
  EXPECT_EQ(features_.rows(), 2);
  EXPECT_EQ(targets_, (std::vector<double>{103, 104}));
  EXPECT_EQ(damaged.count(), 1u);
  EXPECT_EQ(damaged.messages(), (std::set<std::string>{"image 13: damaged"}));
  SYNCGRADS_ASSERT_OK(reader.Begin(1, Rows({3, 13, 4}), {}));
  ExpectError(reader.Take(1, features_, targets_, nullptr), absl::StatusCode::kDataLoss,
              {"image 13"});
  // A broken disk is an error, not a damaged image.
  SYNCGRADS_ASSERT_OK(reader.Begin(2, Rows({14}), {}));
  ExpectError(reader.Take(2, features_, targets_, &damaged), absl::StatusCode::kInternal,
              {"image 14"});
}

TEST_F(BatchReaderTest, WithoutThreadsTheImagesAreReadWhenTheyAreTaken) {
  const testing::NoThreads no_threads;
  BatchReader<float> reader(data_, Source({.threads = 3}));
  SYNCGRADS_ASSERT_OK(reader.Begin(0, Rows({3, 4}), {}));
  SYNCGRADS_ASSERT_OK(reader.Take(0, features_, targets_, nullptr));
  EXPECT_EQ(targets_, (std::vector<double>{103, 104}));
}

TEST_F(BatchReaderTest, ABatchWithoutAReadableImageIsEmpty) {
  BatchReader<float> reader(data_, Source({.threads = 2}));
  DamagedImages damaged;
  SYNCGRADS_ASSERT_OK(reader.Begin(0, Rows({13, 13}), {}));
  SYNCGRADS_ASSERT_OK(reader.Take(0, features_, targets_, &damaged));
  EXPECT_EQ(features_.rows(), 0);
  EXPECT_EQ(features_.cols(), 2);
  EXPECT_TRUE(targets_.empty());
  EXPECT_EQ(damaged.count(), 2u);
}

TEST_F(BatchReaderTest, LaterBatchesAreReadIntoTheMemoryOfEarlierOnes) {
  OwnRows source(data_, {.threads = 2});
  const std::vector<RowId> rows = Rows({4, 5, 6, 7});
  const auto take = [&] {
    const auto asked = source.Ask(rows, {});
    SYNCGRADS_EXPECT_OK(asked);
    auto batch = source.Take(*asked);
    SYNCGRADS_EXPECT_OK(batch);
    return std::move(batch->features);
  };
  std::string first = take();
  const char* const memory = first.data();
  source.Reuse(std::move(first));
  EXPECT_EQ(take().data(), memory);
}

// The images are slow to read, so the reader that a worker makes has threads.
TEST_F(BatchReaderTest, AWorkersImagesAreReadBeforeTheyAreTaken) {
  const v1::JobFile job;
  const auto reader = MakeReader<float>(job, job.data(), data_, /*world_size=*/1, DeviceChoice());
  SYNCGRADS_ASSERT_OK(reader->Begin(0, Rows({3, 4}), {}));
  SYNCGRADS_ASSERT_OK(reader->Begin(1, Rows({5}), {}));
  EXPECT_TRUE(images_->AwaitReads(3));
  SYNCGRADS_ASSERT_OK(reader->Take(0, features_, targets_, nullptr));
  EXPECT_EQ(targets_, (std::vector<double>{103, 104}));
}

TEST_F(BatchReaderTest, TwoBatchesAreReadAheadUnlessTheJobFileHasANumber) {
  v1::DataSpec source;
  EXPECT_EQ(BatchesAhead(source), 2u);
  source.mutable_imagenet()->set_ahead(5);
  EXPECT_EQ(BatchesAhead(source), 5u);
}

TEST_F(BatchReaderTest, WithoutThreadsTakeReads) {
  BatchReader<double> reader(data_, Source({.dtype = v1::F64}));
  Matrix<double> features;
  SYNCGRADS_ASSERT_OK(reader.Begin(0, Rows({3, 13, 4}), {true, 0, 6}));
  EXPECT_TRUE(images_->read().empty());
  DamagedImages damaged;
  SYNCGRADS_ASSERT_OK(reader.Take(0, features, targets_, &damaged));
  EXPECT_EQ(features, (Matrix<double>{{7, 13}, {9, 13}}));
  EXPECT_EQ(damaged.count(), 1u);
}

// Two images of 8 bits, of one position with three channels.
TEST_F(BatchReaderTest, BytesAreNormalisedWhenABatchIsTaken) {
  const auto bytes = std::make_shared<ByteImages>(Shape::Image(3, 1, 1),
                                                  std::string("\x00\x33\xff\x66\x00\x01", 6),
                                                  /*stride=*/3, /*offset=*/0, "bytes");
  data_.data.shards[0].table.images = bytes;
  data_.shape = bytes->shape();
  data_.scale = {{1, 2, 4}, {-1, 0, 0.5}};
  for (const int threads : {0, 2}) {
    const std::shared_ptr<RowSource> source = Source({.threads = threads});
    const auto asked = source->Ask(Rows({0, 1}), {});
    SYNCGRADS_ASSERT_OK(asked);
    const auto batch = source->Take(*asked);
    SYNCGRADS_ASSERT_OK(batch);
    EXPECT_TRUE(batch->has_bytes);
    EXPECT_EQ(batch->features.size(), 6u);
    BatchReader<float> reader(data_, source);
    SYNCGRADS_ASSERT_OK(reader.Begin(0, Rows({1, 0}), {}));
    SYNCGRADS_ASSERT_OK(reader.Take(0, features_, targets_, nullptr));
    const auto number = [](int byte) { return static_cast<float>(byte) / 255.0f; };
    EXPECT_EQ(features_,
              (Matrix<float>{{number(102) - 1, 0, static_cast<float>(4.0 * number(1) + 0.5)},
                             {-1, 2 * number(51), 4.5f}}));
  }
}

// A source of another process that leaves out rows which it does not have.
class MalformedRows : public RowSource {
 public:
  explicit MalformedRows(std::vector<uint32_t> left_out) : left_out_(std::move(left_out)) {}
  absl::StatusOr<uint64_t> Ask(absl::Span<const RowId>, const ImageUse&) override { return 0; }
  absl::StatusOr<RowBatch> Take(uint64_t) override {
    RowBatch batch;
    batch.features.resize((2 - std::min<size_t>(2, left_out_.size())) * 2 * sizeof(float));
    batch.left_out = left_out_;
    batch.reasons.resize(left_out_.size(), absl::DataLossError("damaged"));
    return batch;
  }
  bool IsRead(uint64_t) override { return false; }
  void Forget(uint64_t) override {}
  void Reuse(std::string) override {}

 private:
  const std::vector<uint32_t> left_out_;
};

TEST_F(BatchReaderTest, ABatchThatLeavesOutOtherRowsThanItsOwnIsRefused) {
  const auto take = [&](std::vector<uint32_t> left_out) {
    BatchReader<float> reader(data_, std::make_shared<MalformedRows>(std::move(left_out)));
    DamagedImages damaged;
    SYNCGRADS_EXPECT_OK(reader.Begin(0, Rows({1, 2}), {}));
    return reader.Take(0, features_, targets_, &damaged);
  };
  ExpectError(take({5}), absl::StatusCode::kDataLoss, {"2 rows leaves out row 5"});
  ExpectError(take({1, 0}), absl::StatusCode::kDataLoss, {"2 rows leaves out row 0"});
  ExpectError(take({0, 1, 2}), absl::StatusCode::kDataLoss, {"2 rows leaves out 3"});
}

TEST_F(BatchReaderTest, WhatIsForgottenIsNotRead) {
  images_->Hang(7);
  BatchReader<float> reader(data_, Source({.threads = 1, .timeout = absl::Minutes(2)}));
  SYNCGRADS_ASSERT_OK(reader.Begin(0, Rows({7}), {}));
  images_->AwaitHanging();
  SYNCGRADS_ASSERT_OK(reader.Begin(1, Rows({5, 6}), {}));
  SYNCGRADS_ASSERT_OK(reader.Begin(2, Rows({4}), {}));
  reader.ForgetBefore(2);
  ExpectError(reader.Take(1, features_, targets_, nullptr), absl::StatusCode::kInternal,
              {"batch 1 has not been started"});
  images_->Release();
  SYNCGRADS_ASSERT_OK(reader.Take(2, features_, targets_, nullptr));
  EXPECT_EQ(targets_, (std::vector<double>{104}));
  EXPECT_EQ(images_->read(), (std::vector<size_t>{7, 4}));
}

TEST_F(BatchReaderTest, AnInputThatHangsIsNamedAfterItsTime) {
  images_->Hang(7);
  BatchReader<float> reader(data_, Source({.threads = 2, .timeout = absl::Seconds(1)}));
  // The error names the first image of the batch that was not read. On a busy machine, the other
  // images may not be read in time either.
  SYNCGRADS_ASSERT_OK(reader.Begin(0, Rows({7, 6, 8}), {}));
  ExpectError(reader.Take(0, features_, targets_, nullptr), absl::StatusCode::kDeadlineExceeded,
              {"image 7 was not read within 1s", "batch of 3"});
  images_->Release();
  absl::Status taken = absl::DeadlineExceededError("");
  for (uint64_t batch = 1; batch <= 60 && absl::IsDeadlineExceeded(taken); ++batch) {
    SYNCGRADS_ASSERT_OK(reader.Begin(batch, Rows({7}), {}));
    taken = reader.Take(batch, features_, targets_, nullptr);
  }
  SYNCGRADS_EXPECT_OK(taken);
}

}  // namespace
}  // namespace syncgrads
