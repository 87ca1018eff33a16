// What holds for the operations of every device.

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

// Large windows and small, many and few, of many channels and one.
std::vector<ConvolutionSize> ConvolutionSizes();

// Each agrees with a plain loop in double precision, within what rounding explains.
void ExpectConvolutionAgreesWithAPlainLoop(const ConvolutionSize& size, Device<float>& device);
void ExpectConvolutionGradientsAreAdjointsOfAPlainLoop(const ConvolutionSize& size,
                                                       Device<float>& device);
void ExpectPoolingAgreesWithAPlainLoop(Device<float>& device);
void ExpectMaxPoolingHandsOnANan(Device<float>& device);
void ExpectBatchNormAgreesWithAPlainLoop(Device<float>& device);
void ExpectLossesAgreeWithPlainLoops(Device<float>& device);
void ExpectSumsOfManyRowsAreExact(Device<float>& device);
// Of any size, transposed or not, added or not; `error` is what the device rounds
// factors to, relative to them.
void ExpectProductsAgreeWithAPlainLoop(Device<float>& device, double error = 0);

// Of every rule that needs no norms, of ordinary numbers and of what a processor may trip
// over: parameters and slots have the bits of ApplyUpdate. T is float or double.
template <typename T>
void ExpectUpdatesHaveTheBitsOfTheHost(Device<T>& device);

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_NN_DEVICE_CONTRACT_H_
