// What the launches of a CUDA device read, write and compute. Runs on the emulated device, which
// counts the loads and stores of the kernels.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/worker/nn/cuda/emulation/emulation.h"
#include "tests/worker/testing/status.h"
#include "worker/nn/cuda/cuda_device.h"
#include "worker/nn/models/build.h"

namespace syncgrads {
namespace {

using testing::ElementsAre;

// A launch as text, with its bytes.
std::string Text(const std::string& name, uint64_t read, uint64_t written,
                 uint64_t operations = 0) {
  return absl::StrCat(name, ": reads ", read, ", writes ", written, ", computes ", operations);
}

// The same with counts of floats.
std::string Floats(const std::string& name, uint64_t read, uint64_t written,
                   uint64_t operations = 0) {
  return Text(name, read * sizeof(float), written * sizeof(float), operations);
}

class LaunchesTest : public testing::Test {
 protected:
  LaunchesTest() {
    emulation::Options options;
    options.counts = true;
    emulation::Configure(options);
    Open({.cudnn = false});
  }

  // Activations are stored as S.
  template <typename S = float>
  void Open(const cuda::CudaOptions& options) {
    device_.reset();
    auto device = cuda::CudaDevice<float, S>::Create(0, options);
    EXPECT_TRUE(device.ok()) << device.status();
    device_ = std::move(*device);
  }

  // Returns the launches since the last call.
  std::vector<emulation::Launch> Launches() {
    SYNCGRADS_EXPECT_OK(device_->memory().Finish());
    return emulation::TakeLaunches();
  }
  std::vector<std::string> Texts() {
    std::vector<std::string> texts;
    for (const emulation::Launch& launch : Launches()) {
      texts.push_back(
          Text(launch.name, launch.bytes_read, launch.bytes_written, launch.operations));
    }
    return texts;
  }

  std::unique_ptr<Device<float>> device_;
};

// Arrays of a device's memory.
template <typename T = float>
class Arrays {
 public:
  explicit Arrays(Device<float>& device) : memory_(device.memory()) {}
  T* operator()(int64_t count) { return arrays_.emplace_back(memory_, 1, count).data(); }
  Stored<T>* Activations(int64_t count) { return reinterpret_cast<Stored<T>*>((*this)(count)); }

 private:
  DeviceMemory& memory_;
  std::deque<DeviceArray<T>> arrays_;
};

// A convolution of 8 to 16 channels with windows of 3x3, for 2 images of 6x5.
struct ConvolutionNumbers {
  static constexpr int kSamples = 2;
  static constexpr uint64_t kImages = 2 * 6 * 5 * 8;
  static constexpr uint64_t kWindows = 2 * 6 * 5;
  static constexpr uint64_t kRow = 3 * 3 * 8;
  static constexpr uint64_t kRows = kWindows * kRow;
  static constexpr uint64_t kOutputs = kWindows * 16;
  static constexpr uint64_t kWeights = 16 * kRow;
  static constexpr uint64_t kOperations = 2 * kWindows * kRow * 16;
  // The numbers of the rows that are not padding. Along one axis, the window's middle is in the
  // image at all positions, and each of its ends at all positions but one.
  static constexpr uint64_t kInside = 2 * (3 * 6 - 2) * (3 * 5 - 2) * 8;

