// Which convolutions a CUDA device leaves to cuDNN, and what it does if cuDNN fails. Runs on the
// emulated device, with the emulated cuDNN.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/nn/cuda/emulation/cudnn_emulation.h"
#include "tests/worker/nn/cuda/emulation/emulation.h"
#include "tests/worker/nn/device_arrays.h"
#include "tests/worker/nn/device_contract.h"
#include "tests/worker/testing/status.h"
#include "worker/base/out_of_memory.h"
#include "worker/nn/cuda/cuda_accelerators.h"
#include "worker/nn/cuda/cuda_device.h"

namespace syncgrads {
namespace {

using emulation::CountCudnnObjects;
using emulation::kExactEngine;
using emulation::kTensorCoreEngine;
using emulation::TakeExecutedEngines;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const ConvolutionSize kPlanned = {Shape::Image(8, 6, 6), 3, 1, 1, 2, 12};

class CudnnDeviceTest : public testing::Test {
 protected:
  CudnnDeviceTest() { Configure({}); }
  ~CudnnDeviceTest() override { emulation::ConfigureCudnn({}); }

  static void Configure(const emulation::CudnnOptions& options) {
    emulation::Configure({});
    emulation::ConfigureCudnn(options);
  }

  // Activations are stored as S.
  template <typename S = float>
  std::unique_ptr<cuda::CudaDevice<float, S>> Make(cuda::CudaOptions options = {}) {
    options.warn = [this](const std::string& warning) { warnings_.push_back(warning); };
    auto device = cuda::CudaDevice<float, S>::Create(0, options);
    EXPECT_TRUE(device.ok()) << device.status();
    return std::move(*device);
  }

  static void ExpectAgrees(const ConvolutionSize& size, Device<float>& device) {
    ExpectConvolutionAgreesWithAPlainLoop(size, device);
    ExpectConvolutionGradientsAreAdjointsOfAPlainLoop(size, device);
  }

