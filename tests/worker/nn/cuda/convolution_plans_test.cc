// Which plans the installed cuDNN has for the convolutions of ResNet-34 on an H100. cuDNN needs no
// device for that.

#include "worker/nn/cuda/convolution_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/worker/testing/status.h"
#include "worker/nn/cuda/cudnn.h"
#include "worker/nn/window.h"

namespace syncgrads::cuda {
namespace {

constexpr char kH100[] = R"({
  "version": 1, "cudaDeviceId": 0, "deviceName": "NVIDIA H100 80GB HBM3", "deviceVer": 900,
  "driverVer": 13000, "isTccDriver": 0, "l2CacheSize": 52428800, "maxCtasPerSM": 32,
  "maxRegistersPerSM": 65536, "maxSharedMemoryPerBlock": 49152,
  "maxSharedMemoryPerBlockOptin": 232448, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048,
  "memClockRateKHz": 2619000, "multiProcessorCount": 132, "pciDeviceId": 0,
  "regsPerBlock": 65536, "reservedSharedMemoryPerBlock": 1024, "smClockRateKHz": 1980000,
  "supportCoopLaunch": 1, "totalGlobalMem": 85000000000, "warpSize": 32,
  "maxBlockSize": [1024, 1024, 64], "maxGridSize": [2147483647, 65535, 65535]})";

struct Size {
  int64_t channels, side, outputs, window, stride;
};

// The convolutions of ResNet-34 on images of 224x224, without the first one, which has three
// channels.
std::vector<Size> SizesOfResNet34() {
  std::vector<Size> sizes = {{64, 56, 64, 3, 1}};
  for (const int64_t channels : {64, 128, 256}) {
    const int64_t side = 56 * 64 / channels;
    sizes.push_back({channels, side, 2 * channels, 3, 2});
    sizes.push_back({channels, side, 2 * channels, 1, 2});
    sizes.push_back({2 * channels, side / 2, 2 * channels, 3, 1});
  }
  return sizes;
}

class ConvolutionPlansTest : public testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<const Cudnn*> cudnn = LoadCudnn();
    if (!cudnn.ok()) GTEST_SKIP() << "built, not run: " << cudnn.status().message();
    auto plans = ConvolutionPlans::CreateFor(
        **cudnn, kH100, {.warn = [this](const std::string& one) { warnings_.push_back(one); }});
    if (!plans.ok()) {
      GTEST_SKIP() << "built, not run: cuDNN " << VersionOf(**cudnn)
                   << " has no plans without a device: " << plans.status().message();
    }
    plans_ = *std::move(plans);
  }

  std::vector<std::string> warnings_;
  std::unique_ptr<ConvolutionPlans> plans_;
};

TEST_F(ConvolutionPlansTest, EveryConvolutionOfResNet34HasADeterministicPlanWithinTheBound) {
  for (const auto type : {ConvolutionType::kF32, ConvolutionType::kTf32, ConvolutionType::kBf16}) {
    for (const Size& size : SizesOfResNet34()) {
      for (const auto pass : {ConvolutionPass::kOutput, ConvolutionPass::kInputGradient,
                              ConvolutionPass::kWeightGradient}) {
        const auto window = Window::Create("", Shape::Image(size.channels, size.side, size.side),
                                           size.window, size.window, size.stride, size.window / 2);
        SYNCGRADS_ASSERT_OK(window);
        const auto plan = plans_->Find({*window, 96, size.outputs, pass, type});
        SYNCGRADS_ASSERT_OK(plan);
        EXPECT_LE((*plan)->workspace_bytes, 256 << 20);
        std::vector<CudnnNote> allowed = {CudnnNote::kStrictNan};
        if (type != ConvolutionType::kF32) allowed.push_back(CudnnNote::kTensorCore);
        EXPECT_THAT((*plan)->notes, testing::Each(testing::AnyOfArray(allowed)));
        // cuDNN prefers other engines for some convolutions of one pixel.
        if (type != ConvolutionType::kF32 && size.window > 1) {
          EXPECT_THAT((*plan)->notes, testing::Contains(CudnnNote::kTensorCore));
        }
      }
    }
  }
  EXPECT_THAT(warnings_, testing::IsEmpty());
}

TEST_F(ConvolutionPlansTest, APlanIsKept) {
  const auto window = Window::Create("", Shape::Image(64, 56, 56), 3, 3, 1, 1);
  SYNCGRADS_ASSERT_OK(window);
  const PlannedConvolution one = {*window, 96, 64, ConvolutionPass::kOutput,
                                  ConvolutionType::kTf32};
  const auto first = plans_->Find(one);
  SYNCGRADS_ASSERT_OK(first);
  EXPECT_EQ(*plans_->Find(one), *first);
  PlannedConvolution other = one;
  other.samples = 95;
  SYNCGRADS_ASSERT_OK(plans_->Find(other));
  EXPECT_NE(*plans_->Find(other), *first);
}

// The images are not those of the window.
TEST_F(ConvolutionPlansTest, AConvolutionThatCudnnRefusesIsNamedOnce) {
  auto window = Window::Create("", Shape::Image(64, 56, 56), 3, 3, 1, 1);
  SYNCGRADS_ASSERT_OK(window);
  window->output_height = 7;
  const PlannedConvolution one = {*window, 96, 64, ConvolutionPass::kOutput,
                                  ConvolutionType::kTf32};
  for (int i = 0; i < 2; ++i) {
    ExpectError(plans_->Find(one), absl::StatusCode::kUnimplemented, {"cudnnBackendFinalize"});
  }
  ASSERT_EQ(warnings_.size(), 1);
  EXPECT_THAT(warnings_[0], testing::HasSubstr("convolution of 96 images 64x56x56, 64 outputs, "
                                               "window 3x3, stride 1, padding 1, tf32, output"));
}

}  // namespace
}  // namespace syncgrads::cuda
