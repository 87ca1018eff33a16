#include "worker/report/progress.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace syncgrads {
namespace {

constexpr uint64_t kLines = 20;
constexpr uint64_t kBarCells = 20;
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

void RecentStepsCollector::Started(const TrainingPlan& plan) {
  averages_losses_ = plan.averages_losses;
  since_ = clock_.Now();
  rows_ = 0;
  times_ = StepTimes();
  own_.Take();
  average_.reset();
}

void RecentStepsCollector::Used(const StepUse& use) {
  rows_ += use.rows;
  times_ += use.times;
  learning_rate_ = use.learning_rate;
}

void RecentStepsCollector::Averaged(const TeamAverage& average) {
  if (average.loss.has_value()) average_ = average.loss;
  rows_per_s_ = average.rows_per_s;
}

RecentSteps RecentStepsCollector::Take() {
  const absl::Time now = clock_.Now();
  const double seconds = absl::ToDoubleSeconds(now - std::exchange(since_, now));
  const uint64_t rows = std::exchange(rows_, 0);
  const StepTimes times = std::exchange(times_, StepTimes());
  RecentSteps recent;
  recent.own_loss = own_.Take();
  recent.loss = averages_losses_ ? std::exchange(average_, std::nullopt) : recent.own_loss;
  recent.learning_rate = learning_rate_;
  recent.rows_per_s = rows_per_s_;
  if (seconds <= 0) return recent;
  if (!averages_losses_) recent.rows_per_s = static_cast<double>(rows) / seconds;
  // A step may have begun before the last line.
  recent.reads = std::min(absl::ToDoubleSeconds(times.read) / seconds, 1.0);
  recent.waits = std::min(absl::ToDoubleSeconds(times.wait) / seconds, 1.0);
  return recent;
}

ConsoleProgress::ConsoleProgress(std::ostream& out, bool is_terminal, const Clock& clock,
                                 uint64_t every, LogLevel level)
    : out_(out),
      is_terminal_(is_terminal),
      clock_(clock),
      every_(every),
      level_(level),
      recent_(clock) {}

void ConsoleProgress::Started(const TrainingPlan& plan) {
  plan_ = plan;
  started_ = clock_.Now();
  shown_ = absl::InfinitePast();
  last_step_ = 0;
  loss_.assign(1, '-');
  recent_.Started(plan);
  out_ << ToString(plan) << "\n";
  if (level_ <= LogLevel::kDebug) {
    out_
        << (plan.averages_losses
                ? "loss: the mean over the batches of all workers in the last steps\n"
                : "loss: the mean over this worker's own batches since the previous value shown\n");
  }
  out_ << std::flush;
}

void ConsoleProgress::Stepped(uint64_t step, std::optional<double> loss) {
  recent_.Stepped(loss);
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
  const uint64_t steps = std::max(step, plan_.steps);
  const uint64_t cells = kBarCells * step / steps;
  // A terminal that is too narrow shows the beginning of the line. (It is told not to begin another
  // line, which the next bar would not replace.) The rest of the line is cleared, because the
  // previous text may have been longer.
  out_ << "\x1b[?7l\r[" << std::string(cells, '=') << std::string(kBarCells - cells, ' ')
       << "] step " << step << "/" << steps << "  " << FiguresAt(step, now) << "\x1b[K\x1b[?7h"
       << std::flush;
}

void ConsoleProgress::ShowLine(uint64_t step, absl::Time now) {
  shown_ = now;
  out_ << "step " << step << "/" << std::max(step, plan_.steps) << "  " << FiguresAt(step, now)
       << std::endl;
}

std::string ConsoleProgress::FiguresAt(uint64_t step, absl::Time now) {
  const RecentSteps recent = recent_.Take();
  if (recent.loss.has_value()) loss_ = absl::StrFormat("%.6f", *recent.loss);
  const double seconds = absl::ToDoubleSeconds(now - started_);
  const std::string speed =
      seconds <= 0 ? "-" : absl::StrFormat("%.1f", static_cast<double>(step) / seconds);
  return absl::StrFormat(
      "loss %s  %s steps/s  %.0f rows/s  rate %.4g  reads %.0f %%  waits %.0f %%", loss_, speed,
      recent.rows_per_s, recent.learning_rate, 100 * recent.reads, 100 * recent.waits);
}

}  // namespace syncgrads
