// How a CUDA device orders its streams, and how it handles errors. Runs on the emulated device.

#include "worker/nn/cuda/cuda_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "tests/worker/nn/cuda/emulation/emulation.h"
#include "tests/worker/nn/device_contract.h"
#include "tests/worker/nn/layer_cases.h"
#include "tests/worker/nn/layer_contract.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/base/file.h"
#include "worker/base/hung_device.h"
#include "worker/base/out_of_memory.h"
#include "worker/base/trace.h"
#include "worker/nn/cpu/cpu_device.h"
#include "worker/nn/cuda/cuda_accelerators.h"
#include "worker/nn/models/build.h"
#include "worker/nn/models/model_input.h"
#include "worker/nn/pixels.h"
#include "worker/nn/window.h"

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
  DeviceMatrix<float> values(*device, 1, kNumbers), doubled(*device, 1, kNumbers);
  DeviceMatrix<float> pageable(*device, 1, kNumbers);
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

// Without the wait for the mark, the first copy would have the new number; with a wait for
// everything that is queued, the second would never have it.
TEST_P(ScheduleTest, AnUploadAfterAMarkWaitsForWhatWasQueuedBeforeItOnly) {
  const auto device = MakeFloat();
  DeviceMemory& memory = device->memory();
  HostMatrix<float> host(memory, 1, 1);
  DeviceMatrix<float> value(*device, 1, 1), before(*device, 1, 1), behind(*device, 1, 1);
  for (int step = 0; step < 10; ++step) {
    memory.SetZero(value.data(), value.bytes());
    host(0, 0) = 7;
    before.CopyFrom(value);
    memory.SetMark();
    behind.CopyFrom(value);
    memory.UploadPinnedAfterMark(host.data(), value.bytes(), value.data());
    DeviceMatrix<float> later(*device);
    later.CopyFrom(value);
    Matrix<float> fetched;
    SYNCGRADS_ASSERT_OK(before.Fetch(fetched));
    EXPECT_EQ(fetched(0, 0), 0);
    SYNCGRADS_ASSERT_OK(later.Fetch(fetched));
    EXPECT_EQ(fetched(0, 0), 7);
    SYNCGRADS_ASSERT_OK(behind.Fetch(fetched));
    const Schedule schedule = std::get<0>(GetParam());
    if (schedule != Schedule::kRandom) {
      EXPECT_EQ(fetched(0, 0), schedule == Schedule::kNewestStreamFirst ? 7 : 0);
    }
  }
}

