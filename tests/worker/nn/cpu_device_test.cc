// The operations of the CPU device, at sizes that reach each of their implementations.

#include "worker/nn/cpu/cpu_device.h"

#include <gtest/gtest.h>

#include "tests/worker/nn/device_contract.h"

namespace syncgrads {
namespace {

class CpuDeviceTest : public testing::TestWithParam<int> {
 protected:
  CpuDevice<float> device_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Threads, CpuDeviceTest, testing::Values(1, 2, 3, 4));

TEST_P(CpuDeviceTest, ConvolutionAgreesWithAPlainLoop) {
  for (const ConvolutionSize& size : ConvolutionSizes()) {
    ExpectConvolutionAgreesWithAPlainLoop(size, device_);
    ExpectConvolutionGradientsAreAdjointsOfAPlainLoop(size, device_);
  }
}

TEST_P(CpuDeviceTest, PixelsAreStoredAsTheirNumbers) {
  ExpectPixelsAreStoredAsTheirNumbers(device_);
}

TEST_P(CpuDeviceTest, NumbersAreStoredExactly) { ExpectNumbersAreStoredRounded(device_); }

TEST_P(CpuDeviceTest, PoolingAgreesWithAPlainLoop) { ExpectPoolingAgreesWithAPlainLoop(device_); }

TEST_P(CpuDeviceTest, MaxPoolingHandsOnANan) { ExpectMaxPoolingHandsOnANan(device_); }

TEST_P(CpuDeviceTest, BatchNormAgreesWithAPlainLoop) {
  ExpectBatchNormAgreesWithAPlainLoop(device_);
}

TEST_P(CpuDeviceTest, LossesAgreeWithPlainLoops) { ExpectLossesAgreeWithPlainLoops(device_); }

TEST_P(CpuDeviceTest, SumsOfManyRowsAreExact) { ExpectSumsOfManyRowsAreExact(device_); }

TEST_P(CpuDeviceTest, DenseLayersAgreeWithAPlainLoop) {
  ExpectDenseLayersAgreeWithAPlainLoop(device_);
}

TEST_P(CpuDeviceTest, PenaltiesAgreeWithAPlainLoop) { ExpectPenaltiesAgreeWithAPlainLoop(device_); }

TEST_P(CpuDeviceTest, ElementwiseOperationsAgreeWithPlainLoops) {
  ExpectElementwiseOperationsAgreeWithPlainLoops(device_);
}

TEST_P(CpuDeviceTest, UpdatesHaveTheSameBitsOnAnyNumberOfThreads) {
  ExpectUpdatesHaveTheBitsOfTheHost(device_);
  CpuDevice<double> doubles(GetParam());
  ExpectUpdatesHaveTheBitsOfTheHost(doubles);
}

}  // namespace
}  // namespace syncgrads
