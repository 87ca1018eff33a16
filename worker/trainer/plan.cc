#include "worker/trainer/plan.h"

#include <algorithm>
#include <memory>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/policy.h"
#include "common/status_macros.h"
#include "worker/job/consistency.h"
#include "worker/job/schedule.h"
#include "worker/train/data_set.h"

namespace syncgrads {
namespace {

// Returns the number of steps of an epoch; in a job in which every worker has all rows, of any of
// them.
uint64_t StepsPerEpoch(const TrainingRun& run) {
  const bool validates = run.job.has_validation() && run.job.validation().every_steps() == 0;
  if (!validates && !CountsEpochs(run.job.schedule())) return 0;  // not used
  v1::JobFile one = run.job;
  one.set_epochs(1);
  one.clear_steps();
  ShardOwners owners = OwnersOf(run.job, run.team, run.options);
  owners.history.clear();
  uint64_t steps = 0;
  // In a job in which every worker has all rows, each of them counts the steps of all.
  const uint32_t ranks = owners.rank.has_value() ? owners.workers : 1;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (owners.rank.has_value()) owners.rank = rank;
    const absl::StatusOr<std::unique_ptr<Batches>> batches = MakeBatches(one, run.data, owners);
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
  // Steps in total, and steps of an epoch.
  double steps[] = {static_cast<double>(run.batches->StepsWith(run.team.world_size())),
                    static_cast<double>(StepsPerEpoch(run))};
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
  run.rate.schedule = ScheduleOf(run.job.schedule(), run.steps_per_epoch);
  if (plan.training_rows == 0 && run.data.stream == nullptr) {
    return absl::FailedPreconditionError("no worker has a row to train on");
  }
  return absl::OkStatus();
}

}  // namespace syncgrads
