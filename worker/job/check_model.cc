#include "worker/job/check_model.h"

#include <cmath>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/job/check_values.h"
#include "worker/nn/models/named_model.h"

namespace syncgrads {
namespace {

// The largest number of outputs of a layer. It is more than fits into memory, and keeps products
// of layer sizes far from overflow.
constexpr uint32_t kMaxOutputs = 1 << 24;
constexpr uint32_t kMaxKernelSize = 1 << 12;
// The largest number of channels of an image.
constexpr uint32_t kMaxChannels = 1 << 14;

absl::Status CheckActivation(const Field& field, v1::Activation activation) {
  return CheckEnum(field, "activation", activation, v1::Activation_IsValid(activation));
}

absl::Status CheckInitialisation(const Field& field, v1::Initialisation initialisation) {
  return CheckEnum(field, "initialisation", initialisation,
                   v1::Initialisation_IsValid(initialisation));
}

absl::Status CheckConv2d(const v1::Conv2dSpec& conv, const Field& field) {
  SYNCGRADS_RETURN_IF_ERROR(CheckCount(field, "outputs", conv.outputs(), kMaxChannels));
  SYNCGRADS_RETURN_IF_ERROR(CheckCount(field, "kernel_size", conv.kernel_size(), kMaxKernelSize));
  SYNCGRADS_RETURN_IF_ERROR(CheckActivation(field, conv.activation()));
  return CheckInitialisation(field, conv.initialisation());
}

absl::Status CheckBatchNorm(const v1::BatchNormSpec& norm, const Field& field) {
  SYNCGRADS_RETURN_IF_ERROR(CheckFraction(field, "momentum", norm.momentum()));
  if (!(norm.epsilon() >= 0) || !std::isfinite(norm.epsilon())) {
    return field.Member("epsilon").Error(
        absl::StrCat("is ", norm.epsilon(), ", must be a finite number that is not negative"));
  }
  return CheckActivation(field, norm.activation());
}

using Layers = google::protobuf::RepeatedPtrField<v1::LayerSpec>;

absl::Status CheckLayers(const Layers& layers, const Field& field, const char* member,
                         std::set<std::string>& names, bool outermost);

absl::Status CheckLayer(const v1::LayerSpec& layer, const Field& field, bool first,
                        std::set<std::string>& names) {
  if (absl::StrContains(layer.name(), '/')) {
    return field.Member("name").Error(absl::StrCat("\"", layer.name(), "\" contains a slash"));
  }
  if (layer.kind_case() != v1::LayerSpec::KIND_NOT_SET && !names.insert(layer.name()).second) {
    return field.Member("name").Error(
        absl::StrCat("\"", layer.name(), "\" is the name of an earlier layer"));
  }
  switch (layer.kind_case()) {
    case v1::LayerSpec::kDense: {
      const Field dense = field.Member("dense");
      SYNCGRADS_RETURN_IF_ERROR(CheckCount(dense, "outputs", layer.dense().outputs(), kMaxOutputs));
      SYNCGRADS_RETURN_IF_ERROR(CheckActivation(dense, layer.dense().activation()));
      return CheckInitialisation(dense, layer.dense().initialisation());
    }
    case v1::LayerSpec::kMinMaxScaling:
    case v1::LayerSpec::kStandardScaling:
      if (first) return absl::OkStatus();
      return field.Member(layer.has_min_max_scaling() ? "min_max_scaling" : "standard_scaling")
          .Error("must be the first layer");
    case v1::LayerSpec::kConv2D:
      return CheckConv2d(layer.conv2d(), field.Member("conv2d"));
    case v1::LayerSpec::kBatchNorm:
      return CheckBatchNorm(layer.batch_norm(), field.Member("batch_norm"));
    case v1::LayerSpec::kMaxPool:
      return CheckCount(field.Member("max_pool"), "kernel_size", layer.max_pool().kernel_size(),
                        kMaxKernelSize);
    case v1::LayerSpec::kAveragePool:
      return CheckCount(field.Member("average_pool"), "kernel_size",
                        layer.average_pool().kernel_size(), kMaxKernelSize);
    case v1::LayerSpec::kDropout:
      if (layer.dropout().rate() >= 0 && layer.dropout().rate() < 1) return absl::OkStatus();
      return field.Member("dropout").Member("rate").Error(
          absl::StrCat("is ", layer.dropout().rate(), ", must be at least 0 and less than 1"));
    case v1::LayerSpec::kResidual: {
      const Field residual = field.Member("residual");
      if (layer.residual().body().empty()) return residual.Error("has no body");
      SYNCGRADS_RETURN_IF_ERROR(
          CheckLayers(layer.residual().body(), residual, "body", names, /*outermost=*/false));
      SYNCGRADS_RETURN_IF_ERROR(CheckLayers(layer.residual().shortcut(), residual, "shortcut",
                                            names, /*outermost=*/false));
      return CheckActivation(residual, layer.residual().activation());
    }
    case v1::LayerSpec::kCustom:
      if (!layer.custom().kind().empty()) return absl::OkStatus();
      return field.Member("custom").Member("kind").Error("is missing");
    case v1::LayerSpec::kFlatten:
    case v1::LayerSpec::kGlobalAveragePool:
      return absl::OkStatus();
    case v1::LayerSpec::KIND_NOT_SET:
      break;
  }
  return field.Error("has no kind: give dense, conv2d, or another kind listed in proto/job.proto");
}

absl::Status CheckLayers(const Layers& layers, const Field& field, const char* member,
                         std::set<std::string>& names, bool outermost) {
  for (int i = 0; i < layers.size(); ++i) {
    SYNCGRADS_RETURN_IF_ERROR(
        CheckLayer(layers[i], field.Member(member, i), outermost && i == 0, names));
  }
  return absl::OkStatus();
}

absl::Status CheckNamedModel(const v1::NamedModel& named, const Field& field) {
  const absl::StatusOr<v1::ModelSpec> model = ExpandNamedModel(named);
  if (!model.ok()) return field.Member("name").Error(model.status().message());
  SYNCGRADS_RETURN_IF_ERROR(CheckCount(field, "outputs", named.outputs(), kMaxOutputs));
  for (int i = 0; i < named.hidden_size(); ++i) {
    if (named.name() != "mlp") {
      return field.Member("hidden", i)
          .Error(absl::StrCat("is for mlp only, but the model is ", named.name()));
    }
    if (named.hidden(i) == 0 || named.hidden(i) > kMaxOutputs) {
      return field.Member("hidden", i)
          .Error(absl::StrCat("is ", named.hidden(i), ", must be from 1 to ", kMaxOutputs));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckModel(const v1::ModelSpec& model, const Field& field) {
  if (model.init_from().empty() && (model.init_skip_size() > 0 || model.init_allow_missing())) {
    const char* name = model.init_skip_size() > 0 ? "init_skip" : "init_allow_missing";
    return field.Member(name, model.init_skip_size() > 0 ? 0 : -1)
        .Error("is given, but init_from is not");
  }
  for (int i = 0; i < model.init_skip_size(); ++i) {
    if (model.init_skip(i).empty()) return field.Member("init_skip", i).Error("is empty");
  }
  if (model.has_named()) {
    if (!model.layers().empty()) {
      return field.Member("named").Error("and layers are both given: give one of them");
    }
    return CheckNamedModel(model.named(), field.Member("named"));
  }
  if (model.layers().empty()) return field.Error("has no layers");
  std::set<std::string> names;
  SYNCGRADS_RETURN_IF_ERROR(
      CheckLayers(model.layers(), field, "layers", names, /*outermost=*/true));
  const int last = model.layers_size() - 1;
  if (!model.layers(last).has_dense()) {
    return field.Member("layers", last).Error("the last layer must be dense");
  }
  return absl::OkStatus();
}

absl::Status CheckLoss(const v1::LossSpec& loss, const v1::ModelSpec& model,
                       const v1::DataSpec& data, const Field& field, const Field& model_field) {
  const uint32_t targets = 1 + static_cast<uint32_t>(data.more_targets_size());
  if (targets > 1 && !HasNumbers(loss)) {
    return field.Error(
        "has targets with classes, but data.more_targets are given: they are for numbers");
  }
  const int last = model.layers_size() - 1;
  const uint32_t outputs =
      model.has_named() ? model.named().outputs() : model.layers(last).dense().outputs();
  const auto wrong_outputs = [&](absl::string_view needed) {
    const Field layer = model.has_named() ? model_field.Member("named")
                                          : model_field.Member("layers", last).Member("dense");
    return layer.Member("outputs").Error(
        absl::StrCat("is ", outputs, " in the last layer, but the loss needs ", needed));
  };
  switch (loss.kind_case()) {
    case v1::LossSpec::kLogitCrossEntropy:
      if (outputs < 2) return wrong_outputs("one for each class, at least 2");
      if (const double smoothing = loss.logit_cross_entropy().label_smoothing();
          !(smoothing >= 0 && smoothing < 1)) {
        return field.Member("logit_cross_entropy")
            .Member("label_smoothing")
            .Error(absl::StrCat("is ", smoothing, ", must be from 0 to below 1"));
      }
      break;
    case v1::LossSpec::kSquaredError:
      if (outputs != targets) return wrong_outputs(absl::StrCat(targets));
      break;
    case v1::LossSpec::kSigmoidCrossEntropy:
      if (outputs != 1) return wrong_outputs("1");
      break;
    case v1::LossSpec::kCustom:
      if (loss.custom().kind().empty()) {
        return field.Member("custom").Member("kind").Error("is missing: the name of a loss");
      }
      SYNCGRADS_RETURN_IF_ERROR(
          CheckEnum(field.Member("custom"), "targets", loss.custom().targets(),
                    v1::CustomLossSpec::Targets_IsValid(loss.custom().targets())));
      break;
    case v1::LossSpec::KIND_NOT_SET:
      return field.Error(
          "has no kind: give logit_cross_entropy, squared_error, sigmoid_cross_entropy or custom");
  }
  if (!std::isfinite(loss.l2()) || loss.l2() < 0) {
    return field.Member("l2").Error(
        absl::StrCat("is ", loss.l2(), ", must be a finite number that is not negative"));
  }
  return CheckEnum(field, "reduction", loss.reduction(),
                   v1::LossSpec::Reduction_IsValid(loss.reduction()));
}

bool HasNumbers(const v1::LossSpec& loss) {
  return loss.has_squared_error() || loss.custom().targets() == v1::CustomLossSpec::NUMBERS;
}

}  // namespace syncgrads
