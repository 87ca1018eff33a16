// The device contract: tests that the operations of every device must pass.

#ifndef SYNCGRADS_TESTS_WORKER_NN_DEVICE_CONTRACT_H_
#define SYNCGRADS_TESTS_WORKER_NN_DEVICE_CONTRACT_H_

#include <cstdint>
#include <vector>

#include "worker/nn/device.h"

namespace syncgrads {

struct ConvolutionSize {
  Shape input;
  int64_t window, stride, padding, samples, outputs;
};

// Returns large and small windows, few and many of them, with one channel and with many.
std::vector<ConvolutionSize> ConvolutionSizes();

// Each operation agrees with a plain loop in double precision, up to rounding.
void ExpectConvolutionAgreesWithAPlainLoop(const ConvolutionSize& size, Device<float>& device);
void ExpectConvolutionGradientsAreAdjointsOfAPlainLoop(const ConvolutionSize& size,
                                                       Device<float>& device);
// Numbers that are stored and loaded again, including ties, subnormals, infinities and NaNs, are
// those that the device's type of storage rounds to.
void ExpectNumbersAreStoredRounded(Device<float>& device);
// Pixels, few and many of them, with any number of channels.
void ExpectPixelsAreStoredAsTheirNumbers(Device<float>& device);
void ExpectPoolingAgreesWithAPlainLoop(Device<float>& device);
void ExpectMaxPoolingHandsOnANan(Device<float>& device);
// Dense layers of any size, forward and backward, with kernels that are transposed or not. `error`
// is the relative error of a product if the device rounds the factors.
void ExpectDenseLayersAgreeWithAPlainLoop(Device<float>& device, double error = 0);
void ExpectSumsOfManyRowsAreExact(Device<float>& device);
// Statistics, normalisation with and without a residual and an activation, and the backward pass;
// also if the mean is much larger than the deviation.
void ExpectBatchNormAgreesWithAPlainLoop(Device<float>& device);
void ExpectLossesAgreeWithPlainLoops(Device<float>& device);
void ExpectPenaltiesAgreeWithAPlainLoop(Device<float>& device);
// Sums with an activation, dropout, and transposition.
void ExpectElementwiseOperationsAgreeWithPlainLoops(Device<float>& device);

// Runs every update rule that needs no norms, with ordinary numbers and with special ones (such as
// denormals and NaNs). Parameters and slots must equal those of ApplyUpdate bit for bit. T is float
// or double.
template <typename T>
void ExpectUpdatesHaveTheBitsOfTheHost(Device<T>& device);

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_NN_DEVICE_CONTRACT_H_
