// The device contract: operations that are no matrix products.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/nn/device_arrays.h"
#include "tests/worker/nn/device_contract.h"
#include "worker/base/split_mix.h"
#include "worker/nn/pixels.h"

namespace syncgrads {
namespace {

struct NormSize {
  int64_t rows, channels;
  // Of the input; its deviation is about 0.6.
  double mean;
  Activation activation;
  bool has_residual;
};

// A batch normalisation in double precision.
class NormReference {
 public:
  NormReference(const NormSize& size, double epsilon, const Device<float>& device)
      : size_(size),
        input_(RandomNumbers(device, size.rows * size.channels, 1)),
        scale_(RandomNumbers(device, size.channels, 2)),
        shift_(RandomNumbers(device, size.channels, 3)),
        mean_(size.channels),
        variance_(size.channels),
        deviation_(size.channels) {
    for (double& number : input_) number = Storable(device, number + size.mean);
    ForEach([this](int64_t i, int64_t c) { mean_[c] += input_[i] / Rows(); });
    ForEach(
        [this](int64_t i, int64_t c) { variance_[c] += Square(input_[i] - mean_[c]) / Rows(); });
    for (int64_t c = 0; c < size.channels; ++c) deviation_[c] = std::sqrt(variance_[c] + epsilon);
    if (size.has_residual) residual_ = RandomNumbers(device, size.rows * size.channels, 4);
    output_.resize(input_.size());
    ForEach([this](int64_t i, int64_t c) {
      const double value = Normalised(i, c) * scale_[c] + shift_[c];
      output_[i] = ActivationOf(size_.activation, value + (size_.has_residual ? residual_[i] : 0));
    });
  }

  const Numbers& input() const { return input_; }
  const Numbers& scale() const { return scale_; }
  const Numbers& shift() const { return shift_; }
  const Numbers& residual() const { return residual_; }
  const Numbers& mean() const { return mean_; }
  const Numbers& variance() const { return variance_; }
  const Numbers& output() const { return output_; }

  // Replaces `gradient` by the one before the activation. `outputs` are those of the device.
  void Backward(const std::vector<float>& outputs, bool of_batch, Numbers& gradient,
                Numbers& by_scale, Numbers& by_shift, Numbers& by_input) const {
    by_scale.assign(scale_.size(), 0);
    by_shift.assign(scale_.size(), 0);
    by_input.resize(input_.size());
    ForEach([&](int64_t i, int64_t c) {
      gradient[i] = ActivationBackward(size_.activation, outputs[i], gradient[i]);
      by_scale[c] += gradient[i] * Normalised(i, c);
      by_shift[c] += gradient[i];
    });
    ForEach([&](int64_t i, int64_t c) {
      double slope = gradient[i];
      if (of_batch) slope -= (by_shift[c] + Normalised(i, c) * by_scale[c]) / Rows();
      by_input[i] = scale_[c] / deviation_[c] * slope;
    });
  }

 private:
  static double Square(double x) { return x * x; }
  double Rows() const { return static_cast<double>(size_.rows); }
  double Normalised(int64_t i, int64_t c) const { return (input_[i] - mean_[c]) / deviation_[c]; }
  template <typename Function>
  void ForEach(Function function) const {
    for (int64_t i = 0; i < size_.rows * size_.channels; ++i) function(i, i % size_.channels);
  }

