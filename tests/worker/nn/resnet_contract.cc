#include "tests/worker/nn/resnet_contract.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/nn/rounding_device.h"
#include "tests/worker/testing/status.h"
#include "worker/base/random.h"
#include "worker/nn/cpu/cpu_device.h"
#include "worker/nn/models/build.h"
#include "worker/nn/models/named_model.h"

namespace syncgrads {
namespace {

constexpr int64_t kSamples = 2;
constexpr int64_t kOutputs = 10;

// The largest relative error of a number that is rounded to 8 significant bits.
constexpr double kRounding = 0x1p-8;

Shape ImageShape() { return Shape::Image(3, 48, 48); }

template <typename T>
std::unique_ptr<Model<T>> MakeResNet(Device<T>& device) {
  v1::NamedModel named;
  named.set_name("resnet34");
  named.set_outputs(kOutputs);
  auto model = BuildModel<T>(*ExpandNamedModel(named), ImageShape(), CustomLayers(), device);
  EXPECT_TRUE(model.ok()) << model.status();
  (*model)->Initialise(5);
  return std::move(*model);
}

Matrix<float> RandomMatrix(int64_t rows, int64_t columns, uint64_t seed) {
  RandomStream random(seed, {});
  Matrix<float> values(rows, columns);
  for (Eigen::Index i = 0; i < values.size(); ++i) {
    values.data()[i] = static_cast<float>(2 * random.NextUniform() - 1);
  }
  return values;
}

// Returns numbers that bfloat16 has, so that every device gets the same ones.
Matrix<float> Rounded(Matrix<float> values) {
  for (Eigen::Index i = 0; i < values.size(); ++i) {
    values.data()[i] = static_cast<float>(RoundingDevice::Rounded(values.data()[i]));
  }
  return values;
}

Matrix<float> Images() { return RandomMatrix(kSamples, ImageShape().size(), 3); }

// The statistics of the batch keep the outputs of the blocks in bounds.
Pass TrainingPass() {
  Pass pass;
  pass.training = true;
  return pass;
}

template <typename T>
Matrix<double> Fetch(const DeviceMatrix<T>& from) {
  Matrix<T> to;
  SYNCGRADS_EXPECT_OK(from.Fetch(to));
  return to.template cast<double>();
}

template <typename T>
Matrix<double> FetchGradient(Device<T>& device, Parameter<T>& parameter) {
  SYNCGRADS_EXPECT_OK(device.memory().Wait(parameter.QueueGradient()));
  return parameter.gradient.template cast<double>();
}

// The norm of the difference, relative to the norm of what is expected.
double ErrorOf(const Matrix<double>& actual, const Matrix<double>& expected) {
  EXPECT_GT(expected.norm(), 0);
  return (actual - expected).norm() / expected.norm();
}

// The loss and the gradients of a batch of images.
struct Results {
  double loss = 0;
  std::vector<std::string> names;
  std::vector<Matrix<double>> gradients;
};

template <typename T>
Results RunResNet(Device<T>& device, const Matrix<float>& images) {
  const auto model = MakeResNet(device);
  const Matrix<T> input = images.cast<T>();
  const auto nothing = [](size_t) { return absl::OkStatus(); };
  SYNCGRADS_EXPECT_OK(model->ComputeGradients(
      TrainingPass(), input, Loss(), std::vector<double>{3, 7}, kSamples, nothing, nothing));
  Results results;
  results.loss = *model->TakeLoss();
  for (Parameter<T>* parameter : model->parameters()) {
    results.names.push_back(parameter->name);
    results.gradients.push_back(FetchGradient(device, *parameter));
  }
  return results;
}

// A batch on its way through the layers of two models: one on the device, and one that computes in
// double precision and gets what the device has stored.
class LayerWalk {
 public:
  explicit LayerWalk(Device<float>& device)
      : device_(device),
        processor_(1),
        model_(MakeResNet<float>(device)),
        reference_(MakeResNet<double>(processor_)),
        input_(device),
        gradient_(device),
        next_gradient_(device) {
    input_.Upload(Rounded(Images()));
    gradient_.Upload(Rounded(RandomMatrix(kSamples, kOutputs, 4)));
  }

  void Forward() {
    const DeviceMatrix<float>* at = &input_;
    for (size_t i = 0; i < model_->layers().size(); ++i) {
      inputs_.push_back(at);
      reference_inputs_.emplace_back(processor_);
      reference_inputs_[i].Upload(Fetch(*at));
      at = &model_->layers()[i]->Forward(TrainingPass(), *at);
      const DeviceMatrix<double>& expected =
          reference_->layers()[i]->Forward(TrainingPass(), reference_inputs_[i]);
      // A block that samples down rounds eight times one after the other or side by side: weights,
      // their products, and results of batch norm. A rounding is wrong by 0.42 kRounding in the
      // root mean square, and the errors are independent: 1.2 kRounding.
      EXPECT_LT(ErrorOf(Fetch(*at), Fetch(expected)), 2 * kRounding)
          << "the output of " << model_->layers()[i]->name();
    }
  }

