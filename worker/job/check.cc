#include "worker/job/check.h"

#include <cmath>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/contract/contract.h"
#include "common/layout.h"
#include "common/optim/optimizer.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

// Keeps products of layer sizes far from overflow; larger than any layer that
// fits into memory.
constexpr uint32_t kMaxOutputs = 1 << 24;
// What a chunk must hold at least: one element of any dtype.
constexpr uint32_t kMinChunkBytes = 8;

// The text format takes any number for an enum.
absl::Status CheckEnum(const Field& field, absl::string_view name, int value, bool known) {
  if (known) return absl::OkStatus();
  return field.Member(name).Error(absl::StrCat("there is no value ", value));
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
  return absl::OkStatus();
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
    case v1::DataSpec::SOURCE_NOT_SET:
      return field.Error("has no source: give table or generated");
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckColumns(data, field));
  if (data.holdout_every() == 1) {
    return field.Member("holdout_every")
        .Error("is 1, which leaves no row to train on; 0 holds none out, 2 and more some");
  }
  SYNCGRADS_RETURN_IF_ERROR(
      CheckEnum(field, "order", data.order(), v1::DataSpec::Order_IsValid(data.order())));
  return CheckEnum(field, "split", data.split(), v1::DataSpec::Split_IsValid(data.split()));
}

absl::Status CheckDense(const v1::DenseSpec& dense, const Field& field,
                        std::set<std::string>& names) {
  if (dense.outputs() == 0 || dense.outputs() > kMaxOutputs) {
    return field.Member("outputs").Error(
        absl::StrCat("is ", dense.outputs(), ", must be from 1 to ", kMaxOutputs));
  }
  if (absl::StrContains(dense.name(), '/')) {
    return field.Member("name").Error(absl::StrCat("\"", dense.name(), "\" contains a slash"));
  }
  if (!names.insert(dense.name()).second) {
    return field.Member("name").Error(
        absl::StrCat("\"", dense.name(), "\" is the name of an earlier layer"));
  }
  return CheckEnum(field, "activation", dense.activation(),
                   v1::DenseSpec::Activation_IsValid(dense.activation()));
}

absl::Status CheckModel(const v1::ModelSpec& model, const Field& field) {
  if (model.layers().empty()) return field.Error("has no layers");
  std::set<std::string> names;
  for (int i = 0; i < model.layers_size(); ++i) {
    const Field layer = field.Member("layers", i);
    switch (model.layers(i).kind_case()) {
      case v1::LayerSpec::kDense:
        SYNCGRADS_RETURN_IF_ERROR(
            CheckDense(model.layers(i).dense(), layer.Member("dense"), names));
        break;
      case v1::LayerSpec::kWindowInput:
        if (i > 0) return layer.Member("window_input").Error("must be the first layer");
        break;
      case v1::LayerSpec::KIND_NOT_SET:
        return layer.Error("has no kind: give dense or window_input");
    }
  }
  const int last = model.layers_size() - 1;
  if (!model.layers(last).has_dense()) {
    return field.Member("layers", last).Error("the last layer must be dense");
  }
  return absl::OkStatus();
}

absl::Status CheckLoss(const v1::LossSpec& loss, const v1::ModelSpec& model, const Field& field,
                       const Field& model_field) {
  const int last = model.layers_size() - 1;
  const uint32_t outputs = model.layers(last).dense().outputs();
  const auto wrong_outputs = [&](absl::string_view needed) {
    return model_field.Member("layers", last)
        .Member("dense")
        .Member("outputs")
        .Error(absl::StrCat("is ", outputs, " in the last layer, the loss needs ", needed));
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
