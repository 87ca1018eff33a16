#include "worker/trainer/plan.h"

#include <algorithm>
#include <memory>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/group/policy.h"
#include "common/status_macros.h"
#include "worker/batches/data_set.h"
#include "worker/data/data_segment.h"
#include "worker/job/consistency.h"
#include "worker/job/schedule.h"

namespace syncgrads {
namespace {

bool ValidatesInEpochs(const v1::JobFile& job) {
  return job.has_validation() && job.validation().every_steps() == 0;
}

// Returns an epoch that ends after the resume, if steps before it had another number of rows than
// the steps of this run. Otherwise, or if the job is not validated in epochs, returns 0.
uint64_t LaterEpoch(const TrainingRun& run, const ShardOwners& owners) {
  if (!ValidatesInEpochs(run.job)) return 0;
  for (const DataSegment& segment : owners.history) {
    if (segment.workers != owners.workers || segment.batch_size != run.job.batch_size()) {
      // An epoch has at least one step.
      return run.options.resumption->manifest.step + 1;
    }
  }
  return 0;
}

// Returns the number of steps, with those of `owners.history`, after which this worker has made
// `epochs` epochs; in a job in which every worker has all rows, any of them.
uint64_t StepsUntil(const TrainingRun& run, uint32_t epochs, ShardOwners owners) {
  v1::JobFile job = run.job;
  job.set_epochs(epochs);
  job.clear_steps();
  uint64_t steps = 0;
  // In a job in which every worker has all rows, each of them counts the steps of all.
  const uint32_t ranks = owners.rank.has_value() ? owners.workers : 1;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (owners.rank.has_value()) owners.rank = rank;
    const absl::StatusOr<std::unique_ptr<Batches>> batches = MakeBatches(job, run.data, owners);
    // The errors are those of this worker's own batches, which have been made, or of a rank that
    // has no shard.
    if (batches.ok()) steps = std::max(steps, (*batches)->StepsWith(run.team.world_size()));
  }
  return steps;
}

}  // namespace

ShardOwners OwnersOf(const v1::JobFile& job, const Team& team, const TrainerOptions& options) {
  ShardOwners owners;
  owners.rank = options.rank;
  if (job.data().partition() == v1::DataSpec::ALL) owners.own_order = team.rank();
  owners.workers = job.has_elastic() ? options.owners : team.world_size();
  if (options.resumption != nullptr) owners.history = options.resumption->manifest.data;
  return owners;
}

absl::Status MakePlan(TrainingRun& run, Team& team) {
  const uint32_t every = run.job.data().validation_every();
  double rows[] = {static_cast<double>(RowsOf(run.data.data, every, /*held_out=*/false).size()),
                   static_cast<double>(RowsOf(run.data.data, every, /*held_out=*/true).size())};
  const ShardOwners owners = OwnersOf(run.job, run.team, run.options);
  ShardOwners from_start = owners;
  from_start.history.clear();
  const uint64_t later = LaterEpoch(run, owners);
  // Steps in total, of an epoch, and until the end of the epoch `later`.
  double steps[] = {static_cast<double>(run.batches->StepsWith(run.team.world_size())), 0, 0};
  if (ValidatesInEpochs(run.job) || CountsEpochs(run.job.schedule())) {
    steps[1] = static_cast<double>(StepsUntil(run, 1, from_start));
  }
  if (later != 0) {
    steps[2] = static_cast<double>(StepsUntil(run, static_cast<uint32_t>(later), owners));
  }
  SYNCGRADS_RETURN_IF_ERROR(
      team.AllReduce("plan/rows", absl::MakeSpan(rows), Reduction::kSum).status());
  SYNCGRADS_RETURN_IF_ERROR(
      team.AllReduce("plan/steps", absl::MakeSpan(steps), Reduction::kMax).status());
  TrainingPlan& plan = run.plan;
  plan.job = run.job.name();
  plan.workers = run.team.world_size();
  plan.shards = run.data.data.total_shards;
  plan.training_rows = static_cast<uint64_t>(rows[0]);
  plan.held_out_rows = static_cast<uint64_t>(rows[1]);
  plan.batch_size = run.job.batch_size();
  plan.steps = static_cast<uint64_t>(steps[0]);
  // All workers make the same steps, and are the same from the first step to the last one.
  plan.averages_losses = !run.job.consistency().has_local_steps() &&
                         !run.job.consistency().has_best_of() && !run.job.has_elastic() &&
                         std::holds_alternative<Sync>(PolicyOf(run.job.consistency()));
  run.steps_per_epoch = static_cast<uint64_t>(steps[1]);
  if (later != 0) {
    run.epoch_offset =
        static_cast<int64_t>(later * run.steps_per_epoch) - static_cast<int64_t>(steps[2]);
  }
  run.rate.schedule = ScheduleOf(run.job.schedule(), run.steps_per_epoch);
  if (plan.training_rows == 0 && run.data.stream == nullptr) {
    return absl::FailedPreconditionError("no worker has a row to train on");
  }
  return absl::OkStatus();
}

}  // namespace syncgrads
