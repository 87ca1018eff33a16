// Initial values of parameters.

#ifndef SYNCGRADS_WORKER_NN_LAYERS_INITIALISE_H_
#define SYNCGRADS_WORKER_NN_LAYERS_INITIALISE_H_

#include <cstdint>

#include "worker/nn/parameter.h"

namespace syncgrads {

// The distributions of initial weights. i is the number of inputs (fan-in) and o the number of
// outputs (fan-out). For convolutions these are input or output channels times the window's
// area.
enum class Initialisation {
  kGlorotUniform,  // uniform in +-sqrt(6 / (i + o)) (Glorot and Bengio 2010)
  kGlorotNormal,   // normal, variance 2 / (i + o)
  kHeUniform,      // uniform in +-sqrt(6 / i) (He et al. 2015)
  kHeNormal,       // normal, variance 2 / i
  kHeNormalOut,    // normal, variance 2 / o (ResNet)
  kLecunUniform,   // uniform in +-sqrt(3 / i) (LeCun et al. 1998)
  kLecunNormal,    // normal, variance 1 / i
  kZeros,
};

// Sets the host's values of `parameter`, as a function of `seed` and the parameter's name.
// `inputs` and `outputs` are its fan-in and fan-out.
template <typename T>
void InitialiseWeights(Initialisation initialisation, int64_t inputs, int64_t outputs,
                       uint64_t seed, Parameter<T>& parameter);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_LAYERS_INITIALISE_H_
