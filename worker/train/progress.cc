#include "worker/train/progress.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace syncgrads {
namespace {

constexpr uint64_t kLines = 20;
constexpr uint64_t kBarCells = 30;
constexpr absl::Duration kRedrawInterval = absl::Milliseconds(100);
constexpr absl::Duration kLineInterval = absl::Seconds(1);

std::string Count(uint64_t number, absl::string_view noun) {
  return absl::StrCat(number, " ", noun, number == 1 ? "" : "s");
}

}  // namespace

std::string ToString(const TrainingPlan& plan) {
  return absl::StrCat(plan.job, ": ", Count(plan.training_rows, "row"), " in ",
                      Count(plan.shards, "shard"), ", ", plan.held_out_rows, " held out; ",
                      Count(plan.workers, "worker"), ", batches of ", plan.batch_size, "; ",
                      Count(plan.parameters, "parameter"), "; ", Count(plan.steps, "step"));
}

ConsoleProgress::ConsoleProgress(std::ostream& out, bool is_terminal, const Clock& clock,
                                 uint64_t every, LogLevel level)
    : out_(out), is_terminal_(is_terminal), clock_(clock), every_(every), level_(level) {}

void ConsoleProgress::Started(const TrainingPlan& plan) {
  plan_ = plan;
  started_ = clock_.Now();
  shown_ = absl::InfinitePast();
  last_step_ = 0;
  out_ << ToString(plan) << "\n";
  if (level_ <= LogLevel::kDebug) {
    out_ << "loss: the mean over this worker's own batches since the previous value shown\n";
  }
  out_ << std::flush;
}

void ConsoleProgress::Stepped(uint64_t step, std::optional<double> loss) {
  mean_.Add(loss);
  const absl::Time now = clock_.Now();
  const bool is_last = step >= plan_.steps;
  if (is_terminal_) {
    if (is_last || now - shown_ >= kRedrawInterval) ShowBar(step, now);
  } else {
    if (is_last || IsLineDue(step, now)) ShowLine(step, now);
    last_step_ = step;
  }
}

void ConsoleProgress::Validated(uint64_t step, const Scores& scores) {
  std::string line = absl::StrCat("validation after step ", step, ":");
  const char* separator = " ";
  for (const auto& [name, value] : scores) {
    absl::StrAppendFormat(&line, "%s%s %.6g", separator, name, value);
    separator = "  ";
  }
  Note(line);
}

void ConsoleProgress::StoppedEarly(uint64_t step, const std::string& reason) {
  Note(absl::StrCat("training ends early, after step ", step, ": ", reason));
}

void ConsoleProgress::Finished() {
  if (is_terminal_) out_ << std::endl;
}

void ConsoleProgress::Note(const std::string& line) {
  if (is_terminal_) {
    out_ << "\r" << line << "\x1b[K" << std::endl;
  } else {
    out_ << line << std::endl;
  }
}

bool ConsoleProgress::IsLineDue(uint64_t step, absl::Time now) const {
  if (every_ == 0 && level_ > LogLevel::kDebug) return now - shown_ >= kLineInterval;
  const uint64_t every = every_ != 0 ? every_ : std::max<uint64_t>(1, plan_.steps / kLines);
  return StepInterval(every).IsDue(last_step_, step);
}

void ConsoleProgress::ShowBar(uint64_t step, absl::Time now) {
  shown_ = now;
  TakeLoss();
  const uint64_t steps = std::max(step, plan_.steps);
  const uint64_t cells = kBarCells * step / steps;
  // Clears the rest of the line, because the previous text may have been longer.
  out_ << "\r[" << std::string(cells, '=') << std::string(kBarCells - cells, ' ') << "] step "
       << step << "/" << steps << "  loss " << loss_ << "  " << SpeedAt(step, now) << "\x1b[K"
       << std::flush;
}

void ConsoleProgress::ShowLine(uint64_t step, absl::Time now) {
  shown_ = now;
  TakeLoss();
  out_ << "step " << step << "/" << std::max(step, plan_.steps) << "  loss " << loss_ << "  "
       << SpeedAt(step, now) << std::endl;
}

void ConsoleProgress::TakeLoss() {
  if (const std::optional<double> mean = mean_.Take()) loss_ = absl::StrFormat("%.6f", *mean);
}

std::string ConsoleProgress::SpeedAt(uint64_t step, absl::Time now) const {
  const double seconds = absl::ToDoubleSeconds(now - started_);
  if (seconds <= 0) return "- steps/s";
  return absl::StrFormat("%.1f steps/s", static_cast<double>(step) / seconds);
}

}  // namespace syncgrads
