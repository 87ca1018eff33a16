// Arrays in a device's memory, for the device contract.

#ifndef SYNCGRADS_TESTS_WORKER_NN_DEVICE_ARRAYS_H_
#define SYNCGRADS_TESTS_WORKER_NN_DEVICE_ARRAYS_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/worker/nn/layer_reference.h"
#include "worker/base/random.h"
#include "worker/nn/device.h"
#include "worker/nn/device_array.h"
#include "worker/nn/device_matrix.h"

namespace syncgrads {

using reference::Numbers;

// The bits of fraction of an activation on the device.
inline int FractionBits(const Device<float>& device) { return device.stored_bytes() == 2 ? 7 : 23; }

// The largest relative error of an activation that the device has rounded once.
inline double StorageError(const Device<float>& device) {
  return std::ldexp(0.5, -FractionBits(device));
}

// Returns the number closest to `number` that the device stores exactly.
inline double Storable(const Device<float>& device, double number) {
  int exponent = 0;
  const double fraction = std::frexp(number, &exponent);
  const int bits = FractionBits(device) + 1;
  return std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
}

// Returns numbers in (-1, 1) that the device stores exactly, as activations or as parameters.
inline Numbers RandomNumbers(const Device<float>& device, int64_t count, uint64_t name) {
  RandomStream random(4, {name});
  Numbers numbers;
  for (int64_t i = 0; i < count; ++i) {
    numbers.push_back(Storable(device, 2 * random.NextUniform() - 1));
  }
  return numbers;
}

// An array of parameters, or of other numbers that are no activations, in the device's memory.
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
  DeviceArray<T> values_;
};
using Floats = There<float>;

// Activations, or gradients by them, in the device's memory.
class Activations {
 public:
  Activations(Device<float>& device, size_t count)
      : device_(device), values_(device, 1, static_cast<int64_t>(count)) {}
  Activations(Device<float>& device, const Numbers& numbers) : Activations(device, numbers.size()) {
    Matrix<float> values(1, static_cast<int64_t>(numbers.size()));
    for (size_t i = 0; i < numbers.size(); ++i) values(0, i) = static_cast<float>(numbers[i]);
    values_.Upload(values);
  }
  operator Stored<float>*() { return values_.data(); }
  const Device<float>& device() const { return device_; }

  std::vector<float> Fetch() const {
    Matrix<float> matrix;
    const absl::Status status = values_.Fetch(matrix);
    EXPECT_TRUE(status.ok()) << status;
    return {matrix.data(), matrix.data() + matrix.size()};
  }

 private:
  const Device<float>& device_;
  DeviceMatrix<float> values_;
};

// Each element of `actual` is a sum of `terms` products of numbers below 1. `error` is the relative
// error of each product.
inline void ExpectNear(const std::vector<float>& actual, const Numbers& expected, int64_t terms,
                       double error = 0) {
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double difference = std::fabs(actual[i] - expected[i]);
    largest = difference > largest || std::isnan(difference) ? difference : largest;
  }
  EXPECT_LT(largest, (1e-7 + error) * static_cast<double>(terms) + 1e-6);
}

// The same for activations. `roundings` is how often the device has rounded each of them, or a
// number that is as large, to store it.
inline void ExpectNear(const Activations& actual, const Numbers& expected, int64_t terms,
                       double error = 0, int roundings = 1) {
  Numbers fetched;
  for (const float number : actual.Fetch()) fetched.push_back(number);
  ASSERT_EQ(fetched.size(), expected.size());
  double largest = 0;
  for (size_t i = 0; i < fetched.size(); ++i) {
    const double allowed =
        (1e-7 + error) * static_cast<double>(terms) + 1e-6 +
        1.01 * roundings * StorageError(actual.device()) * std::fabs(expected[i]);
    const double share = std::fabs(fetched[i] - expected[i]) / allowed;
    largest = share > largest || std::isnan(share) ? share : largest;
  }
  EXPECT_LT(largest, 1);
}

// Activation functions in double.
inline double ActivationOf(Activation activation, double x) {
  syncgrads::Activate(activation, 1, &x);
  return x;
}

// Returns gradient * f'(x), given y = f(x).
inline double ActivationBackward(Activation activation, double y, double gradient) {
  syncgrads::MultiplyByDerivative(activation, 1, &y, &gradient);
  return gradient;
}

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_NN_DEVICE_ARRAYS_H_
