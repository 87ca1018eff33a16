#include "tests/worker/nn/layer_contract.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "worker/base/random.h"

namespace syncgrads {
namespace {

constexpr int64_t kSamples = 5;
constexpr uint64_t kSeed = 11;

Pass PassOf(const LayerCase& layer) {
  return {layer.training, /*seed=*/kSeed, /*step=*/2, /*member=*/1};
}

// Returns random numbers in (-1, 1). No two are equal, so that each window has one largest number.
template <typename T>
Matrix<T> RandomMatrix(int64_t rows, int64_t columns, uint64_t name) {
  RandomStream random(kSeed, {name});
  Matrix<T> values(rows, columns);
  for (Eigen::Index i = 0; i < values.size(); ++i) {
    values.data()[i] = static_cast<T>(static_cast<float>(2 * random.NextUniform() - 1));
  }
  return values;
}

// Waits until the device has executed all queued operations.
template <typename T>
void Finish(Layer<T>& layer) {
  const absl::Status status = layer.device().memory().Finish();
  ASSERT_TRUE(status.ok()) << status;
}

template <typename T>
Matrix<T> Fetch(const DeviceMatrix<T>& from) {
  Matrix<T> to;
  const absl::Status status = from.Fetch(to);
  EXPECT_TRUE(status.ok()) << status;
  return to;
}

// Changes biases and weights away from their initial zeros and ones.
template <typename T>
void Stir(Layer<T>& layer) {
  layer.Initialise(kSeed);
  for (Parameter<T>* parameter : layer.parameters()) {
    parameter->values += static_cast<T>(0.25) *
                         RandomMatrix<T>(parameter->values.rows(), parameter->values.cols(), 7);
    parameter->Upload();
  }
  for (Parameter<T>* state : layer.states()) {
    // The states include variances, which stay positive.
    state->values +=
        static_cast<T>(0.25) * RandomMatrix<T>(state->values.rows(), state->values.cols(), 8);
    state->Upload();
  }
  Finish(layer);
}

// All results of a layer for a batch, with sum(weights * outputs) as the loss.
template <typename T>
struct Results {
  Matrix<T> output;
  Matrix<T> input_gradient;
  std::vector<Matrix<T>> gradients;
};

template <typename T>
Results<T> Try(const LayerCase& layer, Layer<T>& made, const Matrix<T>& input,
               Matrix<T> output_gradient) {
  DeviceMemory& memory = made.device().memory();
  Device<T>& device = made.device();
  DeviceMatrix<T> input_there(device), output_gradient_there(device), input_gradient(device);
  input_there.Bring(input);
  output_gradient_there.Bring(output_gradient);
  Results<T> results;
  results.output = Fetch(made.Forward(PassOf(layer), input_there));
  made.Backward(input_there, output_gradient_there, &input_gradient);
  results.input_gradient = Fetch(input_gradient);
  for (Parameter<T>* parameter : made.parameters()) {
    EXPECT_TRUE(memory.Wait(parameter->QueueGradient()).ok());
    results.gradients.push_back(parameter->gradient);
  }
  for (Parameter<T>* state : made.states()) EXPECT_TRUE(state->Fetch().ok());
  return results;
}

std::unique_ptr<Layer<float>> Make(const LayerCase& layer, Device<float>& device) {
  auto made = layer.make_float(device, layer.input);
  Stir(*made);
  return made;
}

std::unique_ptr<Layer<double>> Make(const LayerCase& layer, Device<double>& device) {
  auto made = layer.make_double(device, layer.input);
  Stir(*made);
  return made;
}

// `error` is relative to the largest number, or to 1.
void ExpectNear(const Matrix<float>& actual, const Matrix<double>& expected, double error,
                const std::string& what) {
  ASSERT_EQ(actual.rows(), expected.rows()) << what;
  ASSERT_EQ(actual.cols(), expected.cols()) << what;
  if (actual.size() == 0) return;
  const double scale = std::max(1.0, expected.cwiseAbs().maxCoeff());
  EXPECT_LT((actual.cast<double>() - expected).cwiseAbs().maxCoeff(), scale * error) << what;
}

// The error of a result of a layer. In float it is that of some hundred additions of numbers as
// large as the largest, each with an error of half a unit in the last place. If the device stores
// activations in 16 bits, it is that of a few of them.
double ErrorOf(const Device<float>& device) { return device.stored_bytes() == 2 ? 0.02 : 1e-5; }

}  // namespace

void ExpectGradientsOfFiniteDifferences(const LayerCase& layer, Device<double>& device) {
  SCOPED_TRACE(layer.name);
  const auto made = Make(layer, device);
  Matrix<double> input = RandomMatrix<double>(kSamples, layer.input.size(), 1);
  const Matrix<double> weights = RandomMatrix<double>(kSamples, made->output_shape().size(), 2);
  const Results<double> results = Try(layer, *made, input, weights);
  DeviceMatrix<double> there(device);
  const auto loss = [&] {
    for (Parameter<double>* parameter : made->parameters()) parameter->Upload();
    there.Bring(input);
    return Fetch(made->Forward(PassOf(layer), there)).cwiseProduct(weights).sum();
  };
  // The error of the difference quotient is about h^2 + 1e-16 / h.
  constexpr double kStep = 1e-5;
  const auto expect_derivative = [&](double& value, double derivative, const std::string& what) {
    const double kept = value;
    value = kept + kStep;
    const double above = loss();
    value = kept - kStep;
    const double below = loss();
    value = kept;
    EXPECT_NEAR(derivative, (above - below) / (2 * kStep), 1e-7) << what;
  };
  for (Eigen::Index i = 0; i < input.size(); ++i) {
    expect_derivative(input.data()[i], results.input_gradient.data()[i],
                      "input " + std::to_string(i));
  }
  const auto parameters = made->parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    for (Eigen::Index i = 0; i < parameters[p]->values.size(); ++i) {
      expect_derivative(parameters[p]->values.data()[i], results.gradients[p].data()[i],
                        parameters[p]->name + " " + std::to_string(i));
    }
  }
}

