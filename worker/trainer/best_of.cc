#include "worker/trainer/best_of.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "worker/batches/data_set.h"
#include "worker/evaluation/evaluation.h"
#include "worker/team/team.h"

namespace syncgrads {
namespace {

// Returns the worker with the least loss; in a tie, the lowest rank. A collective.
absl::StatusOr<uint32_t> FindBest(double loss, Team& team) {
  const std::string mine(reinterpret_cast<const char*>(&loss), sizeof(loss));
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> all, team.Gather("best/loss", mine));
  if (all.size() != team.world_size()) {
    return absl::AbortedError(absl::StrCat("a worker was lost: ", all.size(), " of ",
                                           team.world_size(), " workers have sent their loss"));
  }
  std::vector<double> losses(all.size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].size() != sizeof(double)) {
      return absl::DataLossError(
          absl::StrCat("malformed loss from rank ", rank, ": ", all[rank].size(), " bytes"));
    }
    std::memcpy(&losses[rank], all[rank].data(), sizeof(double));
    // A model that has diverged is worse than any other.
    if (std::isnan(losses[rank])) losses[rank] = std::numeric_limits<double>::infinity();
  }
  return static_cast<uint32_t>(std::min_element(losses.begin(), losses.end()) - losses.begin());
}

}  // namespace

absl::Status BestOf::Run() {
  const v1::BestOf& best_of = run_.job.consistency().best_of();
  const uint64_t own_steps = run_.batches->StepsWith(run_.team.world_size());
  double cycles = std::ceil(static_cast<double>(own_steps) / best_of.steps());
  // A worker whose rows are used up continues to take part in the comparisons.
  SYNCGRADS_RETURN_IF_ERROR(
      run_.team.AllReduce("best/cycles", absl::MakeSpan(&cycles, 1), Reduction::kMax).status());
  std::vector<RowId> rows;
  while (static_cast<double>(run_.rounds) < cycles) {
    SYNCGRADS_RETURN_IF_ERROR(steps_.Make(best_of.steps(), rows));
    SYNCGRADS_RETURN_IF_ERROR(steps_.CheckStop());
    SYNCGRADS_RETURN_IF_ERROR(TakeBestState());
    ++run_.rounds;
    if (best_of.factor_every() != 0 && run_.rounds % best_of.factor_every() == 0) {
      run_.rate.of_cycles *= best_of.factor();
    }
  }
  return absl::OkStatus();
}

absl::Status BestOf::TakeBestState() {
  const std::vector<RowId> held_out =
      RowsOf(run_.data.data, run_.job.data().validation_every(), /*held_out=*/true);
  SoleWorker alone;
  SYNCGRADS_ASSIGN_OR_RETURN(const Evaluation mine,
                             replica_.Evaluate("best/mine", run_.job.data(), run_.data, held_out,
                                               alone, {.damaged = run_.skipped_images()}));
  SYNCGRADS_ASSIGN_OR_RETURN(const uint32_t best, FindBest(mine.loss, run_.team));
  SYNCGRADS_RETURN_IF_ERROR(replica_.Fetch(ReplicaPart::kAll));
  state_.SaveCounters();
  SYNCGRADS_RETURN_IF_ERROR(run_.team.BroadcastAll("best/state", state_.WithoutPosition(), best));
  SYNCGRADS_RETURN_IF_ERROR(replica_.UploadAll());
  // Keeps this worker's own position in its rows.
  state_.RestoreUpdates();
  return absl::OkStatus();
}

}  // namespace syncgrads
