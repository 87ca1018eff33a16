#include "worker/run/run_progress.h"

#include <algorithm>
#include <ostream>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/status_macros.h"
#include "worker/metrics/worker_metrics.h"

namespace syncgrads {

RunProgress::RunProgress(const WorkerOptions& options, const WorkerDependencies& dependencies)
    : console_(dependencies.out, dependencies.out_is_terminal, dependencies.clock,
               options.log_every, options.log_level) {}

absl::StatusOr<std::unique_ptr<RunProgress>> RunProgress::Create(
    const WorkerOptions& options, const WorkerDependencies& dependencies,
    const DeviceChoice& device, const std::string& worker, Team& team) {
  auto run = absl::WrapUnique(new RunProgress(options, dependencies));
  const uint64_t every = std::max<uint64_t>(1, options.log_every);
  const auto warn = [&out = dependencies.out](const std::string& line) {
    out << "warning: " << line << std::endl;
  };
  if (team.is_master() && options.log_level <= LogLevel::kInfo) run->all_.Add(&run->console_);
  if (!options.progress_log.empty()) {
    SYNCGRADS_ASSIGN_OR_RETURN(run->log_, ProgressLog::Open(options.progress_log, worker, every,
                                                            dependencies.clock, warn));
    run->all_.Add(run->log_.get());
  }
  if (!options.tensorboard.empty()) {
    // TensorBoard shows each folder as a run of its own.
    const std::string folder =
        absl::StrCat(options.tensorboard, "/", absl::StrReplaceAll(worker, {{"/", "_"}}));
    SYNCGRADS_ASSIGN_OR_RETURN(auto file,
                               TensorboardFile::Create(folder, dependencies.clock, warn));
    run->tensorboard_ =
        std::make_unique<TensorboardProgress>(std::move(file), every, dependencies.clock);
    run->all_.Add(run->tensorboard_.get());
  }
  for (const MakeLogger& make : dependencies.extensions.loggers) {
    SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<Progress> logger, make({worker, team.rank()}));
    if (logger == nullptr) continue;
    run->all_.Add(logger.get());
    run->added_.push_back(std::move(logger));
  }
  if (dependencies.metrics != nullptr) {
    run->metrics_ = dependencies.metrics->ProgressOf(worker);
    run->all_.Add(run->metrics_.get());
  }
  run->figures_ = std::make_unique<FiguresReport>(team, NameOf(device));
  const std::string description = DescriptionOf(device);
  if (team.is_master() && options.log_level <= LogLevel::kInfo && !description.empty()) {
    dependencies.out << description << "\n" << std::flush;
  }
  run->all_.Add(run->figures_.get());
  return run;
}

void RunProgress::Evaluated(absl::string_view rows, const Evaluation& evaluation) {
  all_.Evaluated(rows, ScoresOf(evaluation));
}

}  // namespace syncgrads
