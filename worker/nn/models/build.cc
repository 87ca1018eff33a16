#include "worker/nn/models/build.h"

#include <memory>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "worker/nn/gradient_buffers.h"
#include "worker/nn/layers/batch_norm.h"
#include "worker/nn/layers/conv2d.h"
#include "worker/nn/layers/dense.h"
#include "worker/nn/layers/dropout.h"
#include "worker/nn/layers/flatten.h"
#include "worker/nn/layers/pool.h"
#include "worker/nn/layers/residual.h"

namespace syncgrads {
namespace {

constexpr double kMomentum = 0.1;
constexpr double kEpsilon = 1e-5;

Activation ActivationOf(v1::Activation activation) {
  switch (activation) {
    case v1::TANH:
      return Activation::kTanh;
    case v1::RELU:
      return Activation::kRelu;
    case v1::SIGMOID:
      return Activation::kSigmoid;
    default:
      return Activation::kIdentity;
  }
}

Initialisation InitialisationOf(v1::Initialisation initialisation, Initialisation usual) {
  switch (initialisation) {
    case v1::GLOROT_UNIFORM:
      return Initialisation::kGlorotUniform;
    case v1::GLOROT_NORMAL:
      return Initialisation::kGlorotNormal;
    case v1::HE_UNIFORM:
      return Initialisation::kHeUniform;
    case v1::HE_NORMAL:
      return Initialisation::kHeNormal;
    case v1::HE_NORMAL_OUT:
      return Initialisation::kHeNormalOut;
    case v1::LECUN_UNIFORM:
      return Initialisation::kLecunUniform;
    case v1::LECUN_NORMAL:
      return Initialisation::kLecunNormal;
    case v1::ZEROS:
      return Initialisation::kZeros;
    default:
      return usual;
  }
}

using Layers = google::protobuf::RepeatedPtrField<v1::LayerSpec>;

template <typename T>
class Builder {
 public:
  Builder(const CustomLayers& custom, Device<T>& device)
      : custom_(custom), device_(device), buffers_(std::make_shared<GradientBuffers<T>>(device)) {}

  absl::StatusOr<std::unique_ptr<Chain<T>>> BuildChain(const std::string& name, const Layers& specs,
                                                       const Shape& input) {
    std::vector<std::unique_ptr<Layer<T>>> layers;
    Shape shape = input;
    for (const v1::LayerSpec& spec : specs) {
      SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<Layer<T>> layer, BuildLayer(spec, shape));
      shape = layer->output_shape();
      layers.push_back(std::move(layer));
    }
    return std::make_unique<Chain<T>>(name, device_, input, std::move(layers), buffers_);
  }

 private:
  using Result = absl::StatusOr<std::unique_ptr<Layer<T>>>;

  Result BuildLayer(const v1::LayerSpec& spec, const Shape& input) {
    switch (spec.kind_case()) {
      case v1::LayerSpec::kDense:
        return BuildDense(spec, input);
      case v1::LayerSpec::kConv2D:
        return BuildConv2d(spec, input);
      case v1::LayerSpec::kBatchNorm:
        return BuildBatchNorm(spec, input);
      case v1::LayerSpec::kMaxPool: {
        SYNCGRADS_ASSIGN_OR_RETURN(const Window window,
                                   WindowOf(spec.name(), spec.max_pool(), input));
        return std::make_unique<MaxPool<T>>(spec.name(), device_, window);
      }
      case v1::LayerSpec::kAveragePool: {
        SYNCGRADS_ASSIGN_OR_RETURN(const Window window,
                                   WindowOf(spec.name(), spec.average_pool(), input));
        return std::make_unique<AveragePool<T>>(spec.name(), device_, window);
      }
      case v1::LayerSpec::kGlobalAveragePool: {
        SYNCGRADS_ASSIGN_OR_RETURN(
            const Window window,
            Window::Create(spec.name(), input, input.height, input.width, 1, 0));
        return std::make_unique<AveragePool<T>>(spec.name(), device_, window, /*flat=*/true);
      }
      case v1::LayerSpec::kFlatten:
        return std::make_unique<Flatten<T>>(spec.name(), device_, input);
      case v1::LayerSpec::kDropout:
        return std::make_unique<Dropout<T>>(spec.name(), device_, input, spec.dropout().rate());
      case v1::LayerSpec::kResidual:
        return BuildResidual(spec, input);
      case v1::LayerSpec::kCustom: {
        CustomLayerOptions options = {spec.name(), input, {}};
        options.settings.insert(spec.custom().settings().begin(), spec.custom().settings().end());
        return custom_.Create(spec.custom().kind(), options, device_);
      }
      case v1::LayerSpec::kMinMaxScaling:
      case v1::LayerSpec::kStandardScaling:
      case v1::LayerSpec::KIND_NOT_SET:
        break;
    }
    return std::make_unique<MinMaxScaling<T>>(spec.name(), device_, input);
  }

  Result BuildDense(const v1::LayerSpec& spec, const Shape& input) {
    DenseOptions options;
    options.outputs = spec.dense().outputs();
    options.activation = ActivationOf(spec.dense().activation());
    options.initialisation =
        InitialisationOf(spec.dense().initialisation(), Initialisation::kGlorotUniform);
    options.torch_names = spec.dense().torch_names();
    return Dense<T>::Create(spec.name(), device_, input, options);
  }