  std::vector<std::string> warnings_;
};

// The address of activations that begin at a number of an array.
Stored<float>* From(Floats& array, int64_t first) {
  return reinterpret_cast<Stored<float>*>(static_cast<float*>(array) + first);
}

// Runs one convolution forwards. Returns the device's status afterwards.
absl::Status TryConvolution(Device<float>& device) {
  const Window window = *Window::Create("", kPlanned.input, 3, 3, 1, 1);
  Activations input(device, Numbers(kPlanned.samples * window.input.size(), 1.0));
  Floats weights(device, Numbers(kPlanned.outputs * window.size(), 0.5));
  DeviceMatrix<float> output(device, kPlanned.samples * window.positions(), kPlanned.outputs);
  device.Convolve({window, kPlanned.outputs, weights}, kPlanned.samples, input, output.data());
  Matrix<float> fetched;
  if (output.Fetch(fetched).ok()) {
    // A corner and the middle of an image: 4 and 9 pixels.
    EXPECT_EQ(fetched(0, 0), 4 * 8 * 0.5f);
    EXPECT_EQ(fetched(7, 0), 9 * 8 * 0.5f);
  }
  return device.memory().status();
}

TEST_F(CudnnDeviceTest, TheFirstEngineThatThePrecisionAllowsIsUsed) {
  for (const auto& [precision, engine] : {std::pair(MatrixPrecision::kF32, kExactEngine),
                                          {MatrixPrecision::kTf32, kTensorCoreEngine}}) {
    const auto device = Make({.precision = precision});
    SYNCGRADS_EXPECT_OK(TryConvolution(*device));
    EXPECT_THAT(TakeExecutedEngines(), ElementsAre(engine));
  }
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(CudnnDeviceTest, AllThreePassesAreExecuted) {
  const auto device = Make();
  ExpectConvolutionAgreesWithAPlainLoop(kPlanned, *device);
  EXPECT_GT(TakeExecutedEngines().size(), 0);
  ExpectConvolutionGradientsAreAdjointsOfAPlainLoop(kPlanned, *device);
  // Both gradients, then that of the weights alone.
  EXPECT_THAT(TakeExecutedEngines(), testing::AllOf(SizeIs(3), Each(kExactEngine)));
}

// A row of channels takes a multiple of 16 bytes.
TEST_F(CudnnDeviceTest, ConvolutionsInBf16UseTensorCoresIfTheirChannelsAreMultiplesOfEight) {
  const auto device = Make<cuda::Bf16>();
  ExpectAgrees({Shape::Image(8, 6, 6), 3, 1, 1, 2, 16}, *device);
  EXPECT_THAT(TakeExecutedEngines(), testing::AllOf(SizeIs(6), Each(kTensorCoreEngine)));
  ExpectAgrees(kPlanned, *device);  // 12 outputs
  ExpectAgrees({Shape::Image(4, 6, 6), 3, 1, 1, 2, 16}, *device);
  EXPECT_THAT(TakeExecutedEngines(), IsEmpty());
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(CudnnDeviceTest, OtherConvolutionsAreComputedByMatrixProducts) {
  const auto device = Make();
  for (const ConvolutionSize& size : {
           ConvolutionSize{Shape::Image(3, 9, 9), 3, 1, 1, 2, 8},  // channels are added
           {Shape::Image(8, 5, 5), 1, 1, 0, 2, 8},                 // no windows are copied
           {Shape::Image(6, 5, 5), 3, 1, 1, 2, 8},
           {Shape::Image(8, 5, 5), 3, 1, 1, 2, 6},
       }) {
    ExpectAgrees(size, *device);
  }
  EXPECT_THAT(TakeExecutedEngines(), IsEmpty());
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(CudnnDeviceTest, UnalignedTensorsAreComputedByMatrixProducts) {
  const auto device = Make();
  const Window window = *Window::Create("", Shape::Image(4, 3, 3), 3, 3, 1, 0);
  Floats input(*device, Numbers(1 + window.input.size(), 1.0));
  Floats weights(*device, Numbers(4 * window.size(), 1.0));
  Activations output(*device, 4);
  device->Convolve({window, 4, weights}, 1, From(input, 1), output);
  EXPECT_THAT(output.Fetch(), Each(36));
  EXPECT_THAT(TakeExecutedEngines(), IsEmpty());
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(CudnnDeviceTest, WithoutTheLibraryItIsNotMissed) {
  Configure({.is_installed = false});
  const auto device = Make();
  ExpectAgrees(kPlanned, *device);
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_THAT(CudaAccelerators().Libraries(), HasSubstr("without cuDNN: cannot load libcudnn"));
}

TEST_F(CudnnDeviceTest, ItCanBeSwitchedOff) {
  EXPECT_EQ(CudaAccelerators().Libraries(), "convolutions by cuDNN 9.9.99");
  EXPECT_EQ(CudaAccelerators(/*cudnn=*/false).Libraries(), "convolutions without cuDNN");
  const auto device = CudaAccelerators(/*cudnn=*/false).MakeFloat(0, MatrixPrecision::kF32);
  SYNCGRADS_ASSERT_OK(device);
  ExpectAgrees(kPlanned, **device);
  EXPECT_THAT(TakeExecutedEngines(), IsEmpty());
}

TEST_F(CudnnDeviceTest, ALibraryThatCannotBeSetUpIsAWarning) {
  Configure({.can_be_created = false});
  const auto device = Make();
  ExpectAgrees(kPlanned, *device);
  EXPECT_THAT(warnings_, ElementsAre("cuDNN is not used: cudnnCreate: CUDNN_STATUS_NOT_SUPPORTED"));
}

TEST_F(CudnnDeviceTest, AConvolutionWithoutAPlanIsAWarningOnce) {
  Configure({.has_plans = false});
  const auto device = Make();
  for (int i = 0; i < 3; ++i) ExpectAgrees(kPlanned, *device);
  EXPECT_THAT(TakeExecutedEngines(), IsEmpty());
  ASSERT_THAT(warnings_, SizeIs(3));  // one for each pass
  EXPECT_THAT(warnings_[0], HasSubstr("2 images 8x6x6, 12 outputs, window 3x3"));
  EXPECT_THAT(warnings_[0], HasSubstr("none of the 8 engines can be used"));
  EXPECT_THAT(warnings_[0], HasSubstr("CUDNN_STATUS_NOT_SUPPORTED: this engine has no plan"));
}

TEST_F(CudnnDeviceTest, WarningsAreFew) {
  Configure({.has_plans = false});
  const auto device = Make();
  for (int64_t samples = 1; samples < 20; ++samples) {
    ConvolutionSize size = kPlanned;
    size.samples = samples;
    ExpectConvolutionAgreesWithAPlainLoop(size, *device);
  }
  EXPECT_THAT(warnings_, SizeIs(cuda::ConvolutionPlans::kMostWarnings));
}

TEST_F(CudnnDeviceTest, AWorkspaceAboveTheLimitIsRefused) {
  const int64_t limit = 4000;
  Configure({.workspace_bytes = limit});
  const auto device = Make({.row_bytes = limit});
  ExpectAgrees(kPlanned, *device);
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_THAT(TakeExecutedEngines(), Each(kExactEngine));
  const auto smaller = Make({.row_bytes = limit - 1});
  ExpectAgrees(kPlanned, *smaller);
  EXPECT_THAT(TakeExecutedEngines(), IsEmpty());
  ASSERT_THAT(warnings_, SizeIs(3));
  EXPECT_THAT(warnings_[0], HasSubstr("a workspace of 4000 bytes, the limit is 3999"));
}

TEST_F(CudnnDeviceTest, AnExecutionThatFailsIsNotTriedAgain) {
  const auto device = Make();
  SYNCGRADS_EXPECT_OK(TryConvolution(*device));
  emulation::ConfigureCudnn({.executes = false});
  SYNCGRADS_EXPECT_OK(TryConvolution(*device));
  emulation::ConfigureCudnn({});
  SYNCGRADS_EXPECT_OK(TryConvolution(*device));
  EXPECT_THAT(TakeExecutedEngines(), IsEmpty());
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr("cudnnBackendExecute: CUDNN_STATUS_EXECUTION_FAILED"));
}

// One gradient by cuDNN, the other by matrix products.
TEST_F(CudnnDeviceTest, PassesAreIndependent) {
  const auto device = Make();
  const Window window = *Window::Create("", Shape::Image(4, 3, 3), 3, 3, 1, 0);
  Activations input(*device, Numbers(window.input.size(), 2.0));
  Activations output(*device, Numbers(4, 1.0));
  Floats weights(*device, Numbers(4 * window.size(), 1.0));
  Floats by_weights(*device, 4 * window.size() + 1), by_input(*device, window.input.size() + 1);
  for (const auto& [weights_offset, input_offset] : {std::pair(0, 1), {1, 0}}) {
    Activations gradient(*device, Numbers(4, 1.0));
    device->ConvolveBackward(
        {window, 4, weights}, 1, input, output, gradient,
        {static_cast<float*>(by_weights) + weights_offset, nullptr, From(by_input, input_offset)});
    const std::vector<float> of_weights = by_weights.Fetch(), of_input = by_input.Fetch();
    for (int64_t i = 0; i < 4 * window.size(); ++i) EXPECT_EQ(of_weights[i + weights_offset], 2);
    for (int64_t i = 0; i < window.input.size(); ++i) EXPECT_EQ(of_input[i + input_offset], 4);
  }
  // The gradient by the weights is copied to its place, whose alignment does not matter.
  EXPECT_THAT(TakeExecutedEngines(), SizeIs(3));
}

TEST_F(CudnnDeviceTest, ExhaustedMemoryIsExhaustionThatCanBeForgotten) {
  for (const uint64_t after : {0, 1}) {  // the plan, its execution
    const auto device = Make();
    emulation::Exhaust(emulation::Call::kCudnn, after);
    const absl::Status status = TryConvolution(*device);
    ExpectError(status, absl::StatusCode::kResourceExhausted,
                {"device cuda:0", "memory", "cuDNN", "DEVICE_ALLOCATION_FAILED"});
    EXPECT_TRUE(IsOutOfMemory(status));
    device->memory().ForgetExhaustion();
    SYNCGRADS_EXPECT_OK(TryConvolution(*device));
    EXPECT_THAT(TakeExecutedEngines(), ElementsAre(kExactEngine));
  }
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(CudnnDeviceTest, PlansAreDestroyed) {
  const int64_t before = CountCudnnObjects();
  {
    const auto device = Make();
    ExpectAgrees(kPlanned, *device);
    EXPECT_GT(CountCudnnObjects(), before);
  }
  EXPECT_EQ(CountCudnnObjects(), before);
}

TEST_F(CudnnDeviceTest, ADeviceThatHangsKeepsItsPlans) {
  auto device = Make({.timeout = absl::Milliseconds(20)});
  SYNCGRADS_EXPECT_OK(TryConvolution(*device));
  const int64_t before = CountCudnnObjects();
  emulation::Hang();
  device.reset();
  EXPECT_EQ(CountCudnnObjects(), before);
  emulation::Configure({});
}

}  // namespace
}  // namespace syncgrads
