// Which device a worker computes on.

#include "worker/train/compute.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/testing/no_threads.h"
#include "tests/worker/testing/status.h"
#include "worker/base/processors.h"

namespace syncgrads {
namespace {

// A machine with `count` devices. Creating a device fails.
class Some : public Accelerators {
 public:
  explicit Some(int count) : count_(count) {}
  absl::StatusOr<int> Count() const override { return count_; }
  absl::StatusOr<std::string> Name(int index) const override {
    if (index >= count_) return absl::InvalidArgumentError("no such device");
    return absl::StrCat("GPU of ", index);
  }
  absl::StatusOr<std::unique_ptr<Device<float>>> MakeFloat(int index,
                                                           MatrixPrecision) const override {
    return absl::InternalError(absl::StrCat("made float ", index));
  }
  absl::StatusOr<std::unique_ptr<Device<double>>> MakeDouble(int index) const override {
    return absl::InternalError(absl::StrCat("made double ", index));
  }

 private:
  const int count_;
};

class WithLibraries : public Some {
 public:
  using Some::Some;
  std::string Libraries() const override { return "convolutions by hand"; }
};

// Returns the number of the chosen accelerator, or -1 for the CPU.
int Chosen(const std::string& device, uint32_t local_rank, int count) {
  const Some some(count);
  const auto choice = ChooseDevice(device, "f32", local_rank, some);
  EXPECT_TRUE(choice.ok()) << choice.status();
  return choice.ok() ? choice->accelerator.value_or(-1) : -2;
}

TEST(ChooseDeviceTest, TakesTheLocalRankModuloWhatThereIs) {
  EXPECT_EQ(Chosen("cpu", 5, 0), -1);
  EXPECT_EQ(Chosen("cuda", 0, 4), 0);
  EXPECT_EQ(Chosen("cuda", 3, 4), 3);
  EXPECT_EQ(Chosen("cuda", 6, 4), 2);
  EXPECT_EQ(Chosen("cuda:2", 6, 4), 2);
  EXPECT_EQ(Chosen("cuda:3,1", 0, 4), 3);
  EXPECT_EQ(Chosen("cuda:3,1", 1, 4), 1);
  EXPECT_EQ(Chosen("cuda:3,1", 2, 4), 3);
}

TEST(ChooseDeviceTest, WhatIsNotThereOrNotMeantIsAnError) {
  const Some two(2);
  for (const char* device : {"cuda:", "cudax", "cuda:x", "cuda:-1", "cuda:1,", "gpu", ""}) {
    EXPECT_EQ(ChooseDevice(device, "f32", 0, two).status().code(),
              absl::StatusCode::kInvalidArgument)
        << device;
  }
  ExpectError(ChooseDevice("cuda:0,2", "f32", 0, two), absl::StatusCode::kInvalidArgument,
              {"cuda:0,2", "there are 2"});
  ExpectError(ChooseDevice("cuda:0", "f32", 0, NoAccelerators()), absl::StatusCode::kUnimplemented,
              {"--device is cuda:0", "without CUDA", "./dev build", "CUDA_HOME"});
  ExpectError(ChooseDevice("cuda:0", "f16", 0, two), absl::StatusCode::kInvalidArgument,
              {"--precision", "f16", "tf32"});
  ExpectError(ChooseDevice("cpu", "bf16", 0, two), absl::StatusCode::kInvalidArgument,
              {"bf16", "cpu"});
  EXPECT_EQ(ChooseDevice("cuda:0", "bf16", 0, two)->precision, MatrixPrecision::kBf16);
}

TEST(ChooseDeviceTest, AnAcceleratorComputesInTf32ByDefault) {
  const Some two(2);
  const auto accelerator = ChooseDevice("cuda:1", "", 0, two);
  EXPECT_EQ(accelerator->precision, MatrixPrecision::kTf32);
  EXPECT_EQ(
      DescriptionOf(*accelerator),
      "computes on GPU of 1 (cuda:1), matrix products of F32 jobs in tf32; --precision=f32 is "
      "exact, and slower");
  EXPECT_EQ(DescriptionOf(*ChooseDevice("cuda:1", "f32", 0, two)),
            "computes on GPU of 1 (cuda:1), matrix products in f32");
  const WithLibraries others(1);
  EXPECT_EQ(DescriptionOf(*ChooseDevice("cuda", "bf16", 0, others)),
            "computes on GPU of 0 (cuda:0), F32 jobs with activations in bf16; convolutions by "
            "hand");
  const auto processor = ChooseDevice("cpu", "", 0, two);
  EXPECT_EQ(processor->precision, MatrixPrecision::kF32);
  EXPECT_EQ(DescriptionOf(*processor), "");
}

TEST(ChooseDeviceTest, ADeviceHasAName) {
  const Some two(2);
  EXPECT_EQ(NameOf(*ChooseDevice("cpu", "f32", 0, two)), "cpu");
  EXPECT_EQ(NameOf(*ChooseDevice("cuda:1", "f32", 0, two)), "GPU of 1");
  EXPECT_EQ(NameOf(DeviceChoice{.accelerator = 2, .accelerators = &two}), "cuda:2");
}

TEST(MakeDeviceTest, MakesWhatWasChosen) {
  const Some two(2);
  const auto processor = ChooseDevice("cpu", "f32", 0, two);
  EXPECT_TRUE((*MakeDevice<float>(v1::JobFile(), 1, *processor))->memory().is_host());
  const auto second = ChooseDevice("cuda:1", "f32", 0, two);
  ExpectError(MakeDevice<float>(v1::JobFile(), 1, *second), absl::StatusCode::kInternal,
              {"made float 1"});
  ExpectError(MakeDevice<double>(v1::JobFile(), 1, *second), absl::StatusCode::kInternal,
              {"made double 1"});
}

TEST(MakeDeviceTest, ThreadsThatCannotBeStartedAreAnError) {
  v1::JobFile job;
  job.set_threads(64);
  const testing::NoThreads no_threads;
  ExpectError(MakeDevice<float>(job, 1, DeviceChoice()), absl::StatusCode::kResourceExhausted,
              {"cannot start 64 threads"});
}

TEST(ThreadsTest, TheWorkersOfThisHostShareItsProcessors) {
  const int processors = AvailableProcessors();
  v1::JobFile job;
  DeviceChoice choice;
  EXPECT_EQ(ThreadsOf(job, 4 * processors, choice), 1);
  choice.local_workers = 1;
  EXPECT_EQ(ThreadsOf(job, 4 * processors, choice), processors);
  choice.local_workers = processors;
  EXPECT_EQ(ThreadsOf(job, 1, choice), 1);
  job.set_threads(7);
  EXPECT_EQ(ThreadsOf(job, 64, choice), 7);
}

TEST(ReadersTest, AreTheWorkersThreadsOrItsDevicesShareOfTheProcessors) {
  const int processors = AvailableProcessors();
  const Some one(1), many(4 * processors);
  const auto processor = ChooseDevice("cpu", "f32", 0, one);
  v1::JobFile job;
  EXPECT_EQ(ReadersOf(job, job.data(), 1, *processor), processors);
  EXPECT_EQ(ReadersOf(job, job.data(), 4 * processors, *processor), 1);
  // With an accelerator the number of all workers does not matter, because workers may run on other
  // hosts.
  const auto cuda = ChooseDevice("cuda", "f32", 0, one);
  EXPECT_EQ(ReadersOf(job, job.data(), 64, *cuda), processors);
  EXPECT_EQ(ReadersOf(job, job.data(), 64, *ChooseDevice("cuda", "f32", 0, many)), 1);
  // Workers that see one device each share the processors.
  DeviceChoice shared = *cuda;
  shared.local_workers = processors;
  EXPECT_EQ(ReadersOf(job, job.data(), 64, shared), 1);
  job.set_threads(7);
  EXPECT_EQ(ReadersOf(job, job.data(), 64, *processor), 7);
  job.mutable_data()->mutable_imagenet()->set_readers(3);
  EXPECT_EQ(ReadersOf(job, job.data(), 64, *processor), 3);
  EXPECT_EQ(ReadersOf(job, job.data(), 64, *ChooseDevice("cuda", "f32", 0, one)), 3);
}

}  // namespace
}  // namespace syncgrads