  Result BuildConv2d(const v1::LayerSpec& spec, const Shape& input) {
    const v1::Conv2dSpec& conv = spec.conv2d();
    Conv2dOptions options;
    options.outputs = conv.outputs();
    options.height = options.width = conv.kernel_size();
    options.stride = conv.stride() == 0 ? 1 : conv.stride();
    options.padding = conv.padding();
    options.bias = !conv.no_bias();
    options.activation = ActivationOf(conv.activation());
    options.initialisation = InitialisationOf(conv.initialisation(), Initialisation::kHeNormal);
    return Conv2d<T>::Create(spec.name(), device_, input, options);
  }

  Result BuildBatchNorm(const v1::LayerSpec& spec, const Shape& input) {
    const v1::BatchNormSpec& norm = spec.batch_norm();
    BatchNormOptions options;
    options.momentum = norm.momentum() == 0 ? kMomentum : norm.momentum();
    options.epsilon = norm.epsilon() == 0 ? kEpsilon : norm.epsilon();
    options.activation = ActivationOf(norm.activation());
    options.across_workers = norm.across_workers();
    return std::make_unique<BatchNorm<T>>(spec.name(), device_, input, options);
  }

  Result BuildResidual(const v1::LayerSpec& spec, const Shape& input) {
    const v1::ResidualSpec& residual = spec.residual();
    SYNCGRADS_ASSIGN_OR_RETURN(auto body, BuildChain(spec.name(), residual.body(), input));
    SYNCGRADS_ASSIGN_OR_RETURN(auto shortcut, BuildChain(spec.name(), residual.shortcut(), input));
    return Residual<T>::Create(spec.name(), device_, std::move(body), std::move(shortcut),
                               ActivationOf(residual.activation()));
  }

  static absl::StatusOr<Window> WindowOf(const std::string& name, const v1::PoolSpec& pool,
                                         const Shape& input) {
    return Window::Create(name, input, pool.kernel_size(), pool.kernel_size(),
                          pool.stride() == 0 ? pool.kernel_size() : pool.stride(), pool.padding());
  }

  const CustomLayers& custom_;
  Device<T>& device_;
  const std::shared_ptr<GradientBuffers<T>> buffers_;  // of all chains of the model
};

}  // namespace

template <typename T>
absl::StatusOr<std::unique_ptr<Model<T>>> BuildModel(const v1::ModelSpec& spec, const Shape& input,
                                                     const CustomLayers& custom,
                                                     Device<T>& device) {
  SYNCGRADS_ASSIGN_OR_RETURN(auto chain,
                             Builder<T>(custom, device).BuildChain("model", spec.layers(), input));
  return std::make_unique<Model<T>>(std::move(chain));
}

template <typename T>
MinMaxScaling<T>* FindMinMaxScaling(const Model<T>& model) {
  return dynamic_cast<MinMaxScaling<T>*>(model.layers().front().get());
}

absl::StatusOr<Loss> BuildLoss(const v1::LossSpec& spec, int64_t outputs,
                               const CustomLosses& custom, size_t targets_per_row) {
  Loss loss;
  if (spec.has_custom()) {
    const CustomLossOptions options = {
        outputs,
        {spec.custom().settings().begin(), spec.custom().settings().end()},
        targets_per_row};
    SYNCGRADS_ASSIGN_OR_RETURN(loss.custom, custom.Create(spec.custom().kind(), options));
    loss.custom_has_classes = spec.custom().targets() == v1::CustomLossSpec::CLASSES;
  }
  loss.l2 = spec.l2();
  loss.label_smoothing = spec.logit_cross_entropy().label_smoothing();
  if (spec.has_squared_error()) {
    loss.kind = Loss::Kind::kSquaredError;
  } else if (spec.has_sigmoid_cross_entropy()) {
    loss.kind = Loss::Kind::kSigmoidCrossEntropy;
  } else {
    loss.kind = Loss::Kind::kLogitCrossEntropy;
  }
  if (spec.reduction() == v1::LossSpec::SUM) {
    loss.reduction = Loss::Reduction::kSum;
  } else if (spec.reduction() == v1::LossSpec::PER_ELEMENT) {
    loss.reduction = Loss::Reduction::kPerElement;
  } else if (spec.reduction() == v1::LossSpec::BY_COLUMN) {
    loss.reduction = Loss::Reduction::kByColumn;
  } else {
    loss.reduction = Loss::Reduction::kMean;
  }
  return loss;
}

template absl::StatusOr<std::unique_ptr<Model<float>>> BuildModel(const v1::ModelSpec&,
                                                                  const Shape&, const CustomLayers&,
                                                                  Device<float>&);
template absl::StatusOr<std::unique_ptr<Model<double>>> BuildModel(const v1::ModelSpec&,
                                                                   const Shape&,
                                                                   const CustomLayers&,
                                                                   Device<double>&);
template MinMaxScaling<float>* FindMinMaxScaling(const Model<float>&);
template MinMaxScaling<double>* FindMinMaxScaling(const Model<double>&);

}  // namespace syncgrads