  void Backward() {
    for (size_t i = model_->layers().size(); i-- > 0;) BackwardAt(i);
  }

 private:
  void BackwardAt(size_t i) {
    Layer<float>& layer = *model_->layers()[i];
    Layer<double>& reference = *reference_->layers()[i];
    const bool is_first = i == 0;
    DeviceMatrix<double> gradient(processor_), next_gradient(processor_);
    gradient.Upload(Fetch(gradient_));
    layer.Backward(*inputs_[i], gradient_, is_first ? nullptr : &next_gradient_);
    reference.Backward(reference_inputs_[i], gradient, is_first ? nullptr : &next_gradient);
    if (!is_first) {
      ExpectNear(Fetch(next_gradient_), Fetch(next_gradient),
                 absl::StrCat("the gradient by the input of ", layer.name()));
    }
    const auto parameters = layer.parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      ExpectNear(FetchGradient(device_, *parameters[p]),
                 FetchGradient(processor_, *reference.parameters()[p]),
                 absl::StrCat("the gradient of ", parameters[p]->name));
    }
    std::swap(gradient_, next_gradient_);
  }

  // The arguments of a block's two ReLUs are wrong by about kRounding, relative to their
  // deviation. If they are normal, 0.4 kRounding of them have another sign. If n of many numbers
  // are wrong entirely, the norm is wrong by the root of their share: 0.04. With eight numbers for
  // each channel, as in the last blocks, single signs have several times that effect. The bound
  // implies a cosine of at least 0.979.
  static void ExpectNear(const Matrix<double>& actual, const Matrix<double>& expected,
                         const std::string& what) {
    EXPECT_LT(ErrorOf(actual, expected), 0.2) << what;
  }

  Device<float>& device_;
  CpuDevice<double> processor_;
  const std::unique_ptr<Model<float>> model_;
  const std::unique_ptr<Model<double>> reference_;
  DeviceMatrix<float> input_, gradient_, next_gradient_;
  std::vector<const DeviceMatrix<float>*> inputs_;
  std::deque<DeviceMatrix<double>> reference_inputs_;  // blocks keep their addresses
};

}  // namespace

void ExpectResNet34AgreesWithTheProcessor(Device<float>& device) {
  CpuDevice<float> processor(1);
  const Results expected = RunResNet<float>(processor, Images());
  const Results actual = RunResNet(device, Images());
  EXPECT_NEAR(actual.loss, expected.loss, 1e-3 * expected.loss);
  for (size_t i = 0; i < expected.gradients.size(); ++i) {
    const double scale = expected.gradients[i].cwiseAbs().maxCoeff();
    EXPECT_GT(scale, 0) << expected.names[i];
    EXPECT_LT((actual.gradients[i] - expected.gradients[i]).cwiseAbs().maxCoeff(), 1e-2 * scale)
        << expected.names[i];
  }
}

void ExpectLayersOfResNet34AgreeWithDouble(Device<float>& device) {
  LayerWalk walk(device);
  walk.Forward();
  walk.Backward();
}

void ExpectResNet34IsAsCloseToDoubleAsRoundingAllows(Device<float>& device) {
  CpuDevice<double> processor(1);
  RoundingDevice rounding;
  const Matrix<float> images = Rounded(Images());
  const Results exact = RunResNet<double>(processor, images);
  const Results rounded = RunResNet<double>(rounding, images);
  const Results actual = RunResNet(device, images);
  EXPECT_NEAR(actual.loss, exact.loss, 0.1 * exact.loss);
  double errors = 0, expected_errors = 0;
  for (size_t i = 0; i < exact.gradients.size(); ++i) {
    const double error = ErrorOf(actual.gradients[i], exact.gradients[i]);
    const double expected = ErrorOf(rounded.gradients[i], exact.gradients[i]);
    errors += error;
    expected_errors += expected;
    // The errors of the two are independent. Those of small tensors differ by chance.
    EXPECT_LT(error, 1.6 * expected + 0.02) << exact.names[i];
  }
  EXPECT_LT(errors, 1.2 * expected_errors);
  testing::Test::RecordProperty("relative_error", absl::StrCat(errors / expected_errors));
}

}  // namespace syncgrads
