#include "tests/worker/nn/device_contract.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/optim/optimizer.h"
#include "common/optim/update.h"
#include "tests/common/kernels/awkward.h"
#include "tests/common/optim/every_rule.h"
#include "tests/worker/nn/device_arrays.h"
#include "tests/worker/nn/layer_reference.h"

namespace syncgrads {
namespace {

constexpr Activation kActivations[] = {Activation::kIdentity, Activation::kRelu, Activation::kTanh};

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
class ArrayThere {
 public:
  ArrayThere(Device<T>& device, const Bytes& bytes)
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
  DeviceArray<T> values_;
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

void ExpectPoolingAgrees(Device<float>& device, const Shape& image) {
  SCOPED_TRACE(absl::StrCat(image.channels, " channels"));
  const Window window = *Window::Create("pool", image, 3, 3, 2, 1);
  constexpr int64_t kSamples = 6;
  const Numbers input = RandomNumbers(device, kSamples * window.input.size(), 1);
  const size_t size = kSamples * window.positions() * window.input.channels;
  Activations there(device, input), largest(device, size), mean(device, size);
  There<int32_t> chosen(device, size);
  device.Pool(Pooling::kMax, window, kSamples, there, largest, chosen);
  device.Pool(Pooling::kAverage, window, kSamples, there, mean, nullptr);
  ExpectNear(largest, reference::Pool(window, kSamples, reference::Pooling::kMax, input), 1);
  ExpectNear(mean, reference::Pool(window, kSamples, reference::Pooling::kAverage, input), 9);

  const Numbers gradient = RandomNumbers(device, static_cast<int64_t>(size), 2);
  Activations gradient_there(device, gradient), by_input(device, input.size());
  device.PoolBackward(Pooling::kMax, window, kSamples, chosen, gradient_there, by_input);
  const std::vector<int32_t> positions = chosen.Fetch();
  Numbers expected(input.size());
  for (size_t i = 0; i < size; ++i) {
    const size_t sample = i / (size / kSamples);
    expected[sample * window.input.size() + positions[i]] += gradient[i];
  }
  ExpectNear(by_input, expected, 4);
}

}  // namespace

// An array of parameters with its slots, on the host and on the device.
template <typename T>
class UpdatedArray {
 public:
  UpdatedArray(Device<T>& device, const Optimizer& rule, uint64_t updates, Bytes values)
      : device_(&device),
        updates_(updates),
        values_(std::move(values)),
        values_there_(device, values_),
        gradient_there_(device, values_) {
    for (int s = 0; s < SlotCount(rule); ++s) {
      slots_.emplace_back(values_.size(), 0);
      slots_there_.emplace_back(device, slots_.back());
    }
  }

  // Updates the host's copy, and returns the update of the device's.
  ArrayUpdate<T> Update(const Optimizer& rule, const Bytes& gradient) {
    device_->memory().Upload(gradient.data(), gradient.size(), gradient_there_.data());
    ArrayUpdate<T> update = {++updates_, static_cast<int64_t>(values_.size() / sizeof(T)),
                             gradient_there_.data(), values_there_.data()};
    std::vector<std::byte*> slots;
    for (size_t s = 0; s < slots_.size(); ++s) {
      update.slots[s] = slots_there_[s].data();
      slots.push_back(slots_[s].data());
    }
    const std::vector<const std::byte*> old(slots.begin(), slots.end());
    ApplyUpdate(rule, DTypeOf<T>::value, updates_, gradient.data(), values_.size() / sizeof(T),
                values_.data(), values_.data(), old, slots);
    return update;
  }

  void ExpectEqual() {
    EXPECT_TRUE(values_there_.Has(values_));
    for (size_t s = 0; s < slots_.size(); ++s) {
      EXPECT_TRUE(slots_there_[s].Has(slots_[s])) << "slot " << s;
    }
  }