  const NormSize size_;
  Numbers input_, scale_, shift_, residual_, mean_, variance_, deviation_, output_;
};

void ExpectBatchNormAgrees(const NormSize& size, Device<float>& device) {
  SCOPED_TRACE(absl::StrCat(size.rows, "x", size.channels, " around ", size.mean));
  constexpr double kEpsilon = 1e-5, kMomentum = 0.25;
  const NormReference reference(size, kEpsilon, device);
  const size_t channels = size.channels;
  Activations input(device, reference.input()), residual(device, reference.residual());
  Floats scale(device, reference.scale()), shift(device, reference.shift());
  Floats mean(device, channels), variance(device, channels);
  Floats running_mean(device, Numbers(channels, 2)), running_variance(device, Numbers(channels, 3));
  Activations output(device, reference.output().size());
  device.FindStatistics(size.rows, size.channels, input,
                        {mean, variance, running_mean, running_variance, kMomentum});
  // A mean has the rounding error of its own size; a variance that of the numbers' differences.
  const double scaled = 1 + std::fabs(size.mean);
  Numbers expected_mean = reference.mean();
  for (double& number : expected_mean) number /= scaled;
  std::vector<float> actual_mean = mean.Fetch();
  for (float& number : actual_mean) number /= static_cast<float>(scaled);
  ExpectNear(actual_mean, expected_mean, 1);
  ExpectNear(variance.Fetch(), reference.variance(), 10);
  Numbers moved_mean(channels), moved_variance(channels);
  const double unbiased =
      size.rows > 1 ? static_cast<double>(size.rows) / static_cast<double>(size.rows - 1) : 1;
  for (size_t c = 0; c < channels; ++c) {
    moved_mean[c] = 2 + kMomentum * (reference.mean()[c] - 2);
    moved_variance[c] = 3 + kMomentum * (unbiased * reference.variance()[c] - 3);
  }
  ExpectNear(running_mean.Fetch(), moved_mean, static_cast<int64_t>(10 * scaled));
  ExpectNear(running_variance.Fetch(), moved_variance, 30);

  Normalisation<float> layer = {size.rows, size.channels, kEpsilon, mean, variance, scale, shift};
  layer.activation = size.activation;
  if (size.has_residual) layer.residual = residual;
  device.Normalise(layer, input, output);
  const std::vector<float> outputs = output.Fetch();
  // The mean is subtracted after both have been multiplied by scale / deviation. The deviation of
  // one row is the square root of epsilon.
  const auto terms = static_cast<int64_t>(20 * scaled * (size.rows == 1 ? 100 : 1));
  ExpectNear(output, reference.output(), terms);

  for (const bool of_batch : {true, false}) {
    Numbers gradient = RandomNumbers(device, size.rows * size.channels, 5);
    Activations gradient_there(device, gradient), by_input(device, gradient.size());
    Floats by_scale(device, channels), by_shift(device, channels);
    device.NormaliseBackward(layer, of_batch, input, output, gradient_there,
                             {by_scale, by_shift, by_input});
    Numbers expected_by_scale, expected_by_shift, expected_by_input;
    reference.Backward(outputs, of_batch, gradient, expected_by_scale, expected_by_shift,
                       expected_by_input);
    ExpectNear(gradient_there, gradient, 1);
    // The sums are those of the gradients that are stored, which have been rounded by tanh.
    const double error = size.activation == Activation::kTanh ? StorageError(device) : 0;
    ExpectNear(by_shift.Fetch(), expected_by_shift, size.rows, error);
    ExpectNear(by_scale.Fetch(), expected_by_scale, size.rows * static_cast<int64_t>(scaled),
               error);
    ExpectNear(by_input, expected_by_input, terms, error);
    const std::vector<float> with_input = by_scale.Fetch();
    device.NormaliseBackward(layer, of_batch, input, output, gradient_there, {by_scale, by_shift});
    if (size.activation == Activation::kIdentity) {
      EXPECT_EQ(by_scale.Fetch(), with_input);
    }
  }
}

// The first row is far from the others, in the second column also from zero.
void ExpectStatisticsOfAnOutlierAgree(Device<float>& device) {
  constexpr int64_t kRows = 20001, kChannels = 4;
  constexpr double kFirst[kChannels] = {1000, 0, -1000, 1}, kOthers[kChannels] = {0, 1000, 0, 1};
  Numbers input = RandomNumbers(device, kRows * kChannels, 1);
  Numbers expected_mean(kChannels), expected_variance(kChannels);
  for (int64_t c = 0; c < kChannels; ++c) {
    const auto at = [&](int64_t row) -> double& { return input[row * kChannels + c]; };
    for (int64_t row = 0; row < kRows; ++row) {
      at(row) = Storable(device, at(row) + (row == 0 ? kFirst : kOthers)[c]);
      expected_mean[c] += at(row) / kRows;
    }
    for (int64_t row = 0; row < kRows; ++row) {
      expected_variance[c] += (at(row) - expected_mean[c]) * (at(row) - expected_mean[c]) / kRows;
    }
  }
  Activations there(device, input);
  Floats mean(device, kChannels), variance(device, kChannels);
  device.FindStatistics(kRows, kChannels, there, {mean, variance});
  // The differences within the first strip of rows are as large as the outlier.
  for (int64_t c = 0; c < kChannels; ++c) {
    EXPECT_NEAR(mean.Fetch()[c], expected_mean[c], 1e-5 + 1e-7 * expected_mean[c]) << c;
    EXPECT_NEAR(variance.Fetch()[c], expected_variance[c], 1e-4 * expected_variance[c]) << c;
  }
}

void ExpectCrossEntropyAgrees(Device<float>& device, int64_t classes, double smoothing) {
  constexpr int64_t kRows = 40;
  const Numbers outputs = RandomNumbers(device, kRows * classes, 1);
  Numbers targets, gradient;
  double sum_of_losses = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    const int64_t target = row * 5 % classes;
    targets.push_back(static_cast<double>(target));
    double sum = 0;
    for (int64_t i = 0; i < classes; ++i) sum += std::exp(outputs[row * classes + i]);
    for (int64_t i = 0; i < classes; ++i) {
      const double probability = std::exp(outputs[row * classes + i]) / sum;
      const double wanted =
          (i == target ? 1 - smoothing : 0) + smoothing / static_cast<double>(classes);
      sum_of_losses -= wanted * std::log(probability);
      gradient.push_back((probability - wanted) / 3);
    }
  }
  Activations outputs_there(device, outputs), gradient_there(device, gradient.size());
  There<double> targets_there(device, targets), total(device, Numbers{10});
  device.FindLoss({LossKind::kLogitCrossEntropy, smoothing}, kRows, classes, outputs_there,
                  targets_there, 3, total, gradient_there);
  ExpectNear(gradient_there, gradient, 1);
  EXPECT_NEAR(total.Fetch()[0], 10 + sum_of_losses / 3, 1e-9);
}

// The losses of one output, and the largest rows: logits of any size do not overflow.
void ExpectOtherLossesAgree(Device<float>& device) {
  constexpr int64_t kRows = 300;
  const Numbers outputs = RandomNumbers(device, kRows, 1);
  for (const LossKind kind : {LossKind::kSquaredError, LossKind::kSigmoidCrossEntropy}) {
    Numbers targets, gradient;
    double sum = 0;
    for (int64_t row = 0; row < kRows; ++row) {
      const double target = static_cast<double>(row % 2), x = outputs[row];
      targets.push_back(target);
      const double p = 1 / (1 + std::exp(-x));
      const bool squared = kind == LossKind::kSquaredError;
      sum += squared ? (x - target) * (x - target) : -std::log(target == 1 ? p : 1 - p);
      gradient.push_back((squared ? 2 * (x - target) : p - target) / 7);
    }
    Activations outputs_there(device, outputs), gradient_there(device, gradient.size());
    There<double> targets_there(device, targets), total(device, Numbers{0});
    device.FindLoss({kind}, kRows, 1, outputs_there, targets_there, 7, total, gradient_there);
    ExpectNear(gradient_there, gradient, 1);
    EXPECT_NEAR(total.Fetch()[0], sum / 7, 1e-9);
  }
  Numbers large(100, -3e38);
  large[70] = 3e38;
  Activations outputs_there(device, large), gradient_there(device, large.size());
  There<double> target(device, Numbers{70}), total(device, Numbers{0});
  device.FindLoss({}, 1, 100, outputs_there, target, 1, total, gradient_there);
  EXPECT_EQ(total.Fetch()[0], 0);
  EXPECT_EQ(gradient_there.Fetch(), std::vector<float>(100, 0));
}

}  // namespace