// There are more uploads in a row than staging buffers.
TEST_P(ScheduleTest, UploadsInARowKeepTheirBytes) {
  const auto device = MakeFloat();
  std::vector<DeviceMatrix<float>> matrices;
  for (int i = 0; i < 20; ++i) {
    // The sizes grow, so the staging buffers have to grow.
    const Matrix<float> host = Matrix<float>::Constant(1, 100 + 50 * i, static_cast<float>(i));
    matrices.emplace_back(*device);
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
  // The pixels of an input stand for other numbers from step 8 on.
  std::vector<float> numbers(kPixelValues);
  std::vector<unsigned char> pixels(5 * 8);
  const auto pixels_of = [&](int step) {
    for (int i = 0; i < kPixelValues; ++i) numbers[i] = (step < 8 ? 0.01f : 0.02f) * i;
    pixels.assign(5 * 8, static_cast<unsigned char>(step < 8 ? 10 * step : 5 * step));
    return Pixels<float>{5, 8, 1, pixels.data(), numbers.data()};
  };
  for (int step = 0; step < 12; ++step) {
    // In some steps the actual input differs from the one that was uploaded ahead.
    const Matrix<float> ours = input(step % 4 == 3 ? -step : step);
    if (step % 4 == 3) (*model)->ForgetAhead();
    SYNCGRADS_ASSERT_OK((*expected)->ComputeGradients({}, ours, Loss(), targets, 1, any, any));
    // An input that has been uploaded ahead is not read again.
    const bool is_there = step % 4 != 3 && step % 5 != 0;
    const Matrix<float> given = is_there ? Matrix<float>::Constant(5, 8, -50) : ours;
    const bool has_pixels = !is_there && step % 4 != 3;
    SYNCGRADS_ASSERT_OK((*model)->ComputeGradients(
        {}, has_pixels ? ModelInput<float>(pixels_of(step)) : ModelInput<float>(given), Loss(),
        targets, 1, any, any));
    Matrix<float> next = input(step + 1);
    if (step % 5 != 4) {
      (*model)->BringAhead(step % 3 != 0 ? ModelInput<float>(next) : pixels_of(step + 1));
      // From here on the host's memory may change.
      SYNCGRADS_ASSERT_OK(device->memory().AwaitRead());
      next.setConstant(-100);
      numbers.assign(kPixelValues, -100);
      pixels.assign(pixels.size(), 0);
    }
    EXPECT_NEAR(*(*model)->TakeLoss(), *(*expected)->TakeLoss(), 1e-5) << step;
  }
}

// The spans of a traced batch follow each other on the device's row, one for each layer and
// direction. Each layer's operations are a range for profilers.
TEST_P(ScheduleTest, TheDevicesTimesForLayersAreTraced) {
  v1::ModelSpec spec;
  for (const int outputs : {50, 3}) {
    auto& layer = *spec.add_layers();
    layer.set_name(absl::StrCat("dense", spec.layers_size()));
    layer.mutable_dense()->set_outputs(outputs);
  }
  const auto device = MakeFloat();
  const auto model = BuildModel<float>(spec, Shape::Flat(8), NoCustomLayers(), *device);
  SYNCGRADS_ASSERT_OK(model);
  (*model)->Initialise(4);
  const Matrix<float> input = Matrix<float>::Constant(3, 8, 1);
  TemporaryDirectory directory;
  const std::string path = directory.path() + "/trace.json";
  const auto any = [](size_t) { return absl::OkStatus(); };
  const emulation::Ranges before = emulation::RangesOfThread();
  {
    auto trace = Trace::Create(path, "worker");
    SYNCGRADS_ASSERT_OK(trace);
    // Only the second of three batches is traced.
    for (Trace* const one :
         {static_cast<Trace*>(nullptr), trace->get(), static_cast<Trace*>(nullptr)}) {
      (*model)->SetTrace(one);
      SYNCGRADS_ASSERT_OK((*model)->ComputeGradients({}, input, Loss(), {0, 1, 2}, 1, any, any));
      SYNCGRADS_ASSERT_OK((*model)->TakeLoss());
      (*model)->Forward({}, input);  // as an evaluation does
    }
  }
  EXPECT_EQ(emulation::RangesOfThread().begun - before.begun, 3 * 6u);
  EXPECT_EQ(emulation::RangesOfThread().open, 0u);
  const auto text = ReadFile(path, 1 << 20);
  SYNCGRADS_ASSERT_OK(text);
  google::protobuf::ListValue events;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(*text, &events).ok()) << *text;
  std::vector<std::string> names;
  double end = 0;
  for (const auto& value : events.values()) {
    const auto& fields = value.struct_value().fields();
    if (fields.at("ph").string_value() != "X") continue;
    if (fields.at("tid").number_value() != static_cast<int>(Trace::Row::kDevice)) continue;
    names.push_back(fields.at("name").string_value());
    EXPECT_GE(fields.at("ts").number_value() + 1, end) << *text;
    end = fields.at("ts").number_value() + fields.at("dur").number_value();
  }
  EXPECT_EQ(names, (std::vector<std::string>{"device forward dense1", "device forward dense2",
                                             "device backward dense2", "device backward dense1"}))
      << *text;
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
  DeviceMatrix<float> value(*device, 1, 1);
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
  DeviceMatrix<float> large(*device);
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
  DeviceMatrix<float> there(device), output(device, 3, 2);
  DeviceArray<float> kernel(device.memory(), 4, 2);
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
                          {emulation::Call::kCublas, 0, "cuBLAS, in cublasGemmEx"},
                          {emulation::Call::kCublasKernel, 0, "cuBLAS, in cublasGemmEx"}}) {
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

TEST_F(CudaDeviceTest, AHandleOfCublasForWhichThereIsNoMemoryIsExhaustion) {
  emulation::Exhaust(emulation::Call::kCublasCreate);
  const absl::Status status = cuda::CudaDevice<float>::Create(0, {}).status();
  ExpectError(status, absl::StatusCode::kResourceExhausted, {"cuBLAS, in cublasCreate"});
  EXPECT_TRUE(IsOutOfMemory(status));
  SYNCGRADS_EXPECT_OK(TryLayer(*MakeFloat()));
}

// cuBLAS reports what it fails to load with the same codes as other failures.
TEST_F(CudaDeviceTest, AnUnclearErrorOfCublasIsExhaustionIfLittleMemoryIsFree) {
  emulation::Options options;
  const auto device = MakeFloat();
  DeviceArray<unsigned char> large(device->memory());
  large.Resize(1, static_cast<int64_t>(options.device_bytes) - (int64_t{150} << 20));
  SYNCGRADS_ASSERT_OK(device->memory().status());
  emulation::BreakCublas();
  EXPECT_TRUE(IsOutOfMemory(TryLayer(*device))) << device->memory().status();
  device->memory().ForgetExhaustion();
  large = DeviceArray<unsigned char>(device->memory());
  SYNCGRADS_EXPECT_OK(TryLayer(*device));
  emulation::BreakCublas();
  ExpectError(TryLayer(*device), absl::StatusCode::kInternal, {"cublasGemmEx"});
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

// Most calls of CUDA would not return then, and end the test.
TEST_F(CudaDeviceTest, ADeviceThatHangsIsNamedAndLeftAlone) {
  auto device = MakeFloat({.timeout = absl::Milliseconds(500)});
  DeviceMemory& memory = device->memory();
  {
    HostMatrix<float> host(memory, 1, 1);
    DeviceMatrix<float> value(*device, 1, 1);
    memory.SetZero(value.data(), value.bytes());
    const auto download = memory.QueueDownload(value.data(), value.bytes(), host.data());
    emulation::Hang();
    const absl::Status status = memory.Wait(download);
    ExpectError(status, absl::StatusCode::kDeadlineExceeded,
                {"device cuda:0 has not finished its queued work within 500ms", "hangs"});
    EXPECT_TRUE(IsHungDevice(status));
    EXPECT_EQ(memory.Finish(), status);
    memory.ForgetExhaustion();
    EXPECT_EQ(memory.status(), status);
    EXPECT_TRUE(memory.HasEnded(download));
    // Callers still write to the host's memory.
    HostMatrix<float> later(memory, 10, 10);
    later.setConstant(3);
    EXPECT_EQ(memory.Pin(later.data(), 400), status);
    memory.Unpin(later.data());
    const DeviceMatrix<float> none(*device, 10, 10);
    EXPECT_EQ(none.data(), nullptr);
  }
  device.reset();
  emulation::Configure({});
}

// A hung device blocks almost any call. Its thread cannot be stopped, so the process ends.
TEST_F(CudaDeviceTest, ACallThatDoesNotReturnEndsTheProcessWithARetryableCode) {
  struct Case {
    std::string what;
    std::function<void(DeviceMemory&)> call;
  };
  for (const Case& one :
       {Case{"cudaMalloc", [](DeviceMemory& memory) { memory.Allocate(100); }},
        {"cudaMallocHost", [](DeviceMemory& memory) { memory.AllocatePinned(100); }},
        {"cudaMemsetAsync", [](DeviceMemory& memory) {
           DeviceArray<float> value(memory, 1, 1);
           emulation::Hang();
           // More than the driver's queue has room for.
           for (int i = 0; i < 2000; ++i) memory.SetZero(value.data(), value.bytes());
         }}}) {
    EXPECT_EXIT(
        {
          const auto device = MakeFloat({.timeout = absl::Seconds(1)});
          if (one.what != "cudaMemsetAsync") emulation::Hang();
          one.call(device->memory());
          std::_Exit(0);
        },
        testing::ExitedWithCode(201), "device cuda:0: " + one.what + " has not returned within 1s");
  }
}

// A kernel's launch and cuBLAS are timed as well.
TEST_F(CudaDeviceTest, AKernelThatCannotBeQueuedEndsTheProcess) {
  EXPECT_EXIT(
      {
        const auto device = MakeFloat({.timeout = absl::Seconds(1)});
        DeviceMatrix<float> value(*device, 1, 1);
        emulation::Hang();
        for (int i = 0; i < 2000; ++i) {
          device->Add(Activation::kRelu, 1, value.data(), value.data(), value.data());
        }
        std::_Exit(0);
      },
      testing::ExitedWithCode(201), "device cuda:0: Add has not returned");
}

// With a stride of 1 and padding, the output is larger than the input.
TEST_F(CudaDeviceTest, PoolingWhoseOutputCannotBeIndexedIsRefused) {
  const auto window =
      Window::Create("pool", Shape::Image(1, 2, 2), 4, 4, /*stride=*/1, /*padding=*/3);
  SYNCGRADS_ASSERT_OK(window);
  const int64_t samples = (int64_t{1} << 31) / window->positions() + 1;
  ASSERT_LT(samples * window->input.size(), int64_t{1} << 31);
  for (const bool forward : {true, false}) {
    const auto device = MakeFloat();
    if (forward) {
      device->Pool(Pooling::kMax, *window, samples, nullptr, nullptr, nullptr);
    } else {
      device->PoolBackward(Pooling::kMax, *window, samples, nullptr, nullptr, nullptr);
    }
    ExpectError(device->memory().status(), absl::StatusCode::kInvalidArgument, {"2^31 numbers"});
  }
}

TEST_F(CudaDeviceTest, ADeviceThatFailsIsNamedWithWhatItSays) {
  const auto device = MakeFloat();
  DeviceMatrix<float> values(*device, 3, 3);
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

// Returns how many bytes a backward pass through residual blocks allocates that the forward pass
// has not. All gradients but the output's have as many numbers as the image.
size_t BytesOfABackwardPass(int blocks, const Shape& image) {
  const auto device = MakeFloat();
  v1::ModelSpec spec;
  const auto add_convolution = [&](v1::LayerSpec& layer) {
    layer.mutable_conv2d()->set_outputs(static_cast<uint32_t>(image.channels));
    layer.mutable_conv2d()->set_kernel_size(3);
    layer.mutable_conv2d()->set_padding(1);
    layer.mutable_conv2d()->set_no_bias(true);
  };
  add_convolution(*spec.add_layers());
  for (int i = 0; i < blocks; ++i) {
    v1::ResidualSpec& block = *spec.add_layers()->mutable_residual();
    block.set_activation(v1::RELU);
    for (int half = 0; half < 2; ++half) {
      add_convolution(*block.add_body());
      block.add_body()->mutable_batch_norm();
    }
    // Every second block has a shortcut with layers, as where a ResNet samples down.
    if (i % 2 == 0) continue;
    add_convolution(*block.add_shortcut());
    block.add_shortcut()->mutable_batch_norm();
  }
  spec.add_layers()->mutable_global_average_pool();
  const auto model = BuildModel<float>(spec, image, NoCustomLayers(), *device);
  EXPECT_TRUE(model.ok()) << model.status();
  (*model)->Initialise(1);
  const Pass pass = {/*training=*/true};
  const Matrix<float> outputs = (*model)->Forward(pass, Matrix<float>::Ones(4, image.size()));
  const size_t before = emulation::AllocatedBytes();
  SYNCGRADS_EXPECT_OK((*model)->Backward(outputs, [](size_t) { return absl::OkStatus(); }));
  SYNCGRADS_EXPECT_OK(device->memory().Finish());
  return emulation::AllocatedBytes() - before;
}

// However deep the model is.
TEST_F(CudaDeviceTest, TheBackwardPassNeedsThreeBuffers) {
  const Shape image = Shape::Image(8, 16, 16);
  const size_t buffer = 4 * static_cast<size_t>(image.size()) * sizeof(float);
  const size_t one = BytesOfABackwardPass(1, image);
  EXPECT_GE(one, 3 * buffer);
  // Besides these there are the output's gradient, and kernels' scratch memory.
  EXPECT_LT(one, 4 * buffer);
  EXPECT_EQ(BytesOfABackwardPass(4, image), one);
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
