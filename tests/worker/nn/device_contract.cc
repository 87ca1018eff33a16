#include "tests/worker/nn/device_contract.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/optim/optimizer.h"
#include "common/optim/update.h"
#include "tests/common/kernels/awkward.h"
#include "tests/common/optim/every_rule.h"
#include "tests/worker/nn/layer_reference.h"
#include "worker/base/random.h"
#include "worker/nn/device_matrix.h"

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

// An array in the device's memory.
template <typename T>
class There {
 public:
  There(Device<float>& device, size_t count)
      : values_(device.memory(), 1, static_cast<int64_t>(count)) {}
  There(Device<float>& device, const Numbers& numbers) : There(device, numbers.size()) {
    const std::vector<T> values(numbers.begin(), numbers.end());
    device.memory().Upload(values.data(), values_.bytes(), values_.data());
  }
  operator T*() { return values_.data(); }

  std::vector<T> Fetch() {
    Matrix<T> matrix;
    const absl::Status status = values_.Fetch(matrix);
    EXPECT_TRUE(status.ok()) << status;
    return {matrix.data(), matrix.data() + matrix.size()};
  }

 private:
  DeviceMatrix<T> values_;
};
using Floats = There<float>;

// Each element of `actual` is a sum of `terms` products of numbers below 1. `error` is the relative
// error of each product.
void ExpectNear(const std::vector<float>& actual, const Numbers& expected, int64_t terms,
                double error = 0) {
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double difference = std::fabs(actual[i] - expected[i]);
    largest = difference > largest || std::isnan(difference) ? difference : largest;
  }
  EXPECT_LT(largest, (1e-7 + error) * static_cast<double>(terms) + 1e-6);
}

Window WindowOf(const ConvolutionSize& size) {
  return *Window::Create("conv", size.input, size.window, size.window, size.stride, size.padding);
}

