#include "worker/train/image_batch_reader.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "tests/worker/testing/status.h"

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

class ImageBatchReaderTest : public testing::Test {
 protected:
  ImageBatchReaderTest() {
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

TEST_F(ImageBatchReaderTest, BatchesThatWereBegunAreTakenInAnyOrderAsTheyAreRead) {
  ImageBatchReader<float> reader(data_, {.threads = 3});
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

TEST_F(ImageBatchReaderTest, DamagedImagesAreLeftOutAndNamedOrRefused) {
  ImageBatchReader<float> reader(data_, {.threads = 2});
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

TEST_F(ImageBatchReaderTest, ABatchWithoutAReadableImageIsEmpty) {
  ImageBatchReader<float> reader(data_, {.threads = 2});
  DamagedImages damaged;
  SYNCGRADS_ASSERT_OK(reader.Begin(0, Rows({13, 13}), {}));
  SYNCGRADS_ASSERT_OK(reader.Take(0, features_, targets_, &damaged));
  EXPECT_EQ(features_.rows(), 0);
  EXPECT_EQ(features_.cols(), 2);
  EXPECT_TRUE(targets_.empty());
  EXPECT_EQ(damaged.count(), 2u);
}

TEST_F(ImageBatchReaderTest, LaterBatchesAreReadIntoTheMemoryOfEarlierOnes) {
  ImageBatchReader<float> reader(data_, {.threads = 2});
  const auto take = [&](uint64_t batch) {
    SYNCGRADS_EXPECT_OK(reader.Begin(batch, Rows({batch, batch + 1}), {}));
    SYNCGRADS_EXPECT_OK(reader.Take(batch, features_, targets_, nullptr));
    EXPECT_EQ(features_(1, 0), static_cast<float>(2 * batch + 3));
    return features_.data();
  };
  const float* const first = take(0);
  const float* const second = take(1);
  EXPECT_NE(second, first);
  EXPECT_EQ(take(2), first);
  EXPECT_EQ(take(3), second);
}

TEST_F(ImageBatchReaderTest, WhatIsForgottenIsNotRead) {
  images_->Hang(7);
  ImageBatchReader<float> reader(data_, {.threads = 1, .timeout = absl::Minutes(2)});
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

TEST_F(ImageBatchReaderTest, AnInputThatHangsIsNamedAfterItsTime) {
  images_->Hang(7);
  ImageBatchReader<float> reader(data_, {.threads = 2, .timeout = absl::Seconds(1)});
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
