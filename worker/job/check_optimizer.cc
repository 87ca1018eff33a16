#include "worker/job/check_optimizer.h"

#include <cmath>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/contract/contract.h"
#include "common/optim/optimizer.h"
#include "common/status_macros.h"
#include "worker/job/check_values.h"
#include "worker/job/schedule.h"

namespace syncgrads {
namespace {

// The most epochs in a number of epochs of the schedule.
constexpr double kMostEpochs = 1e6;

// Returns `problem` with the place of the hyperparameter that it names, or else of the
// optimizer.
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

absl::Status CheckRule(const v1::Optimizer& proto, const Field& field) {
  const absl::StatusOr<Optimizer> optimizer = FromProto(proto);
  if (!optimizer.ok()) return OptimizerError(proto, field, optimizer.status());
  const absl::Status valid = Validate(*optimizer);
  return valid.ok() ? valid : OptimizerError(proto, field, valid);
}

// Checks `field`, a number of epochs that may be given as `steps_name` instead.
absl::Status CheckEpochs(const Field& field, absl::string_view steps_name, bool has_steps,
                         double epochs) {
  if (epochs == 0) return absl::OkStatus();
  if (!(epochs > 0 && epochs <= kMostEpochs)) {
    return field.Error(absl::StrCat("is ", epochs, ", must be above 0 and at most ", kMostEpochs));
  }
  if (!has_steps) return absl::OkStatus();
  return field.Error(
      absl::StrCat("is ", epochs, ", but ", steps_name, " is given too: give one of them"));
}

absl::Status CheckStepDecay(const v1::LearningRateSchedule::Step& step, const Field& field) {
  if (!std::isfinite(step.factor()) || step.factor() <= 0) {
    return field.Member("factor").Error(
        absl::StrCat("is ", step.factor(), ", must be a positive finite number"));
  }
  for (int i = 0; i < step.milestone_epochs_size(); ++i) {
    const double epochs = step.milestone_epochs(i);
    if (epochs == 0) return field.Member("milestone_epochs", i).Error("is 0, must be above 0");
    SYNCGRADS_RETURN_IF_ERROR(CheckEpochs(field.Member("milestone_epochs", i), "milestones",
                                          !step.milestones().empty(), epochs));
  }
  return absl::OkStatus();
}

absl::Status CheckCosine(const v1::LearningRateSchedule::Cosine& cosine, const Field& field) {
  if (cosine.cycle_steps() == 0 && cosine.cycle_epochs() == 0) {
    return field.Member("cycle_steps").Error("is 0 or missing, and cycle_epochs too");
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckEpochs(field.Member("cycle_epochs"), "cycle_steps",
                                        cosine.cycle_steps() != 0, cosine.cycle_epochs()));
  SYNCGRADS_RETURN_IF_ERROR(CheckFraction(field, "minimum", cosine.minimum()));
  return CheckFraction(field, "dampening", cosine.dampening());
}

absl::Status CheckSchedule(const v1::JobFile& file, const Field& root) {
  const v1::LearningRateSchedule& schedule = file.schedule();
  const Field field = root.Member("schedule");
  SYNCGRADS_RETURN_IF_ERROR(CheckEpochs(field.Member("warmup_epochs"), "warmup_steps",
                                        schedule.warmup_steps() != 0, schedule.warmup_epochs()));
  if (schedule.has_step()) {
    SYNCGRADS_RETURN_IF_ERROR(CheckStepDecay(schedule.step(), field.Member("step")));
  } else if (schedule.has_cosine()) {
    SYNCGRADS_RETURN_IF_ERROR(CheckCosine(schedule.cosine(), field.Member("cosine")));
  }
  if (CountsEpochs(schedule) && file.data().mode() == v1::DataSpec::DYNAMIC) {
    return field.Error(
        "has numbers of epochs, but data.mode is DYNAMIC: the number of steps of an epoch depends "
        "on the workers");
  }
  if (CountsEpochs(schedule) && file.data().custom().stream_features() > 0) {
    return field.Error("has numbers of epochs, but data.custom is a stream, which has no epochs");
  }
  return absl::OkStatus();
}

// Checks the factor that is the field `name` of a rule.
absl::Status CheckFactor(const Field& field, absl::string_view name, double factor) {
  if (Validate(TensorFactors{.learning_rate = factor}).ok()) return absl::OkStatus();
  return field.Member(name).Error(absl::StrCat("is ", factor, ", must be 0 or from ",
                                               kMinTensorFactor, " to ", kMaxTensorFactor));
}

absl::Status CheckParameterRules(const v1::JobFile& file, const Field& root) {
  const absl::StatusOr<Optimizer> optimizer = FromProto(file.optimizer());
  SYNCGRADS_RETURN_IF_ERROR(optimizer.status());
  const std::string no_decay = HasWeightDecay(*optimizer)
                                   ? ""
                                   : absl::StrCat("is given, but the optimizer ",
                                                  NameOf(*optimizer), " has no weight decay");
  if (file.decay_kernels_only() && !no_decay.empty()) {
    return root.Member("decay_kernels_only").Error(no_decay);
  }
  for (int i = 0; i < file.parameter_rules_size(); ++i) {
    const v1::ParameterRule& rule = file.parameter_rules(i);
    const Field field = root.Member("parameter_rules", i);
    if (rule.parameters().empty()) return field.Error("has no parameters: names of parameters");
    for (int p = 0; p < rule.parameters_size(); ++p) {
      if (rule.parameters(p).empty()) return field.Member("parameters", p).Error("is empty");
    }
    if (!rule.has_learning_rate_factor() && !rule.has_weight_decay_factor()) {
      return field.Error(
          "has neither learning_rate_factor nor weight_decay_factor: give at least one of them");
    }
    SYNCGRADS_RETURN_IF_ERROR(
        CheckFactor(field, "learning_rate_factor", rule.learning_rate_factor()));
    SYNCGRADS_RETURN_IF_ERROR(
        CheckFactor(field, "weight_decay_factor", rule.weight_decay_factor()));
    if (rule.has_weight_decay_factor() && !no_decay.empty()) {
      return field.Member("weight_decay_factor").Error(no_decay);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckReduction(const v1::JobFile& file, const Field& root) {
  const v1::Reduction reduction = file.gradient_reduction();
  if (reduction == v1::REDUCTION_UNSPECIFIED || reduction == v1::AVERAGE) return absl::OkStatus();
  const Field field = root.Member("gradient_reduction");
  if (reduction != v1::SUM) {
    const std::string name =
        v1::Reduction_IsValid(reduction) ? v1::Reduction_Name(reduction) : absl::StrCat(reduction);
    return field.Error(absl::StrCat("is ", name, ", must be AVERAGE or SUM"));
  }
  if (file.optimizer_placement() == v1::SERVERS) {
    return field.Error("is SUM, but optimizer_placement is SERVERS: servers average the gradients");
  }
  if (file.weight_by_samples()) {
    return field.Error("is SUM, but weight_by_samples is true: a sum has no weights");
  }
  if (file.consistency().has_local_steps() || file.consistency().has_best_of()) {
    return field.Error(absl::StrCat("is SUM, but consistency is ",
                                    file.consistency().has_best_of() ? "best_of" : "local_steps",
                                    ": gradients of different workers are not combined"));
  }
  return absl::OkStatus();
}

absl::Status CheckAverage(const v1::JobFile& file, const Field& root) {
  if (!file.has_ema()) return absl::OkStatus();
  const Field field = root.Member("ema");
  if (!(file.ema().decay() > 0 && file.ema().decay() < 1)) {
    return field.Member("decay").Error(
        absl::StrCat("is ", file.ema().decay(), ", must be above 0 and below 1"));
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckEnum(field, "model", file.ema().model(),
                                      v1::MovingAverage::Model_IsValid(file.ema().model())));
  const v1::Consistency& consistency = file.consistency();
  if (consistency.kind_case() != v1::Consistency::KIND_NOT_SET && !consistency.has_sync()) {
    return field.Error("is given, but consistency is not sync");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckOptimizer(const v1::JobFile& file, const Field& root) {
  if (!file.has_optimizer()) return root.Member("optimizer").Error("is missing");
  SYNCGRADS_RETURN_IF_ERROR(CheckRule(file.optimizer(), root.Member("optimizer")));
  SYNCGRADS_RETURN_IF_ERROR(CheckEnum(root, "optimizer_placement", file.optimizer_placement(),
                                      v1::OptimizerPlacement_IsValid(file.optimizer_placement())));
  SYNCGRADS_RETURN_IF_ERROR(CheckSchedule(file, root));
  SYNCGRADS_RETURN_IF_ERROR(CheckParameterRules(file, root));
  SYNCGRADS_RETURN_IF_ERROR(CheckReduction(file, root));
  return CheckAverage(file, root);
}

}  // namespace syncgrads
