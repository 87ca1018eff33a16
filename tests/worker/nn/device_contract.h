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
void ExpectPoolingAgreesWithAPlainLoop(Device<float>& device);
void ExpectMaxPoolingHandsOnANan(Device<float>& device);
void ExpectBatchNormAgreesWithAPlainLoop(Device<float>& device);
void ExpectLossesAgreeWithPlainLoops(Device<float>& device);
void ExpectSumsOfManyRowsAreExact(Device<float>& device);
// Matrix products of any size, transposed or not, added to the result or not. `error` is the
// relative error of a product if the device rounds the factors.
void ExpectProductsAgreeWithAPlainLoop(Device<float>& device, double error = 0);

// Runs every update rule that needs no norms, with ordinary numbers and with special ones (such as
// denormals and NaNs). Parameters and slots must equal those of ApplyUpdate bit for bit. T is float
// or double.
template <typename T>
void ExpectUpdatesHaveTheBitsOfTheHost(Device<T>& device);

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_NN_DEVICE_CONTRACT_H_
