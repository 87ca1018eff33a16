// The device contract, on the first CUDA device of this machine.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/worker/nn/device_contract.h"
#include "tests/worker/nn/layer_cases.h"
#include "tests/worker/nn/layer_contract.h"
#include "tests/worker/nn/resnet_contract.h"
#include "tests/worker/testing/status.h"
#include "worker/nn/cpu/cpu_device.h"
#include "worker/nn/cuda/cuda_accelerators.h"

namespace syncgrads {
namespace {

class CudaContractTest : public testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<int> count = CudaAccelerators().Count();
    if (!count.ok()) GTEST_SKIP() << "built, not run: " << count.status().message();
    auto floats = CudaAccelerators(uses_cudnn()).MakeFloat(0, precision());
    SYNCGRADS_ASSERT_OK(floats);
    floats_ = std::move(*floats);
    auto doubles = CudaAccelerators().MakeDouble(0);
    SYNCGRADS_ASSERT_OK(doubles);
    doubles_ = std::move(*doubles);
  }

  // Whether convolutions are computed by cuDNN, if it is installed.
  virtual bool uses_cudnn() const { return true; }
  virtual MatrixPrecision precision() const { return MatrixPrecision::kF32; }

  void TearDown() override {
    if (floats_ == nullptr || doubles_ == nullptr) return;
    SYNCGRADS_EXPECT_OK(floats_->memory().Finish());
    SYNCGRADS_EXPECT_OK(doubles_->memory().Finish());
  }

  std::unique_ptr<Device<float>> floats_;
  std::unique_ptr<Device<double>> doubles_;
  CpuDevice<double> reference_{1};
};

TEST_F(CudaContractTest, GradientsAgreeWithFiniteDifferences) {
  for (const LayerCase& layer : AllLayerCases()) {
    ExpectGradientsOfFiniteDifferences(layer, *doubles_);
  }
}

TEST_F(CudaContractTest, FloatAgreesWithDoubleOfTheProcessor) {
  for (const LayerCase& layer : AllLayerCases()) {
    ExpectFloatAgreesWithDouble(layer, *floats_, reference_);
  }
}

TEST_F(CudaContractTest, GradientOfABatchIsTheMeanOfItsSamplesGradients) {
  for (const LayerCase& layer : AllLayerCases()) {
    ExpectGradientIsTheMeanOverSamples(layer, *floats_);
  }
}

TEST_F(CudaContractTest, TheSameCallsGiveTheSameBits) {
  for (const LayerCase& layer : AllLayerCases()) ExpectTheSameBits(layer, *floats_);
}

TEST_F(CudaContractTest, ConvolutionAgreesWithAPlainLoop) {
  for (const ConvolutionSize& size : ConvolutionSizes()) {
    ExpectConvolutionAgreesWithAPlainLoop(size, *floats_);
    ExpectConvolutionGradientsAreAdjointsOfAPlainLoop(size, *floats_);
  }
}

TEST_F(CudaContractTest, PoolingAgreesWithAPlainLoop) {
  ExpectPoolingAgreesWithAPlainLoop(*floats_);
}

TEST_F(CudaContractTest, MaxPoolingHandsOnANan) { ExpectMaxPoolingHandsOnANan(*floats_); }

TEST_F(CudaContractTest, BatchNormAgreesWithAPlainLoop) {
  ExpectBatchNormAgreesWithAPlainLoop(*floats_);
}

TEST_F(CudaContractTest, PixelsAreStoredAsTheirNumbers) {
  ExpectPixelsAreStoredAsTheirNumbers(*floats_);
}

TEST_F(CudaContractTest, NumbersAreStoredExactly) { ExpectNumbersAreStoredRounded(*floats_); }

TEST_F(CudaContractTest, LossesAgreeWithPlainLoops) { ExpectLossesAgreeWithPlainLoops(*floats_); }

TEST_F(CudaContractTest, UpdatesHaveTheBitsOfTheHost) {
  ExpectUpdatesHaveTheBitsOfTheHost(*floats_);
  ExpectUpdatesHaveTheBitsOfTheHost(*doubles_);
}

TEST_F(CudaContractTest, SumsOfManyRowsAreExact) { ExpectSumsOfManyRowsAreExact(*floats_); }

TEST_F(CudaContractTest, DenseLayersAgreeWithAPlainLoop) {
  ExpectDenseLayersAgreeWithAPlainLoop(*floats_);
}

TEST_F(CudaContractTest, PenaltiesAgreeWithAPlainLoop) {
  ExpectPenaltiesAgreeWithAPlainLoop(*floats_);
}

TEST_F(CudaContractTest, ElementwiseOperationsAgreeWithPlainLoops) {
  ExpectElementwiseOperationsAgreeWithPlainLoops(*floats_);
}

TEST_F(CudaContractTest, ProductsAreRoundedAsTheFlagSays) {
  // Each of the two factors is reduced to 11 significant bits. Devices may truncate, so the
  // relative error of each factor is at most a unit in the last place.
  const auto device = CudaAccelerators().MakeFloat(0, MatrixPrecision::kTf32);
  SYNCGRADS_ASSERT_OK(device);
  ExpectDenseLayersAgreeWithAPlainLoop(**device, 0x1p-9);
}

TEST_F(CudaContractTest, ResNet34sLossAndGradientsAgreeWithTheProcessors) {
  ExpectResNet34AgreesWithTheProcessor(*floats_);
}

// What computes convolutions where cuDNN is not installed.
class WithoutCudnnContractTest : public CudaContractTest {
 protected:
  bool uses_cudnn() const override { return false; }
};

