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
#include "worker/nn/device_matrix.h"

namespace syncgrads {

using reference::Numbers;

// Returns numbers in (-1, 1) that a float represents exactly.
inline Numbers RandomNumbers(int64_t count, uint64_t name) {
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
