// How a CUDA device orders its streams, and how it handles errors. Runs on the emulated device.

#include "worker/nn/cuda/cuda_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/worker/nn/cuda/emulation/emulation.h"
#include "tests/worker/nn/device_contract.h"
#include "tests/worker/nn/layer_cases.h"
#include "tests/worker/nn/layer_contract.h"
#include "tests/worker/testing/status.h"
#include "worker/base/hung_device.h"
#include "worker/base/out_of_memory.h"
#include "worker/nn/build.h"
#include "worker/nn/cpu/cpu_device.h"
#include "worker/nn/cuda/cuda_accelerators.h"

namespace syncgrads {
namespace {

using emulation::Schedule;

std::unique_ptr<cuda::CudaDevice<float>> MakeFloat(const cuda::CudaOptions& options = {}) {
  auto device = cuda::CudaDevice<float>::Create(0, options);
  EXPECT_TRUE(device.ok()) << device.status();
  return std::move(*device);
}

// Parameters: which stream goes first, the seed, and whether the threads of kernels run backwards.
class ScheduleTest : public testing::TestWithParam<std::tuple<Schedule, uint64_t, bool>> {
 protected:
  ScheduleTest() {
    emulation::Options options;
    std::tie(options.schedule, options.seed, options.backwards) = GetParam();
    emulation::Configure(options);
  }
};

INSTANTIATE_TEST_SUITE_P(Schedules, ScheduleTest,
                         testing::Values(std::tuple(Schedule::kOldestStreamFirst, 1, false),
                                         std::tuple(Schedule::kNewestStreamFirst, 1, true),
                                         std::tuple(Schedule::kRandom, 2, false),
                                         std::tuple(Schedule::kRandom, 3, true)));

TEST_P(ScheduleTest, LayersDoNotDependOnIt) {
  const auto device = MakeFloat();
  CpuDevice<double> reference(1);
  for (const LayerCase& layer : AllLayerCases()) {
    ExpectFloatAgreesWithDouble(layer, *device, reference);
  }
}

TEST_P(ScheduleTest, ConvolutionsInSlicesAgreeWithAPlainLoop) {
  const auto device = MakeFloat({.row_bytes = 100000, .cudnn = false});
  for (const ConvolutionSize& size : ConvolutionSizes()) {
    ExpectConvolutionAgreesWithAPlainLoop(size, *device);
    ExpectConvolutionGradientsAreAdjointsOfAPlainLoop(size, *device);
  }
}

TEST_P(ScheduleTest, ConvolutionsByCudnnAgreeWithAPlainLoop) {
  const auto device = MakeFloat();
  for (const ConvolutionSize& size : ConvolutionSizes()) {
    ExpectConvolutionAgreesWithAPlainLoop(size, *device);
    ExpectConvolutionGradientsAreAdjointsOfAPlainLoop(size, *device);
  }
}

// Parameters are uploaded and gradients are downloaded at the same time. The host waits only for
// the download.
TEST_P(ScheduleTest, CopiesBothWaysAreInOrderWithWhatIsComputed) {
  const auto device = MakeFloat();
  DeviceMemory& memory = device->memory();
  constexpr int kNumbers = 1000;
  HostMatrix<float> up(memory, 1, kNumbers), down(memory, 1, kNumbers);
  DeviceMatrix<float> values(memory, 1, kNumbers), doubled(memory, 1, kNumbers);
  DeviceMatrix<float> pageable(memory, 1, kNumbers);
  for (int step = 0; step < 20; ++step) {
    up.setConstant(static_cast<float>(step));
    memory.UploadPinned(up.data(), values.bytes(), values.data());
    device->Add(Activation::kIdentity, kNumbers, values.data(), values.data(), doubled.data());
    std::vector<float> other(kNumbers, 100);
    memory.Upload(other.data(), pageable.bytes(), pageable.data());
    other.assign(kNumbers, -1);  // the upload has copied the host's values already
    device->Add(Activation::kIdentity, kNumbers, doubled.data(), pageable.data(), doubled.data());
    const auto download = memory.QueueDownload(doubled.data(), doubled.bytes(), down.data());
    // Later operations change neither the downloaded values nor the values that they are computed
    // from.
    memory.SetZero(values.data(), values.bytes());
    SYNCGRADS_ASSERT_OK(memory.Wait(download));
    EXPECT_TRUE(memory.HasEnded(download));
    EXPECT_EQ(down.minCoeff(), static_cast<float>(2 * step + 100));
    EXPECT_EQ(down.maxCoeff(), static_cast<float>(2 * step + 100));
  }
}

// There are more uploads in a row than staging buffers.
TEST_P(ScheduleTest, UploadsInARowKeepTheirBytes) {
  const auto device = MakeFloat();
  std::vector<DeviceMatrix<float>> matrices;
  for (int i = 0; i < 20; ++i) {
    // The sizes grow, so the staging buffers have to grow.
    const Matrix<float> host = Matrix<float>::Constant(1, 100 + 50 * i, static_cast<float>(i));
    matrices.emplace_back(device->memory());
    matrices.back().Bring(host);
  }
  for (int i = 0; i < 20; ++i) {
    Matrix<float> fetched;
    SYNCGRADS_ASSERT_OK(matrices[i].Fetch(fetched));
    EXPECT_EQ(fetched, (Matrix<float>::Constant(1, 100 + 50 * i, static_cast<float>(i)))) << i;
  }
}

// The input of the next step is uploaded while the device computes this one. The matrix product
// takes a while.
TEST_P(ScheduleTest, InputsThatAreBroughtAheadAreThoseOfTheirStep) {
  v1::ModelSpec spec;
  spec.add_layers()->mutable_dense()->set_outputs(50);
  spec.add_layers()->mutable_dense()->set_outputs(3);
  const auto device = MakeFloat();
  CpuDevice<float> processor(1);
  const auto model = BuildModel<float>(spec, Shape::Flat(8), NoCustomLayers(), *device);
  const auto expected = BuildModel<float>(spec, Shape::Flat(8), NoCustomLayers(), processor);
  SYNCGRADS_ASSERT_OK(model);
  SYNCGRADS_ASSERT_OK(expected);
  for (const auto* one : {&*model, &*expected}) (*one)->Initialise(4);
  const auto input = [](int step) { return Matrix<float>::Constant(5, 8, 0.1f * step); };
  const auto any = [](size_t) { return absl::OkStatus(); };
  const std::vector<double> targets = {0, 1, 2, 0, 1};
  for (int step = 0; step < 12; ++step) {
    // In some steps the actual input differs from the one that was uploaded ahead.
    const Matrix<float> ours = input(step % 4 == 3 ? -step : step);
    if (step % 4 == 3) (*model)->ForgetAhead();
    SYNCGRADS_ASSERT_OK((*expected)->ComputeGradients({}, ours, Loss(), targets, 1, any, any));
    // An input that has been uploaded ahead is not read again.
    const bool is_there = step % 4 != 3 && step % 5 != 0;
    const Matrix<float> given = is_there ? Matrix<float>::Constant(5, 8, -50) : ours;
    SYNCGRADS_ASSERT_OK((*model)->ComputeGradients({}, given, Loss(), targets, 1, any, any));
    if (step % 5 != 4) {
      Matrix<float> next = input(step + 1);
      (*model)->BringAhead(next);
      next.setConstant(-100);  // the upload has copied the host's values already
    }
    EXPECT_NEAR(*(*model)->TakeLoss(), *(*expected)->TakeLoss(), 1e-5) << step;
  }
}

TEST(DivisorTest, DividesAsTheProcessorDoes) {
  constexpr uint32_t kLargest = (uint32_t{1} << 31) - 1;
  for (const uint32_t divisor : {1u, 2u, 3u, 7u, 56u, 112u, 640u, 641u, 65537u, kLargest}) {
    const cuda::Divisor by(divisor);
    for (const uint32_t quotient : {0u, 1u, 2u, 1000u, kLargest / divisor}) {
      for (const int off : {-1, 0, 1}) {
        const int64_t dividend = int64_t{quotient} * divisor + off;
        if (dividend < 0 || dividend > kLargest) continue;
        EXPECT_EQ(by.Quotient(static_cast<uint32_t>(dividend)), dividend / divisor)
            << dividend << " / " << divisor;
      }
    }
  }
}

class CudaDeviceTest : public testing::Test {
 protected:
  CudaDeviceTest() { emulation::Configure({}); }
};

TEST_F(CudaDeviceTest, NothingIsComputedBeforeItIsWaitedFor) {
  const auto device = MakeFloat();
  DeviceMemory& memory = device->memory();
  HostMatrix<float> host(memory, 1, 1);
  DeviceMatrix<float> value(memory, 1, 1);
  memory.SetZero(value.data(), value.bytes());
  host(0, 0) = 7;
  const auto download = memory.QueueDownload(value.data(), value.bytes(), host.data());
  EXPECT_EQ(host(0, 0), 7);
  SYNCGRADS_ASSERT_OK(memory.Wait(download));
  EXPECT_EQ(host(0, 0), 0);
}

TEST_F(CudaDeviceTest, ExhaustedMemoryIsNamedAndCanBeForgotten) {
  const auto device = MakeFloat();
  DeviceMemory& memory = device->memory();
  DeviceMatrix<float> large(memory);
  large.Resize(1 << 20, 1 << 10);
  EXPECT_EQ(large.data(), nullptr);
  ExpectError(memory.status(), absl::StatusCode::kResourceExhausted,
              {"cuda:0", "4294967296 bytes", "1073741824"});
  // Until ForgetExhaustion is called, operations do nothing.
  device->Add(Activation::kRelu, large.size(), large.data(), large.data(), large.data());
  ExpectError(memory.Finish(), absl::StatusCode::kResourceExhausted, {});
  memory.ForgetExhaustion();
  large.Resize(10, 10);
  device->memory().SetZero(large.data(), large.bytes());
  Matrix<float> zeros;
  SYNCGRADS_ASSERT_OK(large.Fetch(zeros));
  EXPECT_EQ(zeros, (Matrix<float>::Zero(10, 10)));
}

// Runs a layer and fetches its results. Returns the device's status afterwards.
absl::Status TryLayer(Device<float>& device) {
  Matrix<float> input = Matrix<float>::Ones(3, 4), fetched;
  DeviceMatrix<float> there(device.memory()), output(device.memory(), 3, 2);
  DeviceMatrix<float> kernel(device.memory(), 4, 2);
  there.Bring(input);
  device.memory().SetZero(kernel.data(), kernel.bytes());
  device.Multiply({4, 2, kernel.data(), false, nullptr, Activation::kSigmoid}, 3, there.data(),
                  output.data());
  output.Fetch(fetched).IgnoreError();
  if (device.memory().status().ok()) {
    EXPECT_EQ(fetched, (Matrix<float>::Constant(3, 2, 0.5f)));
  }
  return device.memory().status();
}

// All calls that can run out of memory in the middle of a step, not only allocations.
TEST_F(CudaDeviceTest, WhateverRunsOutOfMemoryIsExhaustionThatCanBeForgotten) {
  struct Case {
    emulation::Call call;
    uint64_t after;
    std::string what;
  };
  for (const Case& one : {Case{emulation::Call::kMalloc, 1, "24 bytes"},
                          {emulation::Call::kMallocHost, 0, "48 bytes of pinned host memory"},
                          {emulation::Call::kMallocHost, 1, "24 bytes of pinned host memory"},
                          {emulation::Call::kLaunch, 0, "AddBias"},
                          {emulation::Call::kCublas, 0, "cuBLAS, in cublasGemmEx"}}) {
    const auto device = MakeFloat();
    emulation::Exhaust(one.call, one.after);
    const absl::Status status = TryLayer(*device);
    ExpectError(status, absl::StatusCode::kResourceExhausted,
                {"device cuda:0", "memory", one.what});
    EXPECT_TRUE(IsOutOfMemory(status)) << one.what;
    device->memory().ForgetExhaustion();
    SYNCGRADS_EXPECT_OK(TryLayer(*device));
  }
}

TEST_F(CudaDeviceTest, PinnedMemoryThatIsMissingIsAnExceptionWithItsSize) {
  const auto device = MakeFloat();
  emulation::Exhaust(emulation::Call::kMallocHost);
  try {
    const HostMatrix<float> host(device->memory(), 10, 10);
    ADD_FAILURE() << "there was memory";
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("device cuda:0: not enough memory for 400 bytes"));
  }
  SYNCGRADS_EXPECT_OK(TryLayer(*device));
}

// The emulation aborts at a call that would never return.
TEST_F(CudaDeviceTest, ADeviceThatHangsIsNamedAndLeftAlone) {
  auto device = MakeFloat({.timeout = absl::Milliseconds(20)});
  DeviceMemory& memory = device->memory();
  {
    HostMatrix<float> host(memory, 1, 1);
    DeviceMatrix<float> value(memory, 1, 1);
    memory.SetZero(value.data(), value.bytes());
    const auto download = memory.QueueDownload(value.data(), value.bytes(), host.data());
    emulation::Hang();
    const absl::Status status = memory.Wait(download);
    ExpectError(status, absl::StatusCode::kDeadlineExceeded,
                {"device cuda:0 has not finished its queued work within 20ms", "hangs"});
    EXPECT_TRUE(IsHungDevice(status));
    EXPECT_EQ(memory.Finish(), status);
    memory.ForgetExhaustion();
    EXPECT_EQ(memory.status(), status);
    EXPECT_TRUE(memory.HasEnded(download));
  }
  device.reset();
  emulation::Configure({});
}

TEST_F(CudaDeviceTest, ADeviceThatFailsIsNamedWithWhatItSays) {
  const auto device = MakeFloat();
  DeviceMatrix<float> values(device->memory(), 3, 3);
  device->memory().SetZero(values.data(), values.bytes());
  emulation::Break();
  Matrix<float> fetched;
  ExpectError(values.Fetch(fetched), absl::StatusCode::kInternal,
              {"device cuda:0", "illegal memory access"});
  device->memory().ForgetExhaustion();
  ExpectError(device->memory().status(), absl::StatusCode::kInternal, {"illegal memory access"});
}

TEST_F(CudaDeviceTest, MemoryIsGivenBack) {
  const size_t before = emulation::AllocatedBytes();
  {
    const auto device = MakeFloat();
    CpuDevice<double> reference(1);
    ExpectFloatAgreesWithDouble(AllLayerCases().front(), *device, reference);
    EXPECT_GT(emulation::AllocatedBytes(), before);
  }
  EXPECT_EQ(emulation::AllocatedBytes(), before);
}

TEST_F(CudaDeviceTest, DevicesAreCountedAndNumbered) {
  EXPECT_EQ(*CudaAccelerators().Count(), 2);
  EXPECT_EQ(*CudaAccelerators().Name(1), "an emulated device");
  SYNCGRADS_EXPECT_OK(CudaAccelerators().MakeDouble(1));
  ExpectError(CudaAccelerators().MakeFloat(2, MatrixPrecision::kF32),
              absl::StatusCode::kInvalidArgument,
              {"CUDA device 2 does not exist", "has 2 CUDA devices"});
  emulation::Options none;
  none.devices = 0;
  emulation::Configure(none);
  ExpectError(CudaAccelerators().Count(), absl::StatusCode::kUnimplemented,
              {"no CUDA-capable device is detected", "--device=cpu works"});
}

// Two devices in one process, used alternately.
TEST_F(CudaDeviceTest, DevicesDoNotMixUp) {
  const auto first = MakeFloat();
  const auto second = CudaAccelerators().MakeFloat(1, MatrixPrecision::kF32);
  SYNCGRADS_ASSERT_OK(second);
  CpuDevice<double> reference(1);
  for (Device<float>* device : {static_cast<Device<float>*>(first.get()), second->get(),
                                static_cast<Device<float>*>(first.get())}) {
    ExpectFloatAgreesWithDouble(AllLayerCases().front(), *device, reference);
    SYNCGRADS_EXPECT_OK(device->memory().Finish());
  }
}

}  // namespace
}  // namespace syncgrads
