#include "worker/nn/layers/initialise.h"

#include <cmath>

#include "worker/base/random.h"

namespace syncgrads {
namespace {

template <typename T>
void FillUniform(double limit, RandomStream& random, Parameter<T>& parameter) {
  for (Eigen::Index i = 0; i < parameter.values.size(); ++i) {
    parameter.values.data()[i] = static_cast<T>(limit * (2 * random.NextUniform() - 1));
  }
}

// The Box-Muller transform: "A note on the generation of random normal deviates", 1958.
template <typename T>
void FillNormal(double variance, RandomStream& random, Parameter<T>& parameter) {
  constexpr double kTwoPi = 6.283185307179586;
  const double deviation = std::sqrt(variance);
  for (Eigen::Index i = 0; i < parameter.values.size(); ++i) {
    // 1 - NextUniform() is in (0, 1], where the logarithm is finite.
    const double radius = std::sqrt(-2 * std::log(1 - random.NextUniform()));
    parameter.values.data()[i] =
        static_cast<T>(deviation * radius * std::cos(kTwoPi * random.NextUniform()));
  }
}

}  // namespace

template <typename T>
void InitialiseWeights(Initialisation initialisation, int64_t inputs, int64_t outputs,
                       uint64_t seed, Parameter<T>& parameter) {
  RandomStream random(seed, {HashBytes(parameter.name)});
  const double in = static_cast<double>(inputs);
  const double out = static_cast<double>(outputs);
  switch (initialisation) {
    case Initialisation::kGlorotUniform:
      return FillUniform(std::sqrt(6 / (in + out)), random, parameter);
    case Initialisation::kGlorotNormal:
      return FillNormal(2 / (in + out), random, parameter);
    case Initialisation::kHeUniform:
      return FillUniform(std::sqrt(6 / in), random, parameter);
    case Initialisation::kHeNormal:
      return FillNormal(2 / in, random, parameter);
    case Initialisation::kHeNormalOut:
      return FillNormal(2 / out, random, parameter);
    case Initialisation::kLecunUniform:
      return FillUniform(std::sqrt(3 / in), random, parameter);
    case Initialisation::kLecunNormal:
      return FillNormal(1 / in, random, parameter);
    case Initialisation::kZeros:
      parameter.values.setZero();
      return;
  }
}

template void InitialiseWeights(Initialisation, int64_t, int64_t, uint64_t, Parameter<float>&);
template void InitialiseWeights(Initialisation, int64_t, int64_t, uint64_t, Parameter<double>&);

}  // namespace syncgrads
