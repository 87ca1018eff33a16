#include "worker/nn/build.h"

#include <utility>
#include <vector>

#include "worker/nn/dense.h"

namespace syncgrads {
namespace {

Activation ActivationOf(v1::DenseSpec::Activation activation) {
  switch (activation) {
    case v1::DenseSpec::TANH:
      return Activation::kTanh;
    case v1::DenseSpec::RELU:
      return Activation::kRelu;
    case v1::DenseSpec::SIGMOID:
      return Activation::kSigmoid;
    default:
      return Activation::kIdentity;
  }
}

}  // namespace

template <typename T>
std::unique_ptr<Model<T>> BuildModel(const v1::ModelSpec& spec, int64_t features) {
  std::vector<std::unique_ptr<Layer<T>>> layers;
  int64_t inputs = features;
  for (const v1::LayerSpec& layer : spec.layers()) {
    if (layer.has_dense()) {
      const v1::DenseSpec& dense = layer.dense();
      layers.push_back(std::make_unique<Dense<T>>(dense.name(), inputs, dense.outputs(),
                                                  ActivationOf(dense.activation())));
    } else {
      layers.push_back(std::make_unique<WindowInput<T>>(inputs));
    }
    inputs = layers.back()->outputs();
  }
  return std::make_unique<Model<T>>(std::move(layers));
}

template <typename T>
WindowInput<T>* FindWindowInput(const Model<T>& model) {
  return dynamic_cast<WindowInput<T>*>(model.layers().front().get());
}

Loss BuildLoss(const v1::LossSpec& spec) {
  Loss loss;
  loss.l2 = spec.l2();
  if (spec.has_squared_error()) {
    loss.kind = Loss::Kind::kSquaredError;
  } else if (spec.has_sigmoid_cross_entropy()) {
    loss.kind = Loss::Kind::kSigmoidCrossEntropy;
  } else {
    loss.kind = Loss::Kind::kLogitCrossEntropy;
  }
  if (spec.normalisation() == v1::LossSpec::SUM) {
    loss.normalisation = Loss::Normalisation::kSum;
  } else if (spec.normalisation() == v1::LossSpec::PER_ELEMENT) {
    loss.normalisation = Loss::Normalisation::kPerElement;
  } else {
    loss.normalisation = Loss::Normalisation::kMean;
  }
  return loss;
}

template std::unique_ptr<Model<float>> BuildModel(const v1::ModelSpec&, int64_t);
template std::unique_ptr<Model<double>> BuildModel(const v1::ModelSpec&, int64_t);
template WindowInput<float>* FindWindowInput(const Model<float>&);
template WindowInput<double>* FindWindowInput(const Model<double>&);

}  // namespace syncgrads
