// The processor's operations against plain loops, at sizes that go through each
// of its ways to compute them.

#include "worker/nn/cpu/cpu_device.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/worker/nn/layer_reference.h"
#include "worker/base/random.h"

namespace syncgrads {
namespace {

using reference::Numbers;

Numbers RandomNumbers(int64_t count, uint64_t name) {
  RandomStream random(4, {name});
  Numbers numbers;
  for (int64_t i = 0; i < count; ++i) {
    numbers.push_back(static_cast<float>(2 * random.NextUniform() - 1));
  }
  return numbers;
}

std::vector<float> Floats(const Numbers& numbers) { return {numbers.begin(), numbers.end()}; }

// `terms` products of numbers below 1 are added up for each.
void ExpectNear(const std::vector<float>& actual, const Numbers& expected, int64_t terms) {
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    largest = std::max(largest, std::fabs(actual[i] - expected[i]));
  }
  EXPECT_LT(largest, 1e-7 * static_cast<double>(terms) + 1e-6);
}

struct ConvolutionSize {
  Shape input;
  int64_t window, stride, padding, samples, outputs;
};

class ConvolutionTest : public testing::TestWithParam<std::tuple<ConvolutionSize, int>> {};

INSTANTIATE_TEST_SUITE_P(
    Sizes, ConvolutionTest,
    testing::Combine(testing::Values(
                         // A block of windows spans many samples; one is a part of a sample.
                         ConvolutionSize{Shape::Image(1, 8, 8), 5, 1, 2, 33, 6},
                         ConvolutionSize{Shape::Image(3, 70, 66), 7, 2, 3, 2, 64},
                         ConvolutionSize{Shape::Image(40, 60, 30), 3, 1, 1, 2, 16},
                         ConvolutionSize{Shape::Image(32, 20, 20), 1, 1, 0, 3, 24},
                         // Few windows, many weights.
                         ConvolutionSize{Shape::Image(64, 2, 2), 3, 1, 1, 7, 96},
                         ConvolutionSize{Shape::Image(64, 1, 1), 1, 1, 0, 9, 128},
                         ConvolutionSize{Shape::Image(16, 4, 4), 1, 2, 0, 5, 64}),
                     testing::Values(1, 2, 3)));

TEST_P(ConvolutionTest, AgreesWithAPlainLoop) {
  const auto& [size, threads] = GetParam();
  const Window window =
      *Window::Create("conv", size.input, size.window, size.window, size.stride, size.padding);
  const Numbers input = RandomNumbers(size.samples * size.input.size(), 1);
  const Numbers weights = RandomNumbers(size.outputs * window.size(), 2);
  CpuDevice<float> device(threads);
  std::vector<float> output(size.samples * window.positions() * size.outputs);
  device.Convolve(window, size.samples, size.outputs, Floats(input).data(), Floats(weights).data(),
                  output.data());
  ExpectNear(output, reference::Convolve(window, size.samples, size.outputs, input, weights),
             window.size());
}

// <conv(x, w), g> is linear in x and in w: its derivatives, taken in a direction,
// must be what the plain loop gives for that direction.
TEST_P(ConvolutionTest, GradientsAreTheAdjointsOfAPlainLoop) {
  const auto& [size, threads] = GetParam();
  const Window window =
      *Window::Create("conv", size.input, size.window, size.window, size.stride, size.padding);
  const Numbers input = RandomNumbers(size.samples * size.input.size(), 1);
  const Numbers weights = RandomNumbers(size.outputs * window.size(), 2);
  const Numbers gradient = RandomNumbers(size.samples * window.positions() * size.outputs, 3);
  CpuDevice<float> device(threads);
  std::vector<float> by_weights(weights.size()), by_input(input.size());
  device.ConvolveBackward(window, size.samples, size.outputs, Floats(input).data(),
                          Floats(weights).data(), Floats(gradient).data(), by_weights.data(),
                          by_input.data());
  const auto dot = [](const auto& a, const auto& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
    return sum;
  };
  for (uint64_t direction = 10; direction < 14; ++direction) {
    const Numbers input_step = RandomNumbers(static_cast<int64_t>(input.size()), direction);
    const Numbers weights_step = RandomNumbers(static_cast<int64_t>(weights.size()), direction);
    const double expected_input =
        dot(reference::Convolve(window, size.samples, size.outputs, input_step, weights), gradient);
    const double expected_weights =
        dot(reference::Convolve(window, size.samples, size.outputs, input, weights_step), gradient);
    const double scale = std::sqrt(static_cast<double>(gradient.size() * window.size()));
    EXPECT_NEAR(dot(by_input, input_step), expected_input, 1e-4 * scale);
    EXPECT_NEAR(dot(by_weights, weights_step), expected_weights, 1e-4 * scale);
  }
  // Without the input's gradient, the weights' is the same.
  std::vector<float> alone(weights.size());
  device.ConvolveBackward(window, size.samples, size.outputs, Floats(input).data(),
                          Floats(weights).data(), Floats(gradient).data(), alone.data(), nullptr);
  EXPECT_EQ(alone, by_weights);
}

class CpuDeviceTest : public testing::TestWithParam<int> {
 protected:
  CpuDevice<float> device_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Threads, CpuDeviceTest, testing::Values(1, 2, 4));

TEST_P(CpuDeviceTest, PoolingAgreesWithAPlainLoop) {
  const Window window = *Window::Create("pool", Shape::Image(8, 25, 30), 3, 3, 2, 1);
  constexpr int64_t kSamples = 6;
  const Numbers input = RandomNumbers(kSamples * window.input.size(), 1);
  const size_t size = kSamples * window.positions() * window.input.channels;
  std::vector<float> largest(size), mean(size);
  std::vector<int32_t> chosen(size);
  device_.MaxPool(window, kSamples, Floats(input).data(), largest.data(), chosen.data());
  device_.AveragePool(window, kSamples, Floats(input).data(), mean.data());
  ExpectNear(largest, reference::Pool(window, kSamples, reference::Pooling::kMax, input), 1);
  ExpectNear(mean, reference::Pool(window, kSamples, reference::Pooling::kAverage, input), 9);
}

TEST_P(CpuDeviceTest, MaxPoolingHandsOnANan) {
  const Window window = *Window::Create("pool", Shape::Image(1, 2, 2), 2, 2, 2, 0);
  for (int at = 0; at < 4; ++at) {
    std::vector<float> input = {1, 2, 3, 4};
    input[at] = NAN;
    float output = 0;
    int32_t chosen = -1;
    device_.MaxPool(window, 1, input.data(), &output, &chosen);
    EXPECT_TRUE(std::isnan(output)) << at;
    EXPECT_EQ(chosen, at);
  }
}

TEST_P(CpuDeviceTest, BatchNormAgreesWithAPlainLoop) {
  constexpr int64_t kRows = 3000, kChannels = 300;
  const Numbers input = RandomNumbers(kRows * kChannels, 1);
  const Numbers weight = RandomNumbers(kChannels, 2);
  const Numbers bias = RandomNumbers(kChannels, 3);
  std::vector<float> mean(kChannels), inverse(kChannels), variance(kChannels);
  std::vector<float> output(kRows * kChannels);
  const BatchMoments<float> moments = {mean.data(), inverse.data()};
  device_.FindMoments(kRows, kChannels, 1e-5f, Floats(input).data(), moments, variance.data());
  device_.Normalise(kRows, kChannels, moments, Floats(weight).data(), Floats(bias).data(),
                    Floats(input).data(), output.data());
  ExpectNear(output, reference::NormaliseBatch(kRows, kChannels, 1e-5, weight, bias, input), 10);
}

TEST_P(CpuDeviceTest, ProductsOfAnySizeAgreeWithAPlainLoop) {
  struct Size {
    int64_t rows, columns, inner;
  };
  for (const Size size : {Size{1, 1, 1},
                          {1, 50, 40},
                          {50, 1, 40},
                          {3, 4, 5},
                          {130, 70, 90},
                          {40, 400, 30},
                          {400, 30, 0}}) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        const Numbers a = RandomNumbers(size.rows * size.inner, 1);
        const Numbers b = RandomNumbers(size.inner * size.columns, 2);
        Numbers expected = RandomNumbers(size.rows * size.columns, 3);
        std::vector<float> c = Floats(expected);
        for (int64_t row = 0; row < size.rows; ++row) {
          for (int64_t column = 0; column < size.columns; ++column) {
            for (int64_t i = 0; i < size.inner; ++i) {
              expected[row * size.columns + column] +=
                  a[transpose_a ? i * size.rows + row : row * size.inner + i] *
                  b[transpose_b ? column * size.inner + i : i * size.columns + column];
            }
          }
        }
        const std::vector<float> a_floats = Floats(a), b_floats = Floats(b);
        MatrixProduct<float> product;
        product.rows = size.rows;
        product.columns = size.columns;
        product.inner = size.inner;
        product.a = a_floats.data();
        product.a_stride = transpose_a ? size.rows : size.inner;
        product.transpose_a = transpose_a;
        product.b = b_floats.data();
        product.b_stride = transpose_b ? size.inner : size.columns;
        product.transpose_b = transpose_b;
        product.c = c.data();
        product.c_stride = size.columns;
        product.accumulate = true;
        device_.Multiply(product);
        ExpectNear(c, expected, size.inner);
      }
    }
  }
}

}  // namespace
}  // namespace syncgrads
