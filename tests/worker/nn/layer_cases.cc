#include "tests/worker/nn/layer_cases.h"

#include <memory>

#include "worker/nn/layers/batch_norm.h"
#include "worker/nn/layers/conv2d.h"
#include "worker/nn/layers/dense.h"
#include "worker/nn/layers/dropout.h"
#include "worker/nn/layers/flatten.h"
#include "worker/nn/layers/min_max_scaling.h"
#include "worker/nn/layers/pool.h"
#include "worker/nn/layers/residual.h"

namespace syncgrads {
namespace {

LayerCase InTraining(LayerCase layer) {
  layer.training = true;
  layer.samples_are_independent = false;
  return layer;
}

LayerCase ConvCase(const std::string& name, const Shape& input, const Conv2dOptions& options) {
  return Case(name, input, [options]<typename T>(Device<T>& device, const Shape& shape) {
    return std::unique_ptr<Layer<T>>(*Conv2d<T>::Create("conv", device, shape, options));
  });
}

LayerCase DenseCase(const std::string& name, int64_t inputs, const DenseOptions& options) {
  return Case(
      name, Shape::Flat(inputs), [options]<typename T>(Device<T>& device, const Shape& shape) {
        return std::unique_ptr<Layer<T>>(*Dense<T>::Create("dense", device, shape, options));
      });
}

template <template <typename> class Pool>
LayerCase PoolCase(const std::string& name, const Shape& input, int64_t size, int64_t stride,
                   int64_t padding) {
  return Case(name, input,
              [=]<typename T>(Device<T>& device, const Shape& shape) -> std::unique_ptr<Layer<T>> {
                const Window window = *Window::Create("pool", shape, size, size, stride, padding);
                return std::make_unique<Pool<T>>("pool", device, window);
              });
}

template <typename T>
std::unique_ptr<Layer<T>> MakeResidual(Device<T>& device, const Shape& shape, int64_t stride) {
  Conv2dOptions conv;
  conv.outputs = stride == 1 ? shape.channels : 4;
  conv.height = conv.width = 3;
  conv.stride = stride;
  conv.padding = 1;
  conv.bias = false;
  std::vector<std::unique_ptr<Layer<T>>> body, shortcut;
  body.push_back(*Conv2d<T>::Create("body.0", device, shape, conv));
  BatchNormOptions norm;
  norm.activation = Activation::kTanh;
  const Shape made = body.back()->output_shape();
  body.push_back(std::make_unique<BatchNorm<T>>("body.1", device, made, norm));
  if (stride > 1) {
    conv.height = conv.width = 1;
    conv.padding = 0;
    shortcut.push_back(*Conv2d<T>::Create("shortcut.0", device, shape, conv));
  }
  return *Residual<T>::Create(
      "residual", device, std::make_unique<Chain<T>>("body", device, shape, std::move(body)),
      std::make_unique<Chain<T>>("shortcut", device, shape, std::move(shortcut)),
      Activation::kTanh);
}

LayerCase ResidualCase(const std::string& name, int64_t stride) {
  return Case(name, Shape::Image(3, 6, 5),
              [stride]<typename T>(Device<T>& device, const Shape& shape) {
                return MakeResidual<T>(device, shape, stride);
              });
}

LayerCase BatchNormCase(const std::string& name, const Shape& input) {
  return Case(name, input,
              []<typename T>(Device<T>& device, const Shape& shape) -> std::unique_ptr<Layer<T>> {
                BatchNormOptions options;
                options.activation = Activation::kTanh;
                return std::make_unique<BatchNorm<T>>("norm", device, shape, options);
              });
}

}  // namespace

std::vector<LayerCase> AllLayerCases() {
  const auto flatten = []<typename T>(Device<T>& device,
                                      const Shape& shape) -> std::unique_ptr<Layer<T>> {
    return std::make_unique<Flatten<T>>("flatten", device, shape);
  };
  const auto dropout = []<typename T>(Device<T>& device,
                                      const Shape& shape) -> std::unique_ptr<Layer<T>> {
    return std::make_unique<Dropout<T>>("dropout", device, shape, 0.4);
  };
  return {
      DenseCase("dense", 7, {.outputs = 5, .activation = Activation::kTanh}),
      DenseCase("dense of one input and output", 1, {.outputs = 1}),
      DenseCase("dense with torch's names", 6,
                {.outputs = 9, .activation = Activation::kSigmoid, .torch_names = true}),
      ConvCase("3x3 convolution", Shape::Image(3, 6, 5),
               {.outputs = 4, .height = 3, .width = 3, .padding = 1}),
      ConvCase("strided convolution", Shape::Image(2, 7, 8),
               {.outputs = 3, .height = 3, .width = 2, .stride = 2, .padding = 1}),
      ConvCase("1x1 convolution", Shape::Image(5, 3, 4), {.outputs = 6}),
      ConvCase("1x1 strided convolution", Shape::Image(5, 4, 4), {.outputs = 3, .stride = 2}),
      ConvCase(
          "convolution of a large window", Shape::Image(1, 8, 8),
          {.outputs = 2, .height = 5, .width = 5, .padding = 2, .activation = Activation::kTanh}),
      ConvCase("convolution without bias", Shape::Image(2, 4, 4),
               {.outputs = 9, .height = 4, .width = 4, .bias = false}),
      BatchNormCase("batch norm of images", Shape::Image(3, 2, 3)),
      InTraining(BatchNormCase("batch norm of images in training", Shape::Image(3, 2, 3))),
      InTraining(BatchNormCase("batch norm of lists in training", Shape::Flat(6))),
      PoolCase<MaxPool>("max pooling", Shape::Image(3, 6, 4), 2, 2, 0),
      PoolCase<MaxPool>("overlapping max pooling", Shape::Image(2, 7, 7), 3, 2, 1),
      PoolCase<AveragePool>("average pooling", Shape::Image(3, 6, 4), 2, 2, 0),
      PoolCase<AveragePool>("overlapping average pooling", Shape::Image(2, 5, 7), 3, 2, 1),
      Case("window input", Shape::Flat(4),
           []<typename T>(Device<T>& device, const Shape& shape) -> std::unique_ptr<Layer<T>> {
             auto window = std::make_unique<MinMaxScaling<T>>("min_max_scaling", device, shape);
             window->SetRanges({-1, -2, -1, 3}, {1, 2, 0.5, 1});
             return window;
           }),
      Case("flatten", Shape::Image(3, 2, 4), flatten),
      Case("flatten of one channel", Shape::Image(1, 2, 4), flatten),
      Case("dropout", Shape::Flat(9), dropout),
      InTraining(Case("dropout in training", Shape::Flat(9), dropout)),
      ResidualCase("residual", 1),
      ResidualCase("residual that changes the shape", 2),
      InTraining(ResidualCase("residual in training", 2)),
  };
}

}  // namespace syncgrads
