// The device contract: ResNet-34 as a whole, and layer by layer.

#ifndef SYNCGRADS_TESTS_WORKER_NN_RESNET_CONTRACT_H_
#define SYNCGRADS_TESTS_WORKER_NN_RESNET_CONTRACT_H_

#include "worker/nn/device.h"

namespace syncgrads {

// The loss and all gradients of a batch agree with those of the processor in float32.
void ExpectResNet34AgreesWithTheProcessor(Device<float>& device);

// For devices that store activations as bfloat16. Each layer, or residual block, gets the
// activations that the device's layer before has stored, and the gradients of the layer after it.
// Its results agree with double precision, up to the roundings in this layer or block.
void ExpectLayersOfResNet34AgreeWithDouble(Device<float>& device);

// For devices that store activations as bfloat16. The gradients of the whole model are about as
// close to those in double precision as the gradients of RoundingDevice. There is no fixed bound
// that would be narrow enough to be useful: in a batch of two small images, the outputs of the last
// blocks are wrong by a tenth, so that several of a hundred ReLUs have another derivative.
void ExpectResNet34IsAsCloseToDoubleAsRoundingAllows(Device<float>& device);

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_NN_RESNET_CONTRACT_H_
