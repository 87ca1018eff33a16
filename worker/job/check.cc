#include "worker/job/check.h"

#include <cmath>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/codec/encoding.h"
#include "common/contract/contract.h"
#include "common/layout.h"
#include "common/optim/optimizer.h"
#include "common/status_macros.h"
#include "worker/job/check_data_sets.h"
#include "worker/job/consistency.h"
#include "worker/nn/named_model.h"

namespace syncgrads {
namespace {

// Keeps products of layer sizes far from overflow; larger than any layer that
// fits into memory.
constexpr uint32_t kMaxOutputs = 1 << 24;
constexpr uint32_t kMaxWindow = 1 << 12;
// Of an image's sides and channels.
constexpr uint32_t kMaxImage = 1 << 14;
// What a chunk must hold at least: one element of any dtype.
constexpr uint32_t kMinChunkBytes = 8;

// The text format takes any number for an enum.
absl::Status CheckEnum(const Field& field, absl::string_view name, int value, bool known) {
  if (known) return absl::OkStatus();
  return field.Member(name).Error(absl::StrCat("there is no value ", value));
}

absl::Status CheckCount(const Field& field, absl::string_view name, uint32_t value,
                        uint32_t largest) {
  if (value > 0 && value <= largest) return absl::OkStatus();
  return field.Member(name).Error(absl::StrCat("is ", value, ", must be from 1 to ", largest));
}

absl::Status CheckJoinedTables(const v1::TableSource& table, const Field& field) {
  std::set<std::string> files;
  for (int i = 0; i < table.tables_size(); ++i) {
    const std::string& file = table.tables(i).file();
    const Field member = field.Member("tables", i).Member("file");
    if (file.empty()) return member.Error("is missing: the table's file");
    if (!files.insert(file).second) {
      return member.Error(absl::StrCat("\"", file, "\" is there twice"));
    }
  }
  if (!files.empty() && !table.file().empty()) {
    return field.Member("file").Error(
        absl::StrCat("is \"", table.file(), "\", and there are tables: give one of them"));
  }
  if (table.master_table().empty() || files.contains(table.master_table())) {
    return absl::OkStatus();
  }
  return field.Member("master_table")
      .Error(absl::StrCat("\"", table.master_table(), "\" is not among the tables' files"));
}

absl::Status CheckTable(const v1::TableSource& table, const Field& field) {
  if (table.path().empty()) return field.Member("path").Error("is missing: the table's file");
  if (table.delimiter().size() > 1) {
    return field.Member("delimiter")
        .Error(absl::StrCat("\"", table.delimiter(), "\" has ", table.delimiter().size(),
                            " bytes, a delimiter has one"));
  }
  if (table.delimiter() == "\"" || table.delimiter() == "\n" || table.delimiter() == "\r") {
    return field.Member("delimiter").Error("a quote or the end of a line cannot be a delimiter");
  }
  if (absl::StrContains(table.file(), '/')) {
    return field.Member("file").Error(
        absl::StrCat("\"", table.file(), "\" is a path, and must be a name within a shard"));
  }
  return CheckJoinedTables(table, field);
}

absl::Status CheckColumns(const v1::DataSpec& data, const Field& field) {
  std::set<std::string> seen;
  for (int i = 0; i < data.features_size(); ++i) {
    const Field feature = field.Member("features", i);
    const std::string& name = data.features(i);
    if (name.empty()) return feature.Error("is empty");
    if (name == data.target()) {
      return feature.Error(absl::StrCat("\"", name, "\" is the target"));
    }
    if (!seen.insert(name).second) {
      return feature.Error(absl::StrCat("\"", name, "\" is named twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPath(const std::string& path, const Field& field, absl::string_view name) {
  return path.empty() ? field.Member(name).Error("is missing: a file") : absl::OkStatus();
}

// `known`: the source says how large its images are.
absl::Status CheckImage(const v1::ImageSpec& image, bool known, const Field& field) {
  const bool given = image.channels() != 0 || image.height() != 0 || image.width() != 0;
  if (known && given) {
    return field.Error("has a size, but the source's images have their own");
  }
  if (!known) {
    SYNCGRADS_RETURN_IF_ERROR(CheckCount(field, "channels", image.channels(), kMaxImage));
    SYNCGRADS_RETURN_IF_ERROR(CheckCount(field, "height", image.height(), kMaxImage));
    SYNCGRADS_RETURN_IF_ERROR(CheckCount(field, "width", image.width(), kMaxImage));
  }
  const auto check_length = [&](const char* name, int length) {
    if (length <= 1 || known || static_cast<uint32_t>(length) == image.channels()) {
      return absl::OkStatus();
    }
    return field.Member(name, 0).Error(absl::StrCat("is one of ", length, " numbers, there are ",
                                                    image.channels(),
                                                    " channels: give none, one, or one for each"));
  };
  SYNCGRADS_RETURN_IF_ERROR(check_length("mean", image.mean_size()));
  SYNCGRADS_RETURN_IF_ERROR(check_length("deviation", image.deviation_size()));
  for (int i = 0; i < image.mean_size(); ++i) {
    if (std::isfinite(image.mean(i))) continue;
    return field.Member("mean", i).Error(absl::StrCat("is ", image.mean(i), ", must be finite"));
  }
  for (int i = 0; i < image.deviation_size(); ++i) {
    if (std::isfinite(image.deviation(i)) && image.deviation(i) > 0) continue;
    return field.Member("deviation", i)
        .Error(absl::StrCat("is ", image.deviation(i), ", must be a positive finite number"));
  }
  return absl::OkStatus();
}

absl::Status CheckImageNet(const v1::ImageNetSource& imagenet, const Field& field) {
  if (imagenet.path().empty()) return field.Member("path").Error("is missing: a folder");
  constexpr uint32_t kUsualSide = 256, kUsualSize = 224;
  const uint32_t side = imagenet.smallest_side() == 0 ? kUsualSide : imagenet.smallest_side();
  const uint32_t size = imagenet.size() == 0 ? kUsualSize : imagenet.size();
  if (side > kMaxImage) {
    return field.Member("smallest_side")
        .Error(absl::StrCat("is ", side, ", must be at most ", kMaxImage));
  }
  if (size > side) {
    return field.Member("size").Error(
        absl::StrCat("is ", size, ", which is more than smallest_side, ", side));
  }
  SYNCGRADS_RETURN_IF_ERROR(
      CheckEnum(field, "part", imagenet.part(), v1::ImageNetSource::Part_IsValid(imagenet.part())));
  return CheckEnum(field, "damaged", imagenet.damaged(),
                   v1::ImageNetSource::Damaged_IsValid(imagenet.damaged()));
}

absl::Status CheckData(const v1::DataSpec& data, const Field& field) {
  switch (data.source_case()) {
    case v1::DataSpec::kTable:
      SYNCGRADS_RETURN_IF_ERROR(CheckTable(data.table(), field.Member("table")));
      if (data.target().empty()) {
        return field.Member("target").Error("is missing: the column to predict");
      }
      break;
    case v1::DataSpec::kGenerated:
      if (data.generated().rows() == 0) {
        return field.Member("generated")
            .Member("rows")
            .Error("is 0 or missing, must be at least 1");
      }
      break;
    case v1::DataSpec::kNumpy:
      SYNCGRADS_RETURN_IF_ERROR(
          CheckPath(data.numpy().features(), field.Member("numpy"), "features"));
      SYNCGRADS_RETURN_IF_ERROR(
          CheckPath(data.numpy().targets(), field.Member("numpy"), "targets"));
      break;
    case v1::DataSpec::kIdx:
      SYNCGRADS_RETURN_IF_ERROR(CheckPath(data.idx().images(), field.Member("idx"), "images"));
      SYNCGRADS_RETURN_IF_ERROR(CheckPath(data.idx().labels(), field.Member("idx"), "labels"));
      break;
    case v1::DataSpec::kCifar10:
      if (data.cifar10().files().empty()) return field.Member("cifar10").Error("has no files");
      break;
    case v1::DataSpec::kImagenet:
      SYNCGRADS_RETURN_IF_ERROR(CheckImageNet(data.imagenet(), field.Member("imagenet")));
      break;
    case v1::DataSpec::SOURCE_NOT_SET:
      return field.Error(
          "has no source: give table, generated, or another that proto/job.proto "
          "names");
  }
  if (!data.features().empty() && !data.has_table() && !data.has_generated()) {
    return field.Member("features", 0).Error("is given, but the source has no named columns");
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckColumns(data, field));
  if (data.has_image()) {
    const bool is_image = data.has_idx() || data.has_cifar10() || data.has_imagenet();
    SYNCGRADS_RETURN_IF_ERROR(CheckImage(data.image(), is_image, field.Member("image")));
  }
  if (data.holdout_every() == 1) {
    return field.Member("holdout_every")
        .Error("is 1, which leaves no row to train on; 0 holds none out, 2 and more some");
  }
  SYNCGRADS_RETURN_IF_ERROR(
      CheckEnum(field, "order", data.order(), v1::DataSpec::Order_IsValid(data.order())));
  return CheckEnum(field, "split", data.split(), v1::DataSpec::Split_IsValid(data.split()));
}

absl::Status CheckActivation(const Field& field, v1::Activation activation) {
  return CheckEnum(field, "activation", activation, v1::Activation_IsValid(activation));
}

absl::Status CheckInitialisation(const Field& field, v1::Initialisation initialisation) {
  return CheckEnum(field, "initialisation", initialisation,
                   v1::Initialisation_IsValid(initialisation));
}

absl::Status CheckConv2d(const v1::Conv2dSpec& conv, const Field& field) {
  SYNCGRADS_RETURN_IF_ERROR(CheckCount(field, "outputs", conv.outputs(), kMaxImage));
  SYNCGRADS_RETURN_IF_ERROR(CheckCount(field, "window", conv.window(), kMaxWindow));
  SYNCGRADS_RETURN_IF_ERROR(CheckActivation(field, conv.activation()));
  return CheckInitialisation(field, conv.initialisation());
}

absl::Status CheckBatchNorm(const v1::BatchNormSpec& norm, const Field& field) {
  if (!(norm.momentum() >= 0 && norm.momentum() <= 1)) {
    return field.Member("momentum")
        .Error(absl::StrCat("is ", norm.momentum(), ", must be from 0 to 1"));
  }
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
    case v1::LayerSpec::kWindowInput:
      if (first) return absl::OkStatus();
      return field.Member("window_input").Error("must be the first layer");
    case v1::LayerSpec::kConv2D:
      return CheckConv2d(layer.conv2d(), field.Member("conv2d"));
    case v1::LayerSpec::kBatchNorm:
      return CheckBatchNorm(layer.batch_norm(), field.Member("batch_norm"));
    case v1::LayerSpec::kMaxPool:
      return CheckCount(field.Member("max_pool"), "window", layer.max_pool().window(), kMaxWindow);
    case v1::LayerSpec::kAveragePool:
      return CheckCount(field.Member("average_pool"), "window", layer.average_pool().window(),
                        kMaxWindow);
    case v1::LayerSpec::kDropout:
      if (layer.dropout().rate() >= 0 && layer.dropout().rate() < 1) return absl::OkStatus();
      return field.Member("dropout").Member("rate").Error(
          absl::StrCat("is ", layer.dropout().rate(), ", must be from 0 to below 1"));
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
  return field.Error("has no kind: give dense, conv2d, or another that proto/job.proto names");
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
          .Error(absl::StrCat("is for mlp, the model is ", named.name()));
    }
    if (named.hidden(i) == 0 || named.hidden(i) > kMaxOutputs) {
      return field.Member("hidden", i)
          .Error(absl::StrCat("is ", named.hidden(i), ", must be from 1 to ", kMaxOutputs));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckModel(const v1::ModelSpec& model, const Field& field) {
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

absl::Status CheckLoss(const v1::LossSpec& loss, const v1::ModelSpec& model, const Field& field,
                       const Field& model_field) {
  const int last = model.layers_size() - 1;
  const uint32_t outputs =
      model.has_named() ? model.named().outputs() : model.layers(last).dense().outputs();
  const auto wrong_outputs = [&](absl::string_view needed) {
    const Field layer = model.has_named() ? model_field.Member("named")
                                          : model_field.Member("layers", last).Member("dense");
    return layer.Member("outputs").Error(
        absl::StrCat("is ", outputs, " in the last layer, the loss needs ", needed));
  };
  switch (loss.kind_case()) {
    case v1::LossSpec::kLogitCrossEntropy:
      if (outputs < 2) return wrong_outputs("one for each class, at least 2");
      break;
    case v1::LossSpec::kSquaredError:
    case v1::LossSpec::kSigmoidCrossEntropy:
      if (outputs != 1) return wrong_outputs("1");
      break;
    case v1::LossSpec::KIND_NOT_SET:
      return field.Error(
          "has no kind: give logit_cross_entropy, squared_error or sigmoid_cross_entropy");
  }
  if (!std::isfinite(loss.l2()) || loss.l2() < 0) {
    return field.Member("l2").Error(
        absl::StrCat("is ", loss.l2(), ", must be a finite number that is not negative"));
  }
  return CheckEnum(field, "normalisation", loss.normalisation(),
                   v1::LossSpec::Normalisation_IsValid(loss.normalisation()));
}

// Points at the hyperparameter that `problem` names, if it names one.
absl::Status OptimizerError(const v1::Optimizer& optimizer, const Field& field,
                            const absl::Status& problem) {
  const auto* kinds = optimizer.GetDescriptor()->oneof_decl(0);
  const auto* kind = optimizer.GetReflection()->GetOneofFieldDescriptor(optimizer, kinds);
  if (kind == nullptr) return field.Error(problem.message());
  const Field chosen = field.Member(kind->name());
  for (int i = 0; i < kind->message_type()->field_count(); ++i) {
    const std::string& name = kind->message_type()->field(i)->name();
    if (absl::StrContains(problem.message(), name)) {
      return chosen.Member(name).Error(problem.message());
    }
  }
  return chosen.Error(problem.message());
}

absl::Status CheckOptimizer(const v1::Optimizer& proto, const Field& field) {
  const absl::StatusOr<Optimizer> optimizer = FromProto(proto);
  if (!optimizer.ok()) return OptimizerError(proto, field, optimizer.status());
  const absl::Status valid = Validate(*optimizer);
  return valid.ok() ? valid : OptimizerError(proto, field, valid);
}

absl::Status CheckSchedule(const v1::JobFile& file, const Field& root) {
  if (!file.has_schedule()) return absl::OkStatus();
  const v1::Schedule& schedule = file.schedule();
  const Field field = root.Member("schedule");
  if (file.place() == v1::SERVERS) {
    return field.Error("is given, and place is SERVERS: servers keep the learning rate as it is");
  }
  if (schedule.has_step()) {
    const double factor = schedule.step().factor();
    if (std::isfinite(factor) && factor > 0) return absl::OkStatus();
    return field.Member("step").Member("factor").Error(
        absl::StrCat("is ", factor, ", must be a positive finite number"));
  }
  if (!schedule.has_cosine()) return absl::OkStatus();
  const v1::CosineSchedule& cosine = schedule.cosine();
  const Field cosine_field = field.Member("cosine");
  if (cosine.cycle_steps() == 0) return cosine_field.Member("cycle_steps").Error("is 0 or missing");
  if (!(cosine.minimum() >= 0 && cosine.minimum() <= 1)) {
    return cosine_field.Member("minimum").Error(
        absl::StrCat("is ", cosine.minimum(), ", must be from 0 to 1"));
  }
  if (!(cosine.dampening() >= 0 && cosine.dampening() <= 1)) {
    return cosine_field.Member("dampening")
        .Error(absl::StrCat("is ", cosine.dampening(), ", must be from 0 to 1"));
  }
  return absl::OkStatus();
}

absl::Status CheckGradientChecks(const v1::GradientChecks& checks, const Field& field) {
  SYNCGRADS_RETURN_IF_ERROR(
      CheckEnum(field, "non_finite", checks.non_finite(), v1::OnBad_IsValid(checks.non_finite())));
  SYNCGRADS_RETURN_IF_ERROR(
      CheckEnum(field, "outliers", checks.outliers(), v1::OnBad_IsValid(checks.outliers())));
  const double factor = checks.outlier_factor();
  if (factor == 0 || (std::isfinite(factor) && factor > 1)) return absl::OkStatus();
  return field.Member("outlier_factor")
      .Error(absl::StrCat("is ", factor, ", must be 0 or a finite number above 1"));
}

// What works on averaged gradients, or on parameters after each step.
absl::Status CheckSteps(const v1::JobFile& file, const Field& root) {
  SYNCGRADS_RETURN_IF_ERROR(
      CheckGradientChecks(file.gradient_checks(), root.Member("gradient_checks")));
  const Field clip = root.Member("clip_norm");
  if (!std::isfinite(file.clip_norm()) || file.clip_norm() < 0) {
    return clip.Error(absl::StrCat("is ", file.clip_norm(), ", must be 0 or a positive number"));
  }
  if (file.place() == v1::SERVERS && file.clip_norm() > 0) {
    return clip.Error("is given, and place is SERVERS: no server has all of a gradient");
  }
  if (file.place() == v1::SERVERS && (file.optimizer().has_lamb() || file.optimizer().has_lars())) {
    return root.Member("place").Error(
        "is SERVERS, and the optimizer needs norms of whole tensors: no server has all of one");
  }
  if (file.check_replicas_every() > 0 && file.has_elastic()) {
    return root.Member("check_replicas_every")
        .Error("is given, and the job is elastic: its workers compare themselves in the end");
  }
  return absl::OkStatus();
}

absl::Status CheckWeightColumn(const v1::JobFile& file, const Field& root) {
  const bool needed = file.loss().normalisation() == v1::LossSpec::BY_COLUMN;
  const Field column = root.Member("data").Member("weight_column");
  const std::string& name = file.data().weight_column();
  if (needed && name.empty()) return column.Error("is missing: loss.normalisation is BY_COLUMN");
  if (!needed && !name.empty()) {
    return column.Error(absl::StrCat("is \"", name, "\", but loss.normalisation is not BY_COLUMN"));
  }
  if (needed && !file.data().has_table()) {
    return column.Error(absl::StrCat("is \"", name, "\", and only tables have such columns"));
  }
  for (const std::string& feature : file.data().features()) {
    if (needed && feature == name) return column.Error(absl::StrCat("\"", name, "\" is a feature"));
  }
  return absl::OkStatus();
}

absl::Status CheckElastic(const v1::JobFile& file, const Field& root) {
  const Field mode = root.Member("data").Member("mode");
  SYNCGRADS_RETURN_IF_ERROR(CheckEnum(root.Member("data"), "mode", file.data().mode(),
                                      v1::DataSpec::Mode_IsValid(file.data().mode())));
  if (file.data().mode() == v1::DataSpec::DEALT) {
    if (!file.has_elastic()) {
      return mode.Error("is DEALT, but the job is not elastic: its workers do not change");
    }
    if (file.data().order() == v1::DataSpec::WITH_REPLACEMENT) {
      return mode.Error("is DEALT, and order is WITH_REPLACEMENT: rows that are dealt count once");
    }
  }
  const uint32_t workers = file.workers();
  const v1::Elastic& elastic = file.elastic();
  if (workers == 0) return absl::OkStatus();  // a flag says
  if (elastic.min_workers() > workers) {
    return root.Member("elastic")
        .Member("min_workers")
        .Error(absl::StrCat("is ", elastic.min_workers(), ", and workers is ", workers));
  }
  if (elastic.max_workers() != 0 && elastic.max_workers() < workers) {
    return root.Member("elastic")
        .Member("max_workers")
        .Error(absl::StrCat("is ", elastic.max_workers(), ", and workers is ", workers));
  }
  return absl::OkStatus();
}

absl::Status CheckEncoding(const v1::Encoding& proto, const Field& field) {
  SYNCGRADS_RETURN_IF_ERROR(
      CheckEnum(field, "codec", proto.codec(), v1::Codec_IsValid(proto.codec())));
  SYNCGRADS_ASSIGN_OR_RETURN(const Encoding encoding, FromProto(proto));
  const absl::Status status = Validate(encoding);
  return status.ok() ? status : field.Error(status.message());
}

absl::Status CheckCompression(const v1::JobFile& file, const Field& root) {
  for (int i = 0; i < file.compression_size(); ++i) {
    const v1::CompressionRule& rule = file.compression(i);
    const Field field = root.Member("compression", i);
    if (file.dtype() != v1::F32) return field.Error("is of F32 only, and dtype is F64");
    for (int p = 0; p < rule.parameters_size(); ++p) {
      if (rule.parameters(p).empty()) return field.Member("parameters", p).Error("is empty");
    }
    SYNCGRADS_RETURN_IF_ERROR(CheckEncoding(rule.push(), field.Member("push")));
    SYNCGRADS_RETURN_IF_ERROR(CheckEncoding(rule.result(), field.Member("result")));
    if (file.place() == v1::SERVERS && rule.result().codec() != v1::RAW) {
      return field.Member("result").Error(
          "is given, but place is SERVERS: results are parameters, which are sent as they are");
    }
    if (file.consistency().has_local_steps() && rule.result().codec() != v1::RAW) {
      return field.Member("result").Error(
          "is given, but consistency is local_steps: results are parameters, which are sent as "
          "they are");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCheckpoint(const v1::JobFile& file, const Field& root) {
  if (!file.has_checkpoint()) return absl::OkStatus();
  const v1::Checkpoint& checkpoint = file.checkpoint();
  const Field field = root.Member("checkpoint");
  if (checkpoint.directory().empty()) return field.Member("directory").Error("is missing");
  SYNCGRADS_RETURN_IF_ERROR(
      CheckEnum(field, "best", checkpoint.best(), v1::Checkpoint::Best_IsValid(checkpoint.best())));
  if (checkpoint.best() == v1::Checkpoint::NONE) return absl::OkStatus();
  const std::string& best = v1::Checkpoint::Best_Name(checkpoint.best());
  if (file.data().holdout_every() == 0) {
    return field.Member("best").Error(
        absl::StrCat("is ", best, ", but data.holdout_every is 0: no rows are held out"));
  }
  if (checkpoint.best() == v1::Checkpoint::ACCURACY && file.loss().has_squared_error()) {
    return field.Member("best").Error("is ACCURACY, but with loss.squared_error there is none");
  }
  return absl::OkStatus();
}

absl::Status CheckQuorum(const v1::JobFile& file, const Field& field) {
  const v1::QuorumSpec& quorum = file.consistency().quorum();
  if (quorum.least() == 0)
    return field.Member("least").Error("is 0 or missing, must be at least 1");
  if (file.workers() != 0 && quorum.least() > file.workers()) {
    return field.Member("least").Error(
        absl::StrCat("is ", quorum.least(), ", and workers is ", file.workers()));
  }
  if (quorum.kept() == 1) return field.Member("kept").Error("is 1, must be 0 or at least 2");
  if (file.data().mode() == v1::DataSpec::DEALT) {
    return field.Error("is given, and data.mode is DEALT: rows of a late worker would be lost");
  }
  if (file.place() != v1::SERVERS && !file.has_elastic()) {
    return field.Error(
        "is given, place is WORKERS, and the job is not elastic: a worker that is far behind could "
        "not come back");
  }
  const absl::Status valid = Validate(PolicyOf(file.consistency()));
  return valid.ok() ? valid : field.Error(valid.message());
}

absl::Status CheckLocalSteps(const v1::JobFile& file, const Field& field) {
  const v1::LocalSteps& local = file.consistency().local_steps();
  if (local.steps() == 0) return field.Member("steps").Error("is 0 or missing, must be at least 1");
  if (file.place() == v1::SERVERS) {
    return field.Error("is given, and place is SERVERS: workers apply the optimizer themselves");
  }
  if (file.data().mode() == v1::DataSpec::DEALT) {
    return field.Error("is given, and data.mode is DEALT: rows are dealt step by step");
  }
  const absl::Status valid = Validate(OuterOptimizerOf(local));
  return valid.ok() ? valid : field.Member("nesterov").Error(valid.message());
}

absl::Status CheckBestOf(const v1::JobFile& file, const Field& field) {
  const v1::BestOf& best_of = file.consistency().best_of();
  if (best_of.steps() == 0) {
    return field.Member("steps").Error("is 0 or missing, must be at least 1");
  }
  const bool positive = std::isfinite(best_of.factor()) && best_of.factor() > 0;
  if (best_of.factor_every() != 0 && !positive) {
    return field.Member("factor").Error(
        absl::StrCat("is ", best_of.factor(), ", must be a positive finite number"));
  }
  if (file.place() == v1::SERVERS) {
    return field.Error("is given, and place is SERVERS: workers apply the optimizer themselves");
  }
  if (file.has_elastic()) return field.Error("is given, and the job is elastic");
  if (file.data().holdout_every() == 0) {
    return field.Error("is given, and data.holdout_every is 0: there are no rows to compare on");
  }
  return absl::OkStatus();
}

absl::Status CheckStaleness(const v1::JobFile& file, const Field& field) {
  if (file.place() != v1::SERVERS) {
    return field.Error("is given, and place is not SERVERS: servers apply each gradient");
  }
  if (file.has_elastic()) return field.Error("is given, and the job is elastic");
  return absl::OkStatus();  // without elastic, rows are not dealt
}

// What needs workers that are all at the same step.
absl::Status CheckNeedsSync(const v1::JobFile& file, const Field& root) {
  const auto kind = file.consistency().kind_case();
  if (kind == v1::Consistency::KIND_NOT_SET || kind == v1::Consistency::kSync) {
    return absl::OkStatus();
  }
  const std::string why =
      absl::StrCat("is given, and consistency is ",
                   v1::Consistency::descriptor()->FindFieldByNumber(kind)->name(),
                   ": workers are not all at the same step");
  if (file.has_checkpoint()) return root.Member("checkpoint").Error(why);
  if (file.check_replicas_every() > 0) return root.Member("check_replicas_every").Error(why);
  return absl::OkStatus();
}

absl::Status CheckConsistency(const v1::JobFile& file, const Field& root) {
  SYNCGRADS_RETURN_IF_ERROR(CheckNeedsSync(file, root));
  const Field field = root.Member("consistency");
  switch (file.consistency().kind_case()) {
    case v1::Consistency::kQuorum:
      return CheckQuorum(file, field.Member("quorum"));
    case v1::Consistency::kLocalSteps:
      return CheckLocalSteps(file, field.Member("local_steps"));
    case v1::Consistency::kBoundedStaleness:
      return CheckStaleness(file, field.Member("bounded_staleness"));
    case v1::Consistency::kAsync:
      return CheckStaleness(file, field.Member("async"));
    case v1::Consistency::kBestOf:
      return CheckBestOf(file, field.Member("best_of"));
    case v1::Consistency::kSync:
    case v1::Consistency::KIND_NOT_SET:
      break;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckJobFile(const v1::JobFile& file, const Field& root) {
  if (file.name().empty()) return root.Member("name").Error("is missing: the job's name");
  if (file.dtype() != v1::F32 && file.dtype() != v1::F64) {
    const std::string name =
        v1::DType_IsValid(file.dtype()) ? v1::DType_Name(file.dtype()) : absl::StrCat(file.dtype());
    return root.Member("dtype").Error(absl::StrCat("is ", name, ", workers train in F32 or F64"));
  }
  if (!file.has_data()) return root.Member("data").Error("is missing");
  SYNCGRADS_RETURN_IF_ERROR(CheckData(file.data(), root.Member("data")));
  SYNCGRADS_RETURN_IF_ERROR(CheckDataSets(file, root));
  if (file.data().shards() > 0 && file.workers() > file.data().shards()) {
    return root.Member("workers").Error(absl::StrCat("is ", file.workers(), ", but data.shards is ",
                                                     file.data().shards(),
                                                     ": a worker would have none"));
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckElastic(file, root));
  if (!file.has_model()) return root.Member("model").Error("is missing");
  SYNCGRADS_RETURN_IF_ERROR(CheckModel(file.model(), root.Member("model")));
  if (!file.has_loss()) return root.Member("loss").Error("is missing");
  SYNCGRADS_RETURN_IF_ERROR(
      CheckLoss(file.loss(), file.model(), root.Member("loss"), root.Member("model")));
  if (!file.has_optimizer()) return root.Member("optimizer").Error("is missing");
  SYNCGRADS_RETURN_IF_ERROR(CheckOptimizer(file.optimizer(), root.Member("optimizer")));
  SYNCGRADS_RETURN_IF_ERROR(
      CheckEnum(root, "place", file.place(), v1::Place_IsValid(file.place())));
  SYNCGRADS_RETURN_IF_ERROR(CheckSchedule(file, root));
  SYNCGRADS_RETURN_IF_ERROR(CheckConsistency(file, root));
  SYNCGRADS_RETURN_IF_ERROR(CheckWeightColumn(file, root));
  SYNCGRADS_RETURN_IF_ERROR(CheckCompression(file, root));
  SYNCGRADS_RETURN_IF_ERROR(CheckSteps(file, root));
  SYNCGRADS_RETURN_IF_ERROR(CheckCheckpoint(file, root));
  if (file.batch_size() == 0) {
    return root.Member("batch_size").Error("is 0 or missing, must be at least 1");
  }
  if (file.epochs() == 0 && file.steps() == 0) {
    return root.Error("epochs or steps is missing: how long to train");
  }
  if (file.epochs() > 0 && file.steps() > 0) {
    return root.Member("steps").Error(
        absl::StrCat("is ", file.steps(), " and epochs is ", file.epochs(), ": give one of them"));
  }
  if (file.chunk_bytes() != 0 &&
      (file.chunk_bytes() < kMinChunkBytes || file.chunk_bytes() > kMaxChunkBytes)) {
    return root.Member("chunk_bytes")
        .Error(absl::StrCat("is ", file.chunk_bytes(), ", must be 0 or from ", kMinChunkBytes,
                            " to ", kMaxChunkBytes));
  }
  return absl::OkStatus();
}

}  // namespace syncgrads
