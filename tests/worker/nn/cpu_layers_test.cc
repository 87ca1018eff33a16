// Every layer on the CPU, with each instruction set and with several numbers of threads.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "examples/own_layer/swish.h"
#include "tests/worker/nn/layer_cases.h"
#include "tests/worker/nn/layer_contract.h"
#include "worker/nn/cpu/cpu_device.h"

namespace syncgrads {
namespace {

// Returns the layers of every device, and a custom layer, which only the CPU has.
std::vector<LayerCase> AllCases() {
  std::vector<LayerCase> cases = AllLayerCases();
  cases.push_back(
      Case("a layer of one's own", Shape::Image(2, 3, 2),
           []<typename T>(Device<T>& device, const Shape& shape) -> std::unique_ptr<Layer<T>> {
             CustomLayers custom;
             custom.Add<Swish>("swish");
             return *custom.Create<T>("swish", {"swish1", shape, {{"slope", 1.5}}}, device);
           }));
  return cases;
}

template <typename T>
std::vector<const CpuKernels<T>*> AllKernels() {
  std::vector<const CpuKernels<T>*> kernels = {&BaselineKernels<T>()};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    kernels.push_back(&Avx2Kernels<T>());
  }
  // The kernels that the CPU device chooses, if they are not in the list yet.
  if (&ChooseCpuKernels<T>() != kernels.back()) kernels.push_back(&ChooseCpuKernels<T>());
  return kernels;
}

// Parameters: the index of the instruction set, and the number of threads.
class CpuLayersTest : public testing::TestWithParam<std::tuple<size_t, int>> {
 protected:
  CpuLayersTest() {
    const auto [kernels, threads] = GetParam();
    const auto floats = AllKernels<float>();
    const auto doubles = AllKernels<double>();
    if (kernels >= floats.size()) return;
    floats_ = std::make_unique<CpuDevice<float>>(threads, *floats[kernels]);
    doubles_ = std::make_unique<CpuDevice<double>>(threads, *doubles[kernels]);
  }

  void ForEachCase(const std::function<void(const LayerCase&)>& function) {
    if (floats_ == nullptr) GTEST_SKIP() << "this processor has not so many instruction sets";
    for (const LayerCase& layer : AllCases()) function(layer);
  }

  std::unique_ptr<CpuDevice<float>> floats_;
  std::unique_ptr<CpuDevice<double>> doubles_;
};

INSTANTIATE_TEST_SUITE_P(InstructionSetsAndThreads, CpuLayersTest,
                         testing::Combine(testing::Values(0u, 1u, 2u), testing::Values(1, 3)));

TEST_P(CpuLayersTest, GradientsAgreeWithFiniteDifferences) {
  ForEachCase(
      [&](const LayerCase& layer) { ExpectGradientsOfFiniteDifferences(layer, *doubles_); });
}

TEST_P(CpuLayersTest, FloatAgreesWithDouble) {
  ForEachCase(
      [&](const LayerCase& layer) { ExpectFloatAgreesWithDouble(layer, *floats_, *doubles_); });
}

TEST_P(CpuLayersTest, GradientOfABatchIsTheMeanOfItsSamplesGradients) {
  ForEachCase([&](const LayerCase& layer) { ExpectGradientIsTheMeanOverSamples(layer, *floats_); });
}

TEST_P(CpuLayersTest, TheSameCallsGiveTheSameBits) {
  ForEachCase([&](const LayerCase& layer) { ExpectTheSameBits(layer, *floats_); });
}

}  // namespace
}  // namespace syncgrads