 private:
  Device<T>* device_;
  uint64_t updates_;
  Bytes values_;
  ArrayThere<T> values_there_;
  std::vector<Bytes> slots_;
  std::vector<ArrayThere<T>> slots_there_;
  ArrayThere<T> gradient_there_;
};

template <typename T>
void ExpectUpdatesHaveTheBitsOfTheHost(Device<T>& device) {
  constexpr uint64_t kSteps = 6;
  std::mt19937_64 random(20);
  // The largest count is divided among several threads of a CPU.
  std::vector<size_t> counts = {1, 3, 257, 40001, 0};
  counts.resize(34, 2);  // more arrays than one launch of a kernel updates
  for (const Optimizer& rule : kOptimizers) {
    if (NeedsNorms(rule)) continue;
    for (const bool awkward : {false, true}) {
      SCOPED_TRACE(
          absl::StrCat(ToString(rule), ", ", sizeof(T), " bytes", awkward ? ", awkward" : ""));
      std::vector<UpdatedArray<T>> arrays;
      for (size_t i = 0; i < counts.size(); ++i) {
        // Arrays that have been updated already are between others.
        arrays.emplace_back(device, rule, /*updates=*/i % 7 == 2 ? 3 : 0,
                            SomeNumbers<T>(counts[i], awkward, random));
      }
      for (uint64_t step = 1; step <= kSteps; ++step) {
        std::vector<ArrayUpdate<T>> updates;
        for (size_t i = 0; i < counts.size(); ++i) {
          updates.push_back(arrays[i].Update(rule, SomeNumbers<T>(counts[i], awkward, random)));
        }
        device.Update(rule, updates);
      }
      for (UpdatedArray<T>& array : arrays) array.ExpectEqual();
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
  const Numbers input = RandomNumbers(device, size.samples * size.input.size(), 1);
  const Numbers weights = RandomNumbers(device, size.outputs * window.size(), 2);
  const Numbers bias = RandomNumbers(device, size.outputs, 3);
  Activations there(device, input);
  Floats weights_there(device, weights), bias_there(device, bias);
  const Numbers sums = reference::Convolve(window, size.samples, size.outputs, input, weights);
  for (const Activation activation : kActivations) {
    const bool has_bias = activation != Activation::kIdentity;
    Numbers expected = sums;
    for (size_t i = 0; i < sums.size(); ++i) {
      const double shifted = sums[i] + (has_bias ? bias[i % bias.size()] : 0);
      expected[i] = ActivationOf(activation, shifted);
    }
    Activations output(device, expected.size());
    device.Convolve({window, size.outputs, weights_there,
                     has_bias ? static_cast<float*>(bias_there) : nullptr, activation},
                    size.samples, there, output);
    // The sums are rounded before the bias is added.
    ExpectNear(output, expected, window.size(), StorageError(device), 2);
  }
}

// <conv(x, w), g> is linear in x and in w. Its derivatives in a direction must equal the plain
// loop's result for that direction.
void ExpectConvolutionGradientsAreAdjointsOfAPlainLoop(const ConvolutionSize& size,
                                                       Device<float>& device) {
  const Window window = WindowOf(size);
  const Numbers input = RandomNumbers(device, size.samples * size.input.size(), 1);
  const Numbers weights = RandomNumbers(device, size.outputs * window.size(), 2);
  const Numbers output = RandomNumbers(device, size.samples * window.positions() * size.outputs, 4);
  Numbers gradient = RandomNumbers(device, static_cast<int64_t>(output.size()), 3);
  Activations input_there(device, input), output_there(device, output);
  Activations gradient_there(device, gradient), by_input_there(device, input.size());
  Floats weights_there(device, weights), bias_there(device, size.outputs);
  Floats by_weights_there(device, weights.size());
  const Convolution<float> layer = {window, size.outputs, weights_there, bias_there,
                                    Activation::kRelu};
  device.ConvolveBackward(layer, size.samples, input_there, output_there, gradient_there,
                          {by_weights_there, bias_there, by_input_there});
  Numbers by_bias(size.outputs);
  for (size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = ActivationBackward(Activation::kRelu, output[i], gradient[i]);
    by_bias[i % by_bias.size()] += gradient[i];
  }
  ExpectNear(gradient_there, gradient, 0);
  ExpectNear(bias_there.Fetch(), by_bias, static_cast<int64_t>(output.size()) / size.outputs);
  const std::vector<float> by_weights = by_weights_there.Fetch();
  const std::vector<float> by_input = by_input_there.Fetch();
  for (uint64_t direction = 10; direction < 14; ++direction) {
    const Numbers input_step = RandomNumbers(device, static_cast<int64_t>(input.size()), direction);
    const Numbers weights_step =
        RandomNumbers(device, static_cast<int64_t>(weights.size()), direction);
    const double expected_input =
        Dot(reference::Convolve(window, size.samples, size.outputs, input_step, weights), gradient);
    const double expected_weights =
        Dot(reference::Convolve(window, size.samples, size.outputs, input, weights_step), gradient);
    const double scale = std::sqrt(static_cast<double>(gradient.size() * window.size()));
    // The gradients of the rows may be rounded, and so are their sums. cuDNN rounds the gradients
    // of the weights as it rounds activations.
    const double allowed = (1e-4 + 2 * StorageError(device)) * scale;
    EXPECT_NEAR(Dot(by_input, input_step), expected_input, allowed);
    EXPECT_NEAR(Dot(by_weights, weights_step), expected_weights, allowed);
  }
  // Without a bias, an activation, and the gradient of the input, the gradient of the weights is
  // the same.
  Floats alone(device, weights.size());
  device.ConvolveBackward({window, size.outputs, weights_there}, size.samples, input_there,
                          output_there, gradient_there, {alone});
  EXPECT_EQ(alone.Fetch(), by_weights);
}

void ExpectPoolingAgreesWithAPlainLoop(Device<float>& device) {
  ExpectPoolingAgrees(device, Shape::Image(8, 25, 30));
  for (const int64_t channels : {1, 3, 4, 6, 13, 20}) {
    ExpectPoolingAgrees(device, Shape::Image(channels, 5, 4));
  }
}

void ExpectMaxPoolingHandsOnANan(Device<float>& device) {
  constexpr int kChannels = 7;
  const Window window = *Window::Create("pool", Shape::Image(kChannels, 2, 2), 2, 2, 2, 0);
  for (int at = 0; at < 4; ++at) {
    Numbers input;
    for (int i = 0; i < 4 * kChannels; ++i) input.push_back(i / kChannels == at ? NAN : i);
    Activations there(device, input), output(device, kChannels);
    There<int32_t> chosen(device, kChannels);
    device.Pool(Pooling::kMax, window, 1, there, output, chosen);
    for (int channel = 0; channel < kChannels; ++channel) {
      EXPECT_TRUE(std::isnan(output.Fetch()[channel])) << at;
      EXPECT_EQ(chosen.Fetch()[channel], at * kChannels + channel);
    }
  }
}

// 2^24 is the value at which a float sum of ones stops growing.
void ExpectSumsOfManyRowsAreExact(Device<float>& device) {
  for (const int64_t columns : {1, 3, 700}) {
    const int64_t rows = columns == 1 ? (int64_t{1} << 24) + 5 : 5000;
    Activations gradient(device, Numbers(rows * columns, 1.0)), input(device, Numbers(rows, 1.0));
    Floats weights(device, columns), sums(device, columns);
    device.MultiplyBackward({1, columns, weights, false, sums}, rows, input, gradient, gradient,
                            {weights, sums});
    EXPECT_EQ(sums.Fetch(), std::vector<float>(columns, static_cast<float>(rows))) << columns;
  }
}

void ExpectDenseLayersAgreeWithAPlainLoop(Device<float>& device, double error) {
  struct Size {
    int64_t samples, inputs, outputs;
  };
  for (const Size size : {Size{1, 1, 1},
                          {1, 40, 50},
                          {50, 40, 1},
                          {3, 5, 4},
                          {130, 90, 70},
                          {40, 30, 400},
                          {400, 0, 30}}) {
    for (const bool transposed : {false, true}) {
      SCOPED_TRACE(absl::StrCat(size.samples, " of ", size.inputs, " to ", size.outputs));
      const Numbers input = RandomNumbers(device, size.samples * size.inputs, 1);
      const Numbers kernel = RandomNumbers(device, size.inputs * size.outputs, 2);
      const Numbers bias = RandomNumbers(device, size.outputs, 3);
      const Numbers gradient = RandomNumbers(device, size.samples * size.outputs, 4);
      Numbers output(gradient.size()), by_input(input.size()), by_kernel(kernel.size());
      Numbers by_bias(bias.size());
      const auto at = [&](int64_t in, int64_t out) {
        return transposed ? out * size.inputs + in : in * size.outputs + out;
      };
      for (int64_t row = 0; row < size.samples; ++row) {
        for (int64_t out = 0; out < size.outputs; ++out) {
          double& sum = output[row * size.outputs + out];
          const double slope = gradient[row * size.outputs + out];
          sum = bias[out];
          by_bias[out] += slope;
          for (int64_t in = 0; in < size.inputs; ++in) {
            sum += input[row * size.inputs + in] * kernel[at(in, out)];
            by_input[row * size.inputs + in] += slope * kernel[at(in, out)];
            by_kernel[at(in, out)] += slope * input[row * size.inputs + in];
          }
        }
      }
      Activations input_there(device, input), output_there(device, output.size());
      Activations gradient_there(device, gradient), by_input_there(device, input.size());
      Floats kernel_there(device, kernel), bias_there(device, bias);
      Floats by_kernel_there(device, kernel.size()), by_bias_there(device, bias.size());
      const Affine<float> layer = {size.inputs, size.outputs, kernel_there, transposed, bias_there};
      device.Multiply(layer, size.samples, input_there, output_there);
      // The products are rounded before the bias is added.
      const double rounded = error + StorageError(device);
      ExpectNear(output_there, output, size.inputs, rounded, 2);
      device.MultiplyBackward(layer, size.samples, input_there, output_there, gradient_there,
                              {by_kernel_there, by_bias_there, by_input_there});
      ExpectNear(by_input_there, by_input, size.outputs, error);
      ExpectNear(by_kernel_there.Fetch(), by_kernel, size.samples, error);
      ExpectNear(by_bias_there.Fetch(), by_bias, size.samples);
      ExpectNear(gradient_there, gradient, 0);
      // With an activation, forward and backward.
      Affine<float> active = layer;
      active.activation = Activation::kTanh;
      device.Multiply(active, size.samples, input_there, output_there);
      const std::vector<float> actual = output_there.Fetch();
      Numbers expected = output, slopes = gradient;
      for (size_t i = 0; i < output.size(); ++i) {
        expected[i] = std::tanh(output[i]);
        slopes[i] *= 1 - static_cast<double>(actual[i]) * actual[i];
      }
      ExpectNear(output_there, expected, size.inputs, rounded, 2);
      device.MultiplyBackward(active, size.samples, input_there, output_there, gradient_there,
                              {by_kernel_there, by_bias_there});
      ExpectNear(gradient_there, slopes, 1);
    }
  }
}

}  // namespace syncgrads
