// The mean loss over the batches of all workers, while they train.

#ifndef SYNCGRADS_WORKER_REPORT_TEAM_LOSS_H_
#define SYNCGRADS_WORKER_REPORT_TEAM_LOSS_H_

#include <array>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "worker/report/progress.h"
#include "worker/team/team.h"

namespace syncgrads {

// Adds up each worker's losses over an interval of steps, and then over all workers, in the
// background: no worker waits before its next interval has ended. Each loss counts with the rows
// of its batch.
//
// The workers double the interval while it takes less than kShortInterval, and halve it while it
// takes more than kLongInterval. They decide this by the mean of their times, which is a part of
// the sums, so that they all have the same interval. The first interval has one step.
//
// Not thread-safe.
class TeamLoss {
 public:
  static constexpr absl::Duration kShortInterval = absl::Milliseconds(500);
  static constexpr absl::Duration kLongInterval = absl::Seconds(2);

  // `team`, `progress` and `clock` outlive this object. The team uses this object's memory until
  // Finish, or Team::Leave, has returned.
  TeamLoss(Team& team, Progress& progress, const Clock& clock);

  // Adds the loss of this worker's batch of `rows` rows; nullopt if it had none. Reports the means
  // that are known to Progress::Averaged. All workers call it after the same steps. If `is_last`,
  // and after the first step, waits for the mean of the interval that ends with this step.
  //
  // Errors: those of Team::AllReduce.
  absl::Status Stepped(uint64_t step, uint64_t rows, std::optional<double> loss, bool is_last);

  // Waits for the sums that have been started, and reports their mean. The losses after them are
  // dropped.
  //
  // Errors: those of Team::AllReduce.
  absl::Status Finish();

 private:
  // The elements of sums_.
  enum : size_t { kLosses, kRowsWithLoss, kRows, kSeconds, kSums };

  // Starts to add up the losses since the last call.
  absl::Status Start(uint64_t step);

  Team& team_;
  Progress& progress_;
  const Clock& clock_;
  // This worker's sums of the interval that has not ended.
  std::array<double, kSums> own_ = {};
  absl::Time began_;
  // The sums that are being added up, and the step after which they were started. `wait_` is null
  // if there are none.
  std::array<double, kSums> sums_ = {};
  uint64_t step_ = 0;
  Team::WaitForAll wait_ = nullptr;
  // The number of steps of an interval, and the step with which this one ends; 0: the first one.
  uint64_t interval_ = 1;
  uint64_t end_ = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_REPORT_TEAM_LOSS_H_
