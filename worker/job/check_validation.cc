#include "worker/job/check_validation.h"

#include <cmath>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/job/check_data.h"
#include "worker/job/check_model.h"
#include "worker/job/check_values.h"

namespace syncgrads {
namespace {

// A validation has at most eight figures (common/signals/figures.h), of which one is the loss.
constexpr int kMostTops = 6;

// Returns the number of classes of a job whose targets are classes.
uint32_t ClassesOf(const v1::JobFile& file) {
  if (file.loss().has_sigmoid_cross_entropy()) return 2;
  const v1::ModelSpec& model = file.model();
  return model.has_named() ? model.named().outputs()
                           : model.layers(model.layers_size() - 1).dense().outputs();
}

absl::Status CheckRows(const v1::JobFile& file, const Field& field) {
  const v1::ValidationSpec& validation = file.validation();
  if (!validation.has_data()) {
    if (file.data().validation_every() != 0) return absl::OkStatus();
    return field.Error(
        "has no data, and data.validation_every is 0: there are no rows to validate on; give one "
        "of them");
  }
  const v1::DataSpec& data = validation.data();
  const Field own = field.Member("data");
  SYNCGRADS_RETURN_IF_ERROR(CheckData(data, own));
  if (data.validation_every() != 0) {
    return own.Member("validation_every")
        .Error(absl::StrCat("is ", data.validation_every(),
                            ", but all rows of validation.data are validated on"));
  }
  if (data.custom().stream_features() > 0) {
    return own.Member("custom")
        .Member("stream_features")
        .Error("is given, but a stream of batches can only be trained on");
  }
  if (data.more_targets_size() != file.data().more_targets_size()) {
    return own.Member("more_targets")
        .Error(absl::StrCat("has ", data.more_targets_size(),
                            " columns, but data.more_targets has ",
                            file.data().more_targets_size()));
  }
  if (data.partition() == v1::DataSpec::ALL) {
    return own.Member("partition").Error("is ALL, but a validation evaluates each row once");
  }
  if (data.order() != v1::DataSpec::SHUFFLED || data.mode() != v1::DataSpec::SHARDS) {
    return own.Error("has an order or a mode, but a validation evaluates each row once");
  }
  if (!data.served_from().empty()) {
    return own.Member("served_from", 0)
        .Error("is given, but only the job's data can be served by another process");
  }
  return absl::OkStatus();
}

absl::Status CheckInterval(const v1::JobFile& file, const Field& field) {
  const v1::ValidationSpec& validation = file.validation();
  if (validation.every_epochs() != 0 && validation.every_steps() != 0) {
    return field.Member("every_steps")
        .Error(absl::StrCat("is ", validation.every_steps(), " and every_epochs is ",
                            validation.every_epochs(), ": give one of them"));
  }
  if (file.data().mode() == v1::DataSpec::DYNAMIC && validation.every_steps() == 0) {
    return field.Member("every_steps")
        .Error(
            "is missing, but data.mode is DYNAMIC: the number of steps of an epoch depends on the "
            "workers");
  }
  return absl::OkStatus();
}

absl::Status CheckTops(const v1::JobFile& file, const Field& field) {
  const auto& tops = file.validation().top();
  if (tops.size() > kMostTops) {
    return field.Member("top", kMostTops)
        .Error(absl::StrCat("is one of ", tops.size(), " numbers, at most ", kMostTops));
  }
  std::set<uint32_t> seen;
  for (int i = 0; i < tops.size(); ++i) {
    const Field top = field.Member("top", i);
    if (HasNumbers(file.loss())) {
      return top.Error(
          absl::StrCat("is ", tops[i], ", but the targets are numbers, which have no accuracy"));
    }
    if (tops[i] == 0) return top.Error("is 0, must be at least 1");
    if (!seen.insert(tops[i]).second) return top.Error(absl::StrCat("is ", tops[i], " twice"));
    const uint32_t classes = ClassesOf(file);
    if (tops[i] > classes) {
      return top.Error(absl::StrCat("is ", tops[i], ", but there are ", classes, " classes"));
    }
    if (tops[i] != 1 && file.loss().has_sigmoid_cross_entropy()) {
      return top.Error(
          absl::StrCat("is ", tops[i], ", but with sigmoid_cross_entropy it must be 1"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckEarlyStopping(const v1::JobFile& file, const Field& field) {
  const v1::EarlyStopping& stopping = file.early_stopping();
  if (!file.has_validation()) {
    return field.Error("is given, but validation is not: there are no figures to stop by");
  }
  if (file.has_elastic()) {
    return field.Error(
        "is given, but the job is elastic: its workers validate separately, and could disagree");
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckEnum(field, "metric", stopping.metric(),
                                      v1::EarlyStopping::Metric_IsValid(stopping.metric())));
  if (stopping.metric() == v1::EarlyStopping::TOP1 && HasNumbers(file.loss())) {
    return field.Member("metric").Error(
        "is TOP1, but the targets are numbers, which have no accuracy");
  }
  if (stopping.patience() == 0) {
    return field.Member("patience").Error("is 0 or missing, must be at least 1");
  }
  if (!std::isfinite(stopping.min_delta()) || stopping.min_delta() < 0) {
    return field.Member("min_delta")
        .Error(absl::StrCat("is ", stopping.min_delta(), ", must be 0 or a positive number"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckValidation(const v1::JobFile& file, const Field& root) {
  if (file.has_early_stopping()) {
    SYNCGRADS_RETURN_IF_ERROR(CheckEarlyStopping(file, root.Member("early_stopping")));
  }
  if (!file.has_validation()) return absl::OkStatus();
  const Field field = root.Member("validation");
  SYNCGRADS_RETURN_IF_ERROR(CheckRows(file, field));
  SYNCGRADS_RETURN_IF_ERROR(CheckInterval(file, field));
  return CheckTops(file, field);
}

}  // namespace syncgrads
