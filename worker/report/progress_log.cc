#include "worker/report/progress_log.h"

#include <cmath>
#include <optional>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "worker/base/host_name.h"

namespace syncgrads {
namespace {

// JSON has no NaN and no infinity; they become null.
std::string Number(double value) {
  return std::isfinite(value) ? absl::StrFormat("%.9g", value) : "null";
}

// Returns the scores as fields of JSON, each after a comma.
std::string FieldsOf(const Scores& scores) {
  std::string fields;
  for (const auto& [name, value] : scores) {
    absl::StrAppend(&fields, ",\"", name, "\":", Number(value));
  }
  return fields;
}

}  // namespace

ProgressLog::ProgressLog(LogFile file, const std::string& worker, uint64_t every,
                         const Clock& clock)
    : worker_(worker), every_(every), clock_(clock), file_(std::move(file)), recent_(clock) {}

absl::StatusOr<std::unique_ptr<ProgressLog>> ProgressLog::Open(const std::string& path,
                                                               const std::string& worker,
                                                               uint64_t every, const Clock& clock,
                                                               LogFile::Warn warn) {
  SYNCGRADS_ASSIGN_OR_RETURN(
      LogFile file,
      LogFile::Open(path, "progress log", LogFile::Existing::kContinued, std::move(warn)));
  return absl::WrapUnique(new ProgressLog(std::move(file), worker, every, clock));
}

void ProgressLog::Write(absl::string_view event, absl::string_view fields) {
  // Writes the line in one piece, because other workers append to the same file.
  file_.Write(absl::StrCat(
      "{\"event\":\"", event, "\",\"job\":", JsonString(plan_.job),
      ",\"worker\":", JsonString(worker_), ",\"host\":", JsonString(HostName()),
      absl::StrFormat(",\"time\":%.3f", absl::ToDoubleSeconds(clock_.Now() - absl::UnixEpoch())),
      fields, "}\n"));
}

void ProgressLog::Started(const TrainingPlan& plan) {
  plan_ = plan;
  started_ = clock_.Now();
  step_ = 0;
  recent_.Started(plan);
  Write("started",
        absl::StrCat(",\"steps\":", plan.steps, ",\"workers\":", plan.workers,
                     ",\"batch_size\":", plan.batch_size, ",\"parameters\":", plan.parameters));
}

void ProgressLog::Stepped(uint64_t step, std::optional<double> loss) {
  recent_.Stepped(loss);
  const bool due = every_.IsDue(step_, step);
  step_ = step;
  if (!due) return;
  const RecentSteps recent = recent_.Take();
  std::string fields = absl::StrCat(",\"step\":", step, ",\"steps\":", plan_.steps);
  const auto add = [&fields](absl::string_view name, std::optional<double> value) {
    if (value.has_value()) absl::StrAppend(&fields, ",\"", name, "\":", Number(*value));
  };
  add("loss", recent.loss);
  add("own_loss", recent.own_loss);
  const double seconds = absl::ToDoubleSeconds(clock_.Now() - started_);
  if (seconds > 0) add("steps_per_s", static_cast<double>(step) / seconds);
  add("rows_per_s", recent.rows_per_s);
  add("learning_rate", recent.learning_rate);
  add("reads", recent.reads);
  add("waits", recent.waits);
  Write("step", fields);
}

void ProgressLog::Finished() { Write("finished", absl::StrCat(",\"step\":", step_)); }

void ProgressLog::Validated(uint64_t step, const Scores& scores) {
  Write("validated", absl::StrCat(",\"step\":", step, FieldsOf(scores)));
}

void ProgressLog::StoppedEarly(uint64_t step, const std::string& reason) {
  Write("stopped_early", absl::StrCat(",\"step\":", step, ",\"reason\":", JsonString(reason)));
}

void ProgressLog::Evaluated(absl::string_view rows, const Scores& scores) {
  Write("evaluated", absl::StrCat(",\"step\":", step_, ",\"rows\":", JsonString(std::string(rows)),
                                  FieldsOf(scores)));
}

}  // namespace syncgrads