void ExpectFloatAgreesWithDouble(const LayerCase& layer, Device<float>& device,
                                 Device<double>& reference) {
  SCOPED_TRACE(layer.name);
  const auto made = Make(layer, device);
  const auto expected_layer = Make(layer, reference);
  const auto input = RandomMatrix<float>(kSamples, layer.input.size(), 1);
  const auto weights = RandomMatrix<float>(kSamples, made->output_shape().size(), 2);
  const Results<float> actual = Try(layer, *made, input, weights);
  const Results<double> expected =
      Try<double>(layer, *expected_layer, input.cast<double>(), weights.cast<double>());
  const double error = ErrorOf(device);
  ExpectNear(actual.output, expected.output, error, "output");
  ExpectNear(actual.input_gradient, expected.input_gradient, error, "input's gradient");
  ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
  for (size_t i = 0; i < actual.gradients.size(); ++i) {
    ExpectNear(actual.gradients[i], expected.gradients[i], error, made->parameters()[i]->name);
  }
  const auto states = made->states();
  for (size_t i = 0; i < states.size(); ++i) {
    ExpectNear(states[i]->values, expected_layer->states()[i]->values, error, states[i]->name);
  }
}

void ExpectGradientIsTheMeanOverSamples(const LayerCase& layer, Device<float>& device) {
  if (!layer.samples_are_independent) return;
  SCOPED_TRACE(layer.name);
  const double error = ErrorOf(device);
  const auto made = Make(layer, device);
  const auto input = RandomMatrix<float>(kSamples, layer.input.size(), 1);
  const auto weights = RandomMatrix<float>(kSamples, made->output_shape().size(), 2);
  const Results<float> batch = Try<float>(layer, *made, input, weights / float{kSamples});
  std::vector<Matrix<float>> means;
  for (const Matrix<float>& gradient : batch.gradients) {
    means.push_back(Matrix<float>::Zero(gradient.rows(), gradient.cols()));
  }
  for (int64_t sample = 0; sample < kSamples; ++sample) {
    const Results<float> one = Try<float>(layer, *made, input.row(sample), weights.row(sample));
    EXPECT_LT((one.output - batch.output.row(sample)).cwiseAbs().maxCoeff(), error);
    for (size_t i = 0; i < means.size(); ++i) means[i] += one.gradients[i] / float{kSamples};
  }
  for (size_t i = 0; i < means.size(); ++i) {
    EXPECT_LT((means[i] - batch.gradients[i]).cwiseAbs().maxCoeff(), 10 * error)
        << made->parameters()[i]->name;
  }
}

void ExpectTheSameBits(const LayerCase& layer, Device<float>& device) {
  SCOPED_TRACE(layer.name);
  const auto input = RandomMatrix<float>(kSamples, layer.input.size(), 1);
  const auto first_layer = Make(layer, device);
  const auto weights = RandomMatrix<float>(kSamples, first_layer->output_shape().size(), 2);
  const Results<float> first = Try(layer, *first_layer, input, weights);
  const std::vector<char> in_between(40);  // moves the next allocation to another address
  const auto again_layer = Make(layer, device);
  const Results<float> again = Try<float>(layer, *again_layer, Matrix<float>(input), weights);
  EXPECT_EQ(first.output, again.output);
  EXPECT_EQ(first.input_gradient, again.input_gradient);
  EXPECT_EQ(first.gradients, again.gradients);
}

}  // namespace syncgrads