  static Convolution<float> Layer(const float* weights) {
    return {*Window::Create("conv", Shape::Image(8, 6, 5), 3, 3, 1, 1), 16, weights};
  }
};

TEST_F(LaunchesTest, ConvolutionReadsEachOperandOnce) {
  using N = ConvolutionNumbers;
  Arrays<> arrays(*device_);
  const Convolution<float> layer = N::Layer(arrays(N::kWeights));
  device_->Convolve(layer, N::kSamples, arrays.Activations(N::kImages),
                    arrays.Activations(N::kOutputs));
  EXPECT_THAT(Texts(), ElementsAre(Floats("PackWeights", N::kWeights, N::kWeights),
                                   Floats("Im2ColColumn", N::kImages, N::kRows),
                                   Floats("cublasGemmEx TN", N::kRows + N::kWeights, N::kOutputs,
                                          N::kOperations)));
}

TEST_F(LaunchesTest, ConvolutionBackwardReadsNoPadding) {
  using N = ConvolutionNumbers;
  Arrays<> arrays(*device_);
  const Convolution<float> layer = N::Layer(arrays(N::kWeights));
  device_->ConvolveBackward(layer, N::kSamples, arrays.Activations(N::kImages),
                            arrays.Activations(N::kOutputs), arrays.Activations(N::kOutputs),
                            {arrays(N::kWeights), nullptr, arrays.Activations(N::kImages)});
  EXPECT_THAT(
      Texts(),
      ElementsAre(Floats("PackWeights", N::kWeights, N::kWeights),
                  Floats("Im2ColColumn", N::kImages, N::kRows),
                  Floats("cublasGemmEx NT", N::kRows + N::kOutputs, N::kWeights, N::kOperations),
                  Floats("cublasGemmEx NN", N::kOutputs + N::kWeights, N::kRows, N::kOperations),
                  Floats("Col2ImColumn", N::kInside, N::kImages),
                  Floats("UnpackWeights", N::kWeights, N::kWeights)));
}

// Weights are read as float, and so are their gradients written. All else takes 2 bytes a number.
TEST_F(LaunchesTest, ConvolutionInBf16MovesHalfOfTheBytes) {
  using N = ConvolutionNumbers;
  Open<cuda::Bf16>({.cudnn = false});
  Arrays<> arrays(*device_);
  const Convolution<float> layer = N::Layer(arrays(N::kWeights));
  device_->Convolve(layer, N::kSamples, arrays.Activations(N::kImages),
                    arrays.Activations(N::kOutputs));
  device_->ConvolveBackward(layer, N::kSamples, arrays.Activations(N::kImages),
                            arrays.Activations(N::kOutputs), arrays.Activations(N::kOutputs),
                            {arrays(N::kWeights), nullptr, arrays.Activations(N::kImages)});
  const std::string pack = Text("PackWeights Bf16", 4 * N::kWeights, 2 * N::kWeights);
  const std::string im2col = Text("Im2ColColumn Bf16", 2 * N::kImages, 2 * N::kRows);
  EXPECT_THAT(
      Texts(),
      ElementsAre(
          pack, im2col,
          Text("cublasGemmEx TN", 2 * (N::kRows + N::kWeights), 2 * N::kOutputs, N::kOperations),
          pack, im2col,
          Text("cublasGemmEx NT", 2 * (N::kRows + N::kOutputs), 4 * N::kWeights, N::kOperations),
          Text("cublasGemmEx NN", 2 * (N::kOutputs + N::kWeights), 2 * N::kRows, N::kOperations),
          Text("Col2ImColumn Bf16", 2 * N::kInside, 2 * N::kImages),
          Floats("UnpackWeights", N::kWeights, N::kWeights)));
}

// The second slice adds to the gradient of the first.
TEST_F(LaunchesTest, ConvolutionInSlicesReadsTheGradientAgain) {
  using N = ConvolutionNumbers;
  Open({.row_bytes = 1, .cudnn = false});
  Arrays<> arrays(*device_);
  const Convolution<float> layer = N::Layer(arrays(N::kWeights));
  device_->ConvolveBackward(layer, N::kSamples, arrays.Activations(N::kImages),
                            arrays.Activations(N::kOutputs), arrays.Activations(N::kOutputs),
                            {arrays(N::kWeights), nullptr, nullptr});
  const uint64_t factors = (N::kRows + N::kOutputs) / 2;
  EXPECT_THAT(
      Texts(),
      ElementsAre(Floats("Im2ColColumn", N::kImages / 2, N::kRows / 2),
                  Floats("cublasGemmEx NT", factors, N::kWeights, N::kOperations / 2),
                  Floats("Im2ColColumn", N::kImages / 2, N::kRows / 2),
                  Floats("cublasGemmEx NT", factors + N::kWeights, N::kWeights, N::kOperations / 2),
                  Floats("UnpackWeights", N::kWeights, N::kWeights)));
}

// A batch normalisation of 40 rows, which are summed in 2 strips, and 8 channels.
TEST_F(LaunchesTest, BatchNormReadsItsInputTwiceInEachDirection) {
  constexpr uint64_t kNumbers = 40 * 8, kChannels = 8;
  // Two sums of each column of each strip, in double.
  constexpr uint64_t kStripBytes = 2 * 2 * kChannels * sizeof(double);
  Arrays<> arrays(*device_);
  BatchStatistics<float> statistics = {arrays(kChannels), arrays(kChannels), arrays(kChannels),
                                       arrays(kChannels), 0.1};
  Normalisation<float> layer;
  layer.rows = 40;
  layer.channels = kChannels;
  layer.epsilon = 1e-5;
  layer.mean = statistics.mean;
  layer.variance = statistics.variance;
  layer.scale = arrays(kChannels);
  layer.shift = arrays(kChannels);
  layer.residual = arrays.Activations(kNumbers);
  layer.activation = Activation::kRelu;
  const Stored<float>* input = arrays.Activations(kNumbers);
  Stored<float>* output = arrays.Activations(kNumbers);
  device_->FindStatistics(layer.rows, kChannels, input, statistics);
  device_->Normalise(layer, input, output);
  EXPECT_THAT(Texts(),
              ElementsAre(Text("VisitStrip StripMoments", 4 * kNumbers, kStripBytes),
                          // The running statistics are read and written, the batch's are written.
                          // The first row is read.
                          Text("VisitColumn SetStatistics", kStripBytes + 4 * 3 * kChannels,
                               4 * 4 * kChannels),
                          Floats("NormaliseColumn", 2 * kNumbers + 4 * kChannels, kNumbers)));

  device_->NormaliseBackward(layer, /*of_batch=*/true, input, output, arrays.Activations(kNumbers),
                             {arrays(kChannels), arrays(kChannels), arrays.Activations(kNumbers)});
  EXPECT_THAT(
      Texts(),
      ElementsAre(
          // Reads gradient, output, input and mean; writes the gradient before the activation.
          Text("VisitStrip StripGradients", 4 * (3 * kNumbers + kChannels),
               4 * kNumbers + kStripBytes),
          Text("VisitColumn SetGradients", kStripBytes + 4 * 3 * kChannels, 4 * 5 * kChannels),
          Floats("CombineColumn", 2 * kNumbers + 3 * kChannels, kNumbers)));
}

TEST_F(LaunchesTest, ReluReadsGradientsThatItDrops) {
  Arrays<> arrays(*device_);
  Stored<float>* const a = arrays.Activations(100);
  Stored<float>* const b = arrays.Activations(100);
  device_->Add(Activation::kRelu, 100, a, b, arrays.Activations(100));
  device_->ActivateBackward(Activation::kRelu, 100, a, b);
  EXPECT_THAT(Texts(),
              ElementsAre(Floats("AddPacks", 200, 100), Floats("ActivateBackward", 200, 100)));
}

TEST_F(LaunchesTest, PoolingReadsEachNumberOnce) {
  Arrays<> arrays(*device_);
  Arrays<int32_t> positions(*device_);
  const Window window = *Window::Create("pool", Shape::Image(4, 8, 8), 3, 3, 2, 1);
  constexpr uint64_t kInput = 4 * 8 * 8, kOutput = 4 * 4 * 4;
  int32_t* const chosen = positions(kOutput);
  device_->Pool(Pooling::kMax, window, 1, arrays.Activations(kInput), arrays.Activations(kOutput),
                chosen);
  device_->PoolBackward(Pooling::kMax, window, 1, chosen, arrays.Activations(kOutput),
                        arrays.Activations(kInput));
  EXPECT_THAT(Texts(), ElementsAre(Floats("MaxPoolColumn", kInput, 2 * kOutput),
                                   Floats("MaxPoolBackwardColumn", 2 * kOutput, kInput)));
}

TEST_F(LaunchesTest, LossIsFoundInParts) {
  constexpr uint64_t kRows = 3, kColumns = 10;
  constexpr uint64_t kOutputs = 4 * kRows * kColumns;   // bytes
  constexpr uint64_t kColumn = sizeof(double) * kRows;  // a number of each row
  constexpr uint64_t kParts = 3 * kColumn * kColumns;   // three numbers of each part of a row
  constexpr uint64_t kPartialSums = 256 * sizeof(double);
  Arrays<> arrays(*device_);
  Arrays<double> doubles(*device_);
  const double classes[kRows] = {1, 2, 3};
  double* const targets = doubles(kRows);
  device_->memory().Upload(classes, sizeof(classes), targets);
  device_->FindLoss({}, kRows, kColumns, arrays.Activations(kRows * kColumns), targets, kRows,
                    doubles(1), arrays.Activations(kRows * kColumns));
  EXPECT_THAT(Texts(),
              ElementsAre(Text("upload", 0, kColumn), Text("SumLossPart", kOutputs, kParts),
                          // Reads the output of each row's class.
                          Text("CombineLossParts", kParts + kColumn + 4 * kRows, 2 * kColumn),
                          Text("FindLoss", kOutputs + 2 * kColumn, kOutputs),
                          Text("SumPartly ReadNumber", kColumn, kPartialSums),
                          Text("AddPartialSums", kPartialSums + 8, 8)));
}

TEST_F(LaunchesTest, AdamReadsGradientsAndUpdatesParametersAndSlots) {
  Arrays<> arrays(*device_);
  const ArrayUpdate<float> updates[] = {
      {1, 100, arrays(100), arrays(100), {arrays(100), arrays(100)}},
      {1, 50, arrays(50), arrays(50), {arrays(50), arrays(50)}}};
  device_->Update(Adam(), updates);
  EXPECT_THAT(Texts(), ElementsAre(Floats("AdamStep Arrays", 4 * 150, 3 * 150)));
}

// Kernels do not run again for operands of the same sizes. But an operand that is given twice is
// read once.
TEST_F(LaunchesTest, LaunchesOfTheSameSizesHaveTheSameBytes) {
  Arrays<> arrays(*device_);
  Stored<float>* const a = arrays.Activations(100);
  Stored<float>* const b = arrays.Activations(100);
  device_->Add(Activation::kIdentity, 100, a, b, arrays.Activations(100));
  device_->Add(Activation::kIdentity, 100, arrays.Activations(100), arrays.Activations(100),
               arrays.Activations(100));
  device_->Add(Activation::kIdentity, 100, a, b, a);
  device_->Add(Activation::kIdentity, 100, a, a, b);
  device_->Add(Activation::kIdentity, 60, a, b, a);
  EXPECT_THAT(Texts(), ElementsAre(Floats("AddPacks", 200, 100), Floats("AddPacks", 200, 100),
                                   Floats("AddPacks", 200, 100), Floats("AddPacks", 100, 100),
                                   Floats("AddPacks", 120, 60)));
}

TEST_F(LaunchesTest, CopiesAreCounted) {
  Arrays<> arrays(*device_);
  float* const a = arrays(100);
  float* const b = arrays(100);
  std::vector<float> host(100);
  device_->memory().SetZero(a, 400);
  device_->memory().Copy(a, 400, b);
  SYNCGRADS_EXPECT_OK(device_->memory().DownloadNow(b, 400, host.data()));
  EXPECT_THAT(Texts(), ElementsAre(Floats("memset", 0, 100), Floats("copy", 100, 100),
                                   Floats("download", 100, 0)));
}

TEST_F(LaunchesTest, EachLaunchOfATrainingStepIsCounted) {
  v1::ModelSpec spec;
  const auto add_convolution = [](v1::LayerSpec& layer) {
    v1::Conv2dSpec& convolution = *layer.mutable_conv2d();
    convolution.set_outputs(8);
    convolution.set_kernel_size(3);
    convolution.set_padding(1);
    convolution.set_no_bias(true);
  };
  add_convolution(*spec.add_layers());
  spec.add_layers()->mutable_batch_norm()->set_activation(v1::RELU);
  v1::PoolSpec& pool = *spec.add_layers()->mutable_max_pool();
  pool.set_kernel_size(2);
  pool.set_stride(2);
  v1::ResidualSpec& residual = *spec.add_layers()->mutable_residual();
  residual.set_activation(v1::RELU);
  add_convolution(*residual.add_body());
  residual.add_body()->mutable_batch_norm();
  spec.add_layers()->mutable_global_average_pool();
  spec.add_layers()->mutable_dense()->set_outputs(10);
  const Shape shape = Shape::Image(3, 8, 8);
  const auto model = BuildModel<float>(spec, shape, NoCustomLayers(), *device_);
  SYNCGRADS_ASSERT_OK(model);
  (*model)->Initialise(1);
  Launches();

  Pass pass;
  pass.training = true;
  const Matrix<float> images = Matrix<float>::Zero(4, shape.size());
  const auto nothing = [](size_t) { return absl::OkStatus(); };
  SYNCGRADS_ASSERT_OK((*model)->ComputeGradients(
      pass, images, Loss(), std::vector<double>{0, 1, 2, 3}, 4, nothing, nothing));
  std::vector<std::string> names;
  for (const emulation::Launch& launch : Launches()) {
    names.push_back(launch.name);
    EXPECT_GT(launch.bytes_read + launch.bytes_written, 0u) << launch.name;
  }
  const std::string convolution = "PackWeights, Im2ColColumn, cublasGemmEx TN";
  const std::string norm = "VisitStrip StripMoments, VisitColumn SetStatistics, NormaliseColumn";
  const std::string dense = "cublasGemmEx NN, AddBiasToColumn";
  const std::string loss =
      "SumLossPart, CombineLossParts, FindLoss, SumPartly ReadNumber, AddPartialSums";
  const std::string dense_backward =
      "VisitStrip StripGradients, VisitColumn SetSum, cublasGemmEx NT, cublasGemmEx TN";
  const std::string norm_backward =
      "VisitStrip StripGradients, VisitColumn SetGradients, CombineColumn";
  const std::string convolution_backward =
      "Im2ColColumn, cublasGemmEx NT, cublasGemmEx NN, Col2ImColumn, UnpackWeights";
  // The first layer needs no gradient by its input.
  const std::string first_backward = "Im2ColColumn, cublasGemmEx NT, UnpackWeights";
  const std::vector<std::string> forward = {"upload, upload", convolution, norm,
                                            "MaxPoolColumn",  convolution, norm,
                                            "AveragePool",    dense};
  const std::vector<std::string> backward = {
      dense_backward, "AveragePoolBackward",   norm_backward, convolution_backward,
      "AddPacks",     "MaxPoolBackwardColumn", norm_backward, first_backward};
  EXPECT_EQ(absl::StrJoin(names, ", "), absl::StrCat(absl::StrJoin(forward, ", "), ", ", loss, ", ",
                                                     absl::StrJoin(backward, ", ")));
}

}  // namespace
}  // namespace syncgrads
