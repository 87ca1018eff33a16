#include "tests/worker/nn/layer_reference.h"

#include <cmath>
#include <cstdint>
#include <limits>

namespace syncgrads::reference {
namespace {

// Returns one number of a pixel, or `outside` if (x, y) is not in the image.
double At(const Shape& shape, const Numbers& images, int64_t sample, int64_t y, int64_t x,
          int64_t channel, double outside) {
  if (y < 0 || y >= shape.height || x < 0 || x >= shape.width) return outside;
  return images[((sample * shape.height + y) * shape.width + x) * shape.channels + channel];
}

// Calls function(sample, y, x) for each position of the window in each sample.
template <typename Function>
void ForEachPlace(const Window& window, int64_t samples, Function function) {
  for (int64_t sample = 0; sample < samples; ++sample) {
    for (int64_t y = 0; y < window.output_height; ++y) {
      for (int64_t x = 0; x < window.output_width; ++x) {
        function(sample, y * window.stride - window.padding, x * window.stride - window.padding);
      }
    }
  }
}

}  // namespace

Numbers Convolve(const Window& window, int64_t samples, int64_t outputs, const Numbers& input,
                 const Numbers& weights) {
  Numbers result;
  ForEachPlace(window, samples, [&](int64_t sample, int64_t top, int64_t left) {
    for (int64_t output = 0; output < outputs; ++output) {
      double sum = 0;
      size_t weight = output * window.size();
      for (int64_t channel = 0; channel < window.input.channels; ++channel) {
        for (int64_t y = 0; y < window.height; ++y) {
          for (int64_t x = 0; x < window.width; ++x) {
            sum +=
                weights[weight++] * At(window.input, input, sample, top + y, left + x, channel, 0);
          }
        }
      }
      result.push_back(sum);
    }
  });
  return result;
}

Numbers Pool(const Window& window, int64_t samples, Pooling pooling, const Numbers& input) {
  Numbers result;
  const bool is_max = pooling == Pooling::kMax;
  const double outside = is_max ? -std::numeric_limits<double>::infinity() : 0;
  ForEachPlace(window, samples, [&](int64_t sample, int64_t top, int64_t left) {
    for (int64_t channel = 0; channel < window.input.channels; ++channel) {
      double value = outside;
      for (int64_t y = 0; y < window.height; ++y) {
        for (int64_t x = 0; x < window.width; ++x) {
          const double one = At(window.input, input, sample, top + y, left + x, channel, outside);
          value = is_max ? std::fmax(value, one) : value + one;
        }
      }
      result.push_back(is_max ? value : value / static_cast<double>(window.height * window.width));
    }
  });
  return result;
}

Numbers NormaliseBatch(int64_t rows, int64_t channels, double epsilon, const Numbers& weight,
                       const Numbers& bias, const Numbers& input) {
  Numbers result(input.size());
  for (int64_t channel = 0; channel < channels; ++channel) {
    double mean = 0, variance = 0;
    for (int64_t row = 0; row < rows; ++row) mean += input[row * channels + channel];
    mean /= static_cast<double>(rows);
    for (int64_t row = 0; row < rows; ++row) {
      const double difference = input[row * channels + channel] - mean;
      variance += difference * difference;
    }
    variance /= static_cast<double>(rows);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t i = row * channels + channel;
      result[i] =
          (input[i] - mean) / std::sqrt(variance + epsilon) * weight[channel] + bias[channel];
    }
  }
  return result;
}

}  // namespace syncgrads::reference