void ExpectNumbersAreStoredRounded(Device<float>& device) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const size_t count : {1, 7, 4096}) {
    Numbers numbers = {1 + 0x1p-8,    1 + 3 * 0x1p-8,  // ties
                       1 + 0x1.01p-8, -1 - 0x1p-9,     0,        -0.0,    infinity,
                       -infinity,     0x1.fffffep+127, 0x1p-149, 0x3p-134};
    while (numbers.size() < count) {
      numbers.push_back(UniformAt(1, numbers.size()) * 3 - 1);
    }
    for (double& number : numbers) number = static_cast<float>(number);
    Activations there(device, numbers);
    const std::vector<float> stored = there.Fetch();
    for (size_t i = 0; i < numbers.size(); ++i) {
      double expected = numbers[i];
      if (device.stored_bytes() == 2) {
        // The spacing is that of the exponent, or of the subnormals.
        const int exponent = std::max(std::ilogb(expected), -126);
        const double spacing = std::ldexp(1, exponent - FractionBits(device));
        if (std::isfinite(expected)) expected = std::nearbyint(expected / spacing) * spacing;
        if (std::fabs(expected) >= 0x1p128) expected = std::copysign(infinity, expected);
      }
      EXPECT_EQ(stored[i], expected) << numbers[i];
    }
    EXPECT_TRUE(std::signbit(stored[5]));
  }
  Activations nan(device, Numbers{std::nan("")});
  EXPECT_TRUE(std::isnan(nan.Fetch()[0]));
}