TEST_F(WithoutCudnnContractTest, FloatAgreesWithDoubleOfTheProcessor) {
  for (const LayerCase& layer : AllLayerCases()) {
    ExpectFloatAgreesWithDouble(layer, *floats_, reference_);
  }
}

TEST_F(WithoutCudnnContractTest, TheSameCallsGiveTheSameBits) {
  for (const LayerCase& layer : AllLayerCases()) ExpectTheSameBits(layer, *floats_);
}

TEST_F(WithoutCudnnContractTest, ConvolutionAgreesWithAPlainLoop) {
  for (const ConvolutionSize& size : ConvolutionSizes()) {
    ExpectConvolutionAgreesWithAPlainLoop(size, *floats_);
    ExpectConvolutionGradientsAreAdjointsOfAPlainLoop(size, *floats_);
  }
}

TEST_F(WithoutCudnnContractTest, ResNet34sLossAndGradientsAgreeWithTheProcessors) {
  ExpectResNet34AgreesWithTheProcessor(*floats_);
}

// Activations are stored as bfloat16.
class Bf16ContractTest : public CudaContractTest {
 protected:
  MatrixPrecision precision() const override { return MatrixPrecision::kBf16; }
};

class Bf16WithoutCudnnContractTest : public Bf16ContractTest {
 protected:
  bool uses_cudnn() const override { return false; }
};

TEST_F(Bf16ContractTest, ActivationsTakeTwoBytes) { EXPECT_EQ(floats_->stored_bytes(), 2); }

TEST_F(Bf16ContractTest, FloatAgreesWithDoubleOfTheProcessor) {
  for (const LayerCase& layer : AllLayerCases()) {
    ExpectFloatAgreesWithDouble(layer, *floats_, reference_);
  }
}

TEST_F(Bf16ContractTest, GradientOfABatchIsTheMeanOfItsSamplesGradients) {
  for (const LayerCase& layer : AllLayerCases()) {
    ExpectGradientIsTheMeanOverSamples(layer, *floats_);
  }
}

TEST_F(Bf16ContractTest, TheSameCallsGiveTheSameBits) {
  for (const LayerCase& layer : AllLayerCases()) ExpectTheSameBits(layer, *floats_);
}

TEST_F(Bf16ContractTest, ConvolutionAgreesWithAPlainLoop) {
  for (const ConvolutionSize& size : ConvolutionSizes()) {
    ExpectConvolutionAgreesWithAPlainLoop(size, *floats_);
    ExpectConvolutionGradientsAreAdjointsOfAPlainLoop(size, *floats_);
  }
}

TEST_F(Bf16ContractTest, PoolingAgreesWithAPlainLoop) {
  ExpectPoolingAgreesWithAPlainLoop(*floats_);
}

TEST_F(Bf16ContractTest, MaxPoolingHandsOnANan) { ExpectMaxPoolingHandsOnANan(*floats_); }

TEST_F(Bf16ContractTest, BatchNormAgreesWithAPlainLoop) {
  ExpectBatchNormAgreesWithAPlainLoop(*floats_);
}

TEST_F(Bf16ContractTest, LossesAgreeWithPlainLoops) { ExpectLossesAgreeWithPlainLoops(*floats_); }

TEST_F(Bf16ContractTest, UpdatesHaveTheBitsOfTheHost) {
  ExpectUpdatesHaveTheBitsOfTheHost(*floats_);
}

TEST_F(Bf16ContractTest, SumsOfManyRowsAreExact) { ExpectSumsOfManyRowsAreExact(*floats_); }

TEST_F(Bf16ContractTest, DenseLayersAgreeWithAPlainLoop) {
  ExpectDenseLayersAgreeWithAPlainLoop(*floats_);
}

TEST_F(Bf16ContractTest, PenaltiesAgreeWithAPlainLoop) {
  ExpectPenaltiesAgreeWithAPlainLoop(*floats_);
}

TEST_F(Bf16ContractTest, ElementwiseOperationsAgreeWithPlainLoops) {
  ExpectElementwiseOperationsAgreeWithPlainLoops(*floats_);
}

TEST_F(Bf16ContractTest, PixelsAreStoredAsTheirNumbers) {
  ExpectPixelsAreStoredAsTheirNumbers(*floats_);
}

TEST_F(Bf16ContractTest, NumbersAreRoundedToNearest) { ExpectNumbersAreStoredRounded(*floats_); }

TEST_F(Bf16ContractTest, LayersOfResNet34AgreeWithDouble) {
  ExpectLayersOfResNet34AgreeWithDouble(*floats_);
}

TEST_F(Bf16ContractTest, ResNet34IsAsCloseToDoubleAsRoundingAllows) {
  ExpectResNet34IsAsCloseToDoubleAsRoundingAllows(*floats_);
}

TEST_F(Bf16WithoutCudnnContractTest, FloatAgreesWithDoubleOfTheProcessor) {
  for (const LayerCase& layer : AllLayerCases()) {
    ExpectFloatAgreesWithDouble(layer, *floats_, reference_);
  }
}

TEST_F(Bf16WithoutCudnnContractTest, ConvolutionAgreesWithAPlainLoop) {
  for (const ConvolutionSize& size : ConvolutionSizes()) {
    ExpectConvolutionAgreesWithAPlainLoop(size, *floats_);
    ExpectConvolutionGradientsAreAdjointsOfAPlainLoop(size, *floats_);
  }
}

TEST_F(Bf16WithoutCudnnContractTest, LayersOfResNet34AgreeWithDouble) {
  ExpectLayersOfResNet34AgreeWithDouble(*floats_);
}

}  // namespace
}  // namespace syncgrads
