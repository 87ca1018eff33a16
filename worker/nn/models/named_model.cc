#include "worker/nn/models/named_model.h"

#include <array>

#include "absl/strings/str_cat.h"

namespace syncgrads {
namespace {

using Layers = google::protobuf::RepeatedPtrField<v1::LayerSpec>;

void AddDense(Layers& layers, const std::string& name, uint32_t outputs,
              v1::Activation activation) {
  v1::LayerSpec& layer = *layers.Add();
  layer.set_name(name);
  layer.mutable_dense()->set_outputs(outputs);
  layer.mutable_dense()->set_activation(activation);
}

void AddMaxPool(Layers& layers, const std::string& name, uint32_t kernel_size, uint32_t stride,
                uint32_t padding) {
  v1::LayerSpec& layer = *layers.Add();
  layer.set_name(name);
  layer.mutable_max_pool()->set_kernel_size(kernel_size);
  layer.mutable_max_pool()->set_stride(stride);
  layer.mutable_max_pool()->set_padding(padding);
}

v1::ModelSpec Mlp(const v1::NamedModel& named) {
  v1::ModelSpec model;
  for (int i = 0; i < named.hidden_size(); ++i) {
    AddDense(*model.mutable_layers(), absl::StrCat("dense", i + 1), named.hidden(i), v1::TANH);
  }
  AddDense(*model.mutable_layers(), absl::StrCat("dense", named.hidden_size() + 1), named.outputs(),
           v1::IDENTITY);
  return model;
}

v1::ModelSpec LeNet(const v1::NamedModel& named) {
  v1::ModelSpec model;
  Layers& layers = *model.mutable_layers();
  for (const uint32_t block : {1, 2}) {
    v1::LayerSpec& layer = *layers.Add();
    layer.set_name(absl::StrCat("conv", block));
    v1::Conv2dSpec& conv = *layer.mutable_conv2d();
    conv.set_outputs(block == 1 ? 6 : 16);
    conv.set_kernel_size(5);
    conv.set_padding(2);
    conv.set_activation(v1::RELU);
    AddMaxPool(layers, absl::StrCat("pool", block), 2, 2, 0);
  }
  v1::LayerSpec& flatten = *layers.Add();
  flatten.set_name("flatten");
  flatten.mutable_flatten();
  AddDense(layers, "dense1", 120, v1::RELU);
  AddDense(layers, "dense2", 84, v1::RELU);
  AddDense(layers, "dense3", named.outputs(), v1::IDENTITY);
  return model;
}

// Adds a convolution without a bias; all convolutions of ResNet have none.
void AddConvolution(Layers& layers, const std::string& name, uint32_t outputs, uint32_t kernel_size,
                    uint32_t stride) {
  v1::LayerSpec& layer = *layers.Add();
  layer.set_name(name);
  v1::Conv2dSpec& conv = *layer.mutable_conv2d();
  conv.set_outputs(outputs);
  conv.set_kernel_size(kernel_size);
  conv.set_stride(stride);
  conv.set_padding(kernel_size / 2);
  conv.set_no_bias(true);
  conv.set_initialisation(v1::HE_NORMAL_OUT);
}

void AddBatchNorm(Layers& layers, const std::string& name, v1::Activation activation) {
  v1::LayerSpec& layer = *layers.Add();
  layer.set_name(name);
  layer.mutable_batch_norm()->set_activation(activation);
}

struct ResNetPlan {
  std::array<int, 4> blocks;
  // Blocks of 1x1, 3x3, 1x1 with four times the channels, instead of two 3x3.
  bool bottleneck;
};

void AddBlock(Layers& layers, const std::string& name, const ResNetPlan& plan, uint32_t channels,
              uint32_t stride, bool changes_shape) {
  v1::LayerSpec& layer = *layers.Add();
  layer.set_name(name);
  v1::ResidualSpec& block = *layer.mutable_residual();
  block.set_activation(v1::RELU);
  Layers& body = *block.mutable_body();
  uint32_t outputs = channels;
  if (plan.bottleneck) {
    outputs = 4 * channels;
    AddConvolution(body, name + ".conv1", channels, 1, 1);
    AddBatchNorm(body, name + ".bn1", v1::RELU);
    AddConvolution(body, name + ".conv2", channels, 3, stride);
    AddBatchNorm(body, name + ".bn2", v1::RELU);
    AddConvolution(body, name + ".conv3", outputs, 1, 1);
    AddBatchNorm(body, name + ".bn3", v1::IDENTITY);
  } else {
    AddConvolution(body, name + ".conv1", channels, 3, stride);
    AddBatchNorm(body, name + ".bn1", v1::RELU);
    AddConvolution(body, name + ".conv2", outputs, 3, 1);
    AddBatchNorm(body, name + ".bn2", v1::IDENTITY);
  }
  if (!changes_shape) return;
  AddConvolution(*block.mutable_shortcut(), name + ".downsample.0", outputs, 1, stride);
  AddBatchNorm(*block.mutable_shortcut(), name + ".downsample.1", v1::IDENTITY);
}

v1::ModelSpec ResNet(const v1::NamedModel& named, const ResNetPlan& plan) {
  v1::ModelSpec model;
  Layers& layers = *model.mutable_layers();
  AddConvolution(layers, "conv1", 64, 7, 2);
  AddBatchNorm(layers, "bn1", v1::RELU);
  AddMaxPool(layers, "maxpool", 3, 2, 1);
  for (uint32_t stage = 0; stage < plan.blocks.size(); ++stage) {
    for (int i = 0; i < plan.blocks[stage]; ++i) {
      const uint32_t stride = stage > 0 && i == 0 ? 2 : 1;
      AddBlock(layers, absl::StrCat("layer", stage + 1, ".", i), plan, 64u << stage, stride,
               i == 0 && (stride > 1 || plan.bottleneck));
    }
  }
  v1::LayerSpec& pool = *layers.Add();
  pool.set_name("avgpool");
  pool.mutable_global_average_pool();
  AddDense(layers, "fc", named.outputs(), v1::IDENTITY);
  v1::DenseSpec& fc = *layers.Mutable(layers.size() - 1)->mutable_dense();
  fc.set_torch_names(true);
  fc.set_initialisation(v1::LECUN_UNIFORM);
  return model;
}

}  // namespace

std::string NamesOfModels() { return "mlp, lenet, resnet18, resnet34, resnet50"; }

namespace {

void SetAcrossWorkers(Layers& layers) {
  for (v1::LayerSpec& layer : layers) {
    if (layer.has_batch_norm()) layer.mutable_batch_norm()->set_across_workers(true);
    if (!layer.has_residual()) continue;
    SetAcrossWorkers(*layer.mutable_residual()->mutable_body());
    SetAcrossWorkers(*layer.mutable_residual()->mutable_shortcut());
  }
}

absl::StatusOr<v1::ModelSpec> Expand(const v1::NamedModel& named) {
  if (named.name() == "mlp") return Mlp(named);
  if (named.name() == "lenet") return LeNet(named);
  if (named.name() == "resnet18") return ResNet(named, {{2, 2, 2, 2}, false});
  if (named.name() == "resnet34") return ResNet(named, {{3, 4, 6, 3}, false});
  if (named.name() == "resnet50") return ResNet(named, {{3, 4, 6, 3}, true});
  return absl::InvalidArgumentError(
      absl::StrCat("unknown model \"", named.name(), "\"; known models are ", NamesOfModels()));
}

}  // namespace

absl::StatusOr<v1::ModelSpec> ExpandNamedModel(const v1::NamedModel& named) {
  absl::StatusOr<v1::ModelSpec> model = Expand(named);
  if (model.ok() && named.batch_norm_across_workers()) SetAcrossWorkers(*model->mutable_layers());
  return model;
}

}  // namespace syncgrads