void ExpectPixelsAreStoredAsTheirNumbers(Device<float>& device) {
  for (const int64_t channels : {1, 3, 4, 5}) {
    const Numbers numbers = RandomNumbers(device, channels * kPixelValues, 31);
    Floats numbers_there(device, numbers);
    for (const int64_t positions : {1, 8, 1000, 40000}) {
      RandomStream random(5, {static_cast<uint64_t>(positions)});
      Numbers pixels, expected;
      for (int64_t i = 0; i < positions * channels; ++i) {
        pixels.push_back(static_cast<double>(random.NextBelow(kPixelValues)));
        expected.push_back(numbers[i % channels * kPixelValues + static_cast<int64_t>(pixels[i])]);
      }
      There<unsigned char> pixels_there(device, pixels);
      Activations stored(device, pixels.size());
      device.StorePixels(positions * channels, channels, pixels_there, numbers_there, stored);
      EXPECT_EQ(stored.Fetch(), std::vector<float>(expected.begin(), expected.end()))
          << channels << " channels, " << positions << " positions";
    }
  }
}

void ExpectBatchNormAgreesWithAPlainLoop(Device<float>& device) {
  // The numbers of the last but one differ by less than a thousandth, or, if only 8 bits are
  // stored, a tenth.
  const double large = device.stored_bytes() == 2 ? 10 : 1000;
  for (const NormSize& size : {NormSize{3000, 300, 0, Activation::kIdentity, false},
                               {20001, 64, 0, Activation::kRelu, true},
                               {5000, 7, 0, Activation::kRelu, false},
                               {701, 20, 0, Activation::kTanh, true},
                               {4001, 12, large, Activation::kIdentity, true},
                               {1, 4, 0, Activation::kIdentity, false}}) {
    ExpectBatchNormAgrees(size, device);
  }
  ExpectStatisticsOfAnOutlierAgree(device);
}

