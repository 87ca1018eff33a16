#include "worker/evaluation/validation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

// The job whose data is that of the validation.
Job JobOfValidation(const Job& job) {
  Job of_validation = job;
  *of_validation.file.mutable_data() = job.file.validation().data();
  of_validation.storage = job.validation_storage;
  of_validation.data_host = nullptr;
  return of_validation;
}

absl::Status CheckSameInput(const DataSet& data, const DataSet& training) {
  if (data.features == training.features && data.shape == training.shape) return absl::OkStatus();
  const auto of = [](const DataSet& set) {
    constexpr size_t kMostNames = 100;
    if (set.features.empty() || set.features.size() > kMostNames) return ToString(set.shape);
    return absl::StrCat(ToString(set.shape), " (", absl::StrJoin(set.features, ", "), ")");
  };
  return absl::InvalidArgumentError(
      absl::StrCat("its rows are ", of(data), ", but those of the job's data are ", of(training)));
}

double PartOf(uint64_t count, uint64_t rows) {
  return static_cast<double>(count) / static_cast<double>(rows);
}

absl::StatusOr<DataSet> LoadSame(const Job& job, const DataSet& training, Team& team) {
  DataSetOptions options;
  options.classes = training.classes;
  SYNCGRADS_ASSIGN_OR_RETURN(DataSet data, LoadDataSet(job, options, team));
  SYNCGRADS_RETURN_IF_ERROR(CheckSameInput(data, training));
  return data;
}

}  // namespace

const v1::DataSpec& ValidationDataOf(const v1::JobFile& job) {
  return job.validation().has_data() ? job.validation().data() : job.data();
}

absl::StatusOr<std::optional<DataSet>> LoadValidationData(const Job& job, const DataSet& training,
                                                          Team& team) {
  if (!job.file.validation().has_data()) return std::optional<DataSet>();
  absl::StatusOr<DataSet> data = LoadSame(JobOfValidation(job), training, team);
  if (data.ok()) return std::optional<DataSet>(*std::move(data));
  return absl::Status(data.status().code(),
                      absl::StrCat("validation.data: ", data.status().message()));
}

std::vector<uint32_t> TopsOf(const v1::JobFile& job) {
  const auto& tops = job.validation().top();
  if (!tops.empty()) return {tops.begin(), tops.end()};
  if (TargetKindOf(job.loss()) == TargetKind::kClass) return {1};
  return {};
}

std::optional<double> ScoreOf(bool by_accuracy, const Evaluation& evaluation) {
  if (evaluation.rows == 0 || (by_accuracy && !evaluation.correct.has_value())) {
    return std::nullopt;
  }
  const double score =
      by_accuracy ? PartOf(*evaluation.correct, evaluation.rows) : -evaluation.loss;
  return std::isnan(score) ? std::nullopt : std::optional<double>(score);
}

Scores ValidationScores(const Evaluation& evaluation) {
  Scores scores;
  if (evaluation.rows == 0) return scores;
  scores.emplace_back("val_loss", evaluation.loss);
  for (const auto& [k, count] : evaluation.top) {
    scores.emplace_back(absl::StrCat("top", k), PartOf(count, evaluation.rows));
  }
  return scores;
}

ValidationSchedule::ValidationSchedule(const v1::ValidationSpec& spec, uint64_t steps_per_epoch,
                                       int64_t epoch_offset)
    : every_(spec.every_steps() != 0
                 ? spec.every_steps()
                 : std::max(spec.every_epochs(), 1u) * std::max<uint64_t>(steps_per_epoch, 1)),
      offset_(spec.every_steps() != 0 ? 0 : static_cast<uint64_t>(epoch_offset)) {}

void ValidationRecord::Add(uint64_t step, const Evaluation& evaluation) {
  state_[kLastStep] = static_cast<double>(step);
  const std::optional<double> value =
      ScoreOf(stopping_.metric() == v1::EarlyStopping::TOP1, evaluation);
  const bool improves = value.has_value() &&
                        (state_[kBestStep] == 0 || *value - state_[kBest] > stopping_.min_delta());
  if (improves) {
    state_[kBestStep] = static_cast<double>(step);
    state_[kBest] = *value;
    state_[kWithoutImprovement] = 0;
  } else {
    ++state_[kWithoutImprovement];
  }
  const std::optional<double> score = ScoreOf(best_ == v1::Checkpoint::ACCURACY, evaluation);
  if (score.has_value() && (state_[kBestCheckpointStep] == 0 || *score > state_[kBestScore])) {
    state_[kBestCheckpointStep] = static_cast<double>(step);
    state_[kBestScore] = *score;
  }
}

std::optional<std::string> ValidationRecord::ReasonToStop() const {
  if (stopping_.patience() == 0 || state_[kWithoutImprovement] < stopping_.patience()) {
    return std::nullopt;
  }
  const bool by_accuracy = stopping_.metric() == v1::EarlyStopping::TOP1;
  const char* metric = by_accuracy ? "top1" : "val_loss";
  const std::string by =
      stopping_.min_delta() == 0 ? "" : absl::StrCat(" by more than ", stopping_.min_delta());
  const std::string best =
      state_[kBestStep] == 0
          ? "no validation had a value"
          : absl::StrCat("the best, ", by_accuracy ? state_[kBest] : -state_[kBest],
                         ", was after step ", state_[kBestStep]);
  return absl::StrCat(metric, " has not improved", by, " in ", state_[kWithoutImprovement],
                      state_[kWithoutImprovement] == 1 ? " validation" : " validations", "; ",
                      best);
}

void ValidationRecord::BeginWhatDiffers(absl::string_view stopping_metric, absl::string_view best) {
  if (!stopping_metric.empty() &&
      stopping_metric != v1::EarlyStopping::Metric_Name(stopping_.metric())) {
    state_[kBestStep] = state_[kBest] = state_[kWithoutImprovement] = 0;
  }
  if (!best.empty() && best != v1::Checkpoint::Best_Name(best_)) {
    state_[kBestCheckpointStep] = state_[kBestScore] = 0;
  }
}

NamedTensor ValidationRecord::state() {
  return {{"trainer/validation", DType::kF64, {kSize}}, state_.data()};
}

}  // namespace syncgrads