double Dot(const std::vector<float>& a, const Numbers& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

double Dot(const Numbers& a, const Numbers& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

template <typename T>
class DeviceArray {
 public:
  DeviceArray(Device<T>& device, const Bytes& bytes)
      : values_(device.memory(), 1, static_cast<int64_t>(bytes.size() / sizeof(T))) {
    device.memory().Upload(bytes.data(), bytes.size(), values_.data());
  }
  T* data() { return values_.data(); }

  testing::AssertionResult Has(const Bytes& bytes) {
    Matrix<T> fetched;
    const absl::Status status = values_.Fetch(fetched);
    if (!status.ok()) return testing::AssertionFailure() << status;
    return SameBits(DTypeOf<T>::value, reinterpret_cast<const std::byte*>(fetched.data()),
                    bytes.data(), static_cast<size_t>(fetched.size()));
  }

 private:
  DeviceMatrix<T> values_;
};

// Makes numbers as they occur in training, or special ones if `awkward`.
template <typename T>
Bytes SomeNumbers(size_t count, bool awkward, std::mt19937_64& random) {
  if (awkward) return AwkwardElements(DTypeOf<T>::value, count, 0, random);
  Bytes bytes(count * sizeof(T), 0);
  for (size_t i = 0; i < count; ++i) {
    const T value = static_cast<T>(std::normal_distribution<double>(0, 0.1)(random));
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}

}  // namespace

template <typename T>
void ExpectUpdatesHaveTheBitsOfTheHost(Device<T>& device) {
  constexpr uint64_t kSteps = 6;
  std::mt19937_64 random(20);
  for (const Optimizer& rule : kOptimizers) {
    if (NeedsNorms(rule)) continue;
    // The largest count is divided among several threads of a CPU.
    for (const size_t count : {1, 3, 257, 40001}) {
      for (const bool awkward : {false, true}) {
        SCOPED_TRACE(absl::StrCat(ToString(rule), ", ", count, " of ", sizeof(T), " bytes",
                                  awkward ? ", awkward" : ""));
        Bytes values = SomeNumbers<T>(count, awkward, random);
        std::vector<Bytes> slots;
        for (int s = 0; s < SlotCount(rule); ++s) slots.emplace_back(values.size(), 0);
        DeviceArray<T> values_there(device, values);
        std::vector<DeviceArray<T>> slots_there;
        std::vector<T*> slots_at;
        std::vector<std::byte*> bytes;
        for (Bytes& slot : slots) {
          slots_there.emplace_back(device, slot);
          slots_at.push_back(slots_there.back().data());
          bytes.push_back(slot.data());
        }
        const std::vector<const std::byte*> old(bytes.begin(), bytes.end());
        for (uint64_t step = 1; step <= kSteps; ++step) {
          const Bytes gradient = SomeNumbers<T>(count, awkward, random);
          DeviceArray<T> gradient_there(device, gradient);
          device.Update(rule, step, static_cast<int64_t>(count), gradient_there.data(),
                        values_there.data(), slots_at.data());
          ApplyUpdate(rule, DTypeOf<T>::value, step, gradient.data(), count, values.data(),
                      values.data(), old, bytes);
        }
        EXPECT_TRUE(values_there.Has(values));
        for (size_t s = 0; s < slots.size(); ++s) {
          EXPECT_TRUE(slots_there[s].Has(slots[s])) << "slot " << s;
        }
      }
    }
  }
}
template void ExpectUpdatesHaveTheBitsOfTheHost(Device<float>&);
template void ExpectUpdatesHaveTheBitsOfTheHost(Device<double>&);

std::vector<ConvolutionSize> ConvolutionSizes() {
  return {// A block of windows spans many samples in one case, and a part of one in another.
          {Shape::Image(1, 8, 8), 5, 1, 2, 33, 6},
          {Shape::Image(3, 70, 66), 7, 2, 3, 2, 64},
          {Shape::Image(40, 60, 30), 3, 1, 1, 2, 16},
          {Shape::Image(32, 20, 20), 1, 1, 0, 3, 24},
          // Few windows with many weights.
          {Shape::Image(64, 2, 2), 3, 1, 1, 7, 96},
          {Shape::Image(64, 1, 1), 1, 1, 0, 9, 128},
          {Shape::Image(16, 4, 4), 1, 2, 0, 5, 64}};
}

void ExpectConvolutionAgreesWithAPlainLoop(const ConvolutionSize& size, Device<float>& device) {
  const Window window = WindowOf(size);
  const Numbers input = RandomNumbers(size.samples * size.input.size(), 1);
  const Numbers weights = RandomNumbers(size.outputs * window.size(), 2);
  Floats output(device, size.samples * window.positions() * size.outputs);
  Floats there(device, input), weights_there(device, weights);
  device.Convolve(window, size.samples, size.outputs, there, weights_there, output);
  ExpectNear(output.Fetch(),
             reference::Convolve(window, size.samples, size.outputs, input, weights),
             window.size());
}

// <conv(x, w), g> is linear in x and in w. Its derivatives in a direction must equal the plain
// loop's result for that direction.
void ExpectConvolutionGradientsAreAdjointsOfAPlainLoop(const ConvolutionSize& size,
                                                       Device<float>& device) {
  const Window window = WindowOf(size);
  const Numbers input = RandomNumbers(size.samples * size.input.size(), 1);
  const Numbers weights = RandomNumbers(size.outputs * window.size(), 2);
  const Numbers gradient = RandomNumbers(size.samples * window.positions() * size.outputs, 3);
  Floats input_there(device, input), weights_there(device, weights);
  Floats gradient_there(device, gradient);
  Floats by_weights_there(device, weights.size()), by_input_there(device, input.size());
  device.ConvolveBackward(window, size.samples, size.outputs, input_there, weights_there,
                          gradient_there, by_weights_there, by_input_there);
  const std::vector<float> by_weights = by_weights_there.Fetch();
  const std::vector<float> by_input = by_input_there.Fetch();
  for (uint64_t direction = 10; direction < 14; ++direction) {
    const Numbers input_step = RandomNumbers(static_cast<int64_t>(input.size()), direction);
    const Numbers weights_step = RandomNumbers(static_cast<int64_t>(weights.size()), direction);
    const double expected_input =
        Dot(reference::Convolve(window, size.samples, size.outputs, input_step, weights), gradient);
    const double expected_weights =
        Dot(reference::Convolve(window, size.samples, size.outputs, input, weights_step), gradient);
    const double scale = std::sqrt(static_cast<double>(gradient.size() * window.size()));
    EXPECT_NEAR(Dot(by_input, input_step), expected_input, 1e-4 * scale);
    EXPECT_NEAR(Dot(by_weights, weights_step), expected_weights, 1e-4 * scale);
  }
  // Without the gradient of the input, the gradient of the weights is the same.
  Floats alone(device, weights.size());
  device.ConvolveBackward(window, size.samples, size.outputs, input_there, weights_there,
                          gradient_there, alone, nullptr);
  EXPECT_EQ(alone.Fetch(), by_weights);
}

void ExpectPoolingAgreesWithAPlainLoop(Device<float>& device) {
  const Window window = *Window::Create("pool", Shape::Image(8, 25, 30), 3, 3, 2, 1);
  constexpr int64_t kSamples = 6;
  const Numbers input = RandomNumbers(kSamples * window.input.size(), 1);
  const size_t size = kSamples * window.positions() * window.input.channels;
  Floats there(device, input), largest(device, size), mean(device, size);
  There<int32_t> chosen(device, size);
  device.MaxPool(window, kSamples, there, largest, chosen);
  device.AveragePool(window, kSamples, there, mean);
  ExpectNear(largest.Fetch(), reference::Pool(window, kSamples, reference::Pooling::kMax, input),
             1);
  ExpectNear(mean.Fetch(), reference::Pool(window, kSamples, reference::Pooling::kAverage, input),
             9);
}

void ExpectMaxPoolingHandsOnANan(Device<float>& device) {
  const Window window = *Window::Create("pool", Shape::Image(1, 2, 2), 2, 2, 2, 0);
  for (int at = 0; at < 4; ++at) {
    Numbers input = {1, 2, 3, 4};
    input[at] = NAN;
    Floats there(device, input), output(device, 1);
    There<int32_t> chosen(device, 1);
    device.MaxPool(window, 1, there, output, chosen);
    EXPECT_TRUE(std::isnan(output.Fetch()[0])) << at;
    EXPECT_EQ(chosen.Fetch()[0], at);
  }
}

void ExpectBatchNormAgreesWithAPlainLoop(Device<float>& device) {
  constexpr int64_t kRows = 3000, kChannels = 300;
  const Numbers input = RandomNumbers(kRows * kChannels, 1);
  const Numbers weight = RandomNumbers(kChannels, 2);
  const Numbers bias = RandomNumbers(kChannels, 3);
  Floats there(device, input), weight_there(device, weight), bias_there(device, bias);
  Floats mean(device, kChannels), inverse(device, kChannels), variance(device, kChannels);
  Floats output(device, kRows * kChannels);
  const BatchMoments<float> moments = {mean, inverse};
  device.FindMoments(kRows, kChannels, 1e-5f, there, moments, variance);
  device.Normalise(kRows, kChannels, moments, weight_there, bias_there, there, output);
  ExpectNear(output.Fetch(), reference::NormaliseBatch(kRows, kChannels, 1e-5, weight, bias, input),
             10);
  // Normalisation with running statistics, which here are those of this batch.
  Floats again(device, kChannels);
  device.InvertDeviations(kChannels, 1e-5f, variance, again);
  const std::vector<float> expected = inverse.Fetch();
  ExpectNear(again.Fetch(), Numbers(expected.begin(), expected.end()), 10);
}

void ExpectSmoothedLossesAgree(Device<float>& device, double smoothing) {
  constexpr int64_t kRows = 40, kClasses = 7;
  const Numbers outputs = RandomNumbers(kRows * kClasses, 1);
  Numbers targets, losses, gradient;
  for (int64_t row = 0; row < kRows; ++row) {
    const int64_t target = row % kClasses;
    targets.push_back(static_cast<double>(target));
    double sum = 0;
    for (int64_t i = 0; i < kClasses; ++i) sum += std::exp(outputs[row * kClasses + i]);
    double loss = 0;
    for (int64_t i = 0; i < kClasses; ++i) {
      const double probability = std::exp(outputs[row * kClasses + i]) / sum;
      const double wanted = (i == target ? 1 - smoothing : 0) + smoothing / kClasses;
      loss -= wanted * std::log(probability);
      gradient.push_back((probability - wanted) / 3);
    }
    losses.push_back(loss);
  }
  Floats outputs_there(device, outputs), gradient_there(device, gradient.size());
  There<double> targets_there(device, targets), losses_there(device, kRows);
  There<double> total(device, Numbers{10});
  device.FindLosses({LossKind::kLogitCrossEntropy, smoothing}, kRows, kClasses, outputs_there,
                    targets_there, 3, losses_there, gradient_there);
  device.AddUp(kRows, 0.5, losses_there, total);
  ExpectNear(gradient_there.Fetch(), gradient, 1);
  double sum = 0;
  for (const double loss : losses) sum += loss;
  EXPECT_NEAR(total.Fetch()[0], 10 + sum / 2, 1e-9);
}

void ExpectLossesAgreeWithPlainLoops(Device<float>& device) {
  for (const double smoothing : {0.0, 0.1}) ExpectSmoothedLossesAgree(device, smoothing);
}

// 2^24 is the value at which a float sum of ones stops growing.
void ExpectSumsOfManyRowsAreExact(Device<float>& device) {
  for (const int64_t columns : {1, 3, 700}) {
    const int64_t rows = columns == 1 ? (int64_t{1} << 24) + 5 : 5000;
    Floats there(device, Numbers(rows * columns, 1.0)), sums(device, columns);
    device.SumRows(rows, columns, there, sums);
    EXPECT_EQ(sums.Fetch(), std::vector<float>(columns, static_cast<float>(rows))) << columns;
  }
}

void ExpectProductsAgreeWithAPlainLoop(Device<float>& device, double error) {
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
    for (const int variant : {0, 1, 2, 3, 4, 5, 6, 7}) {
      const bool transpose_a = (variant & 1) != 0;
      const bool transpose_b = (variant & 2) != 0;
      const bool accumulate = (variant & 4) != 0;
      const Numbers a = RandomNumbers(size.rows * size.inner, 1);
      const Numbers b = RandomNumbers(size.inner * size.columns, 2);
      Numbers expected = RandomNumbers(size.rows * size.columns, 3);
      Floats c(device, expected), a_there(device, a), b_there(device, b);
      if (!accumulate) std::fill(expected.begin(), expected.end(), 0.0);
      for (int64_t row = 0; row < size.rows; ++row) {
        for (int64_t column = 0; column < size.columns; ++column) {
          for (int64_t i = 0; i < size.inner; ++i) {
            expected[row * size.columns + column] +=
                a[transpose_a ? i * size.rows + row : row * size.inner + i] *
                b[transpose_b ? column * size.inner + i : i * size.columns + column];
          }
        }
      }
      MatrixProduct<float> product;
      product.rows = size.rows;
      product.columns = size.columns;
      product.inner = size.inner;
      product.a = a_there;
      product.a_stride = transpose_a ? size.rows : size.inner;
      product.transpose_a = transpose_a;
      product.b = b_there;
      product.b_stride = transpose_b ? size.inner : size.columns;
      product.transpose_b = transpose_b;
      product.c = c;
      product.c_stride = size.columns;
      product.accumulate = accumulate;
      device.Multiply(product);
      ExpectNear(c.Fetch(), expected, size.inner, error);
    }
  }
}

}  // namespace syncgrads