void ExpectLossesAgreeWithPlainLoops(Device<float>& device) {
  for (const double smoothing : {0.0, 0.1}) {
    for (const int64_t classes : {2, 7, 1000}) ExpectCrossEntropyAgrees(device, classes, smoothing);
  }
  ExpectOtherLossesAgree(device);
}

void ExpectPenaltiesAgreeWithAPlainLoop(Device<float>& device) {
  There<double> total(device, Numbers{5});
  double expected = 5;
  std::vector<double> totals;
  for (int round = 0; round < 2; ++round) {
    for (const int64_t count : {1, 300, 200003}) {
      const Numbers values = RandomNumbers(device, count, 1),
                    gradient = RandomNumbers(device, count, 2);
      Floats values_there(device, values), gradient_there(device, gradient);
      device.Penalise(0.5, count, values_there, gradient_there);
      Numbers sums = gradient;
      for (int64_t i = 0; i < count; ++i) {
        sums[i] += 0.5 * values[i];
        expected += 0.25 * values[i] * values[i];
      }
      ExpectNear(gradient_there.Fetch(), sums, 1);
    }
    device.TakePenalties(total);
    totals.push_back(total.Fetch()[0]);
    EXPECT_NEAR(totals.back(), expected, 1e-7);
  }
  device.TakePenalties(total);
  EXPECT_EQ(total.Fetch()[0], totals.back());  // what has been taken does not count again
}

void ExpectElementwiseOperationsAgreeWithPlainLoops(Device<float>& device) {
  for (const int64_t count : {5, 4096}) {
    const Numbers a = RandomNumbers(device, count, 1), b = RandomNumbers(device, count, 2);
    Activations a_there(device, a), b_there(device, b), result(device, a.size());
    for (const Activation activation :
         {Activation::kIdentity, Activation::kRelu, Activation::kTanh, Activation::kSigmoid}) {
      Numbers sum(a.size()), slopes = b;
      for (size_t i = 0; i < a.size(); ++i) sum[i] = ActivationOf(activation, a[i] + b[i]);
      device.Add(activation, count, a_there, b_there, result);
      ExpectNear(result, sum, 2);
      Activations in_place(device, b);
      device.Add(activation, count, a_there, in_place, in_place);
      EXPECT_EQ(in_place.Fetch(), result.Fetch());
      const std::vector<float> outputs = result.Fetch();
      for (size_t i = 0; i < a.size(); ++i) {
        slopes[i] = ActivationBackward(activation, outputs[i], b[i]);
      }
      Activations gradient(device, b);
      device.ActivateBackward(activation, count, result, gradient);
      ExpectNear(gradient, slopes, 1);
    }
    constexpr uint64_t kKey = 12345;
    Numbers kept(a.size());
    for (size_t i = 0; i < a.size(); ++i) kept[i] = UniformAt(kKey, i) < 0.25 ? 0 : a[i] / 0.75;
    device.Dropout(kKey, 0.25, count, a_there, result);
    ExpectNear(result, kept, 1);
    Numbers moved = b;
    for (size_t i = 0; i < b.size(); ++i) moved[i] += 0.2 * (a[i] - b[i]);
    Floats values(device, a), average(device, b);
    device.UpdateMovingAverage(0.2f, count, values, average);
    ExpectNear(average.Fetch(), moved, 1);
    Numbers added = a;
    for (size_t i = 0; i < a.size(); ++i) added[i] += b[i];
    Floats total(device, a), addend(device, b);
    device.Accumulate(count, addend, total);
    ExpectNear(total.Fetch(), added, 2);
  }
  const Numbers from = RandomNumbers(device, 3 * 5 * 7, 1);
  Activations there(device, from), result(device, from.size());
  device.Transpose(3, 5, 7, there, result);
  Numbers transposed(from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    transposed[i / 35 * 35 + i % 7 * 5 + i % 35 / 7] = from[i];
  }
  ExpectNear(result, transposed, 0);
}

}  // namespace syncgrads
