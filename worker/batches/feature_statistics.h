// Statistics of the features, over the training rows of all workers.

#ifndef SYNCGRADS_WORKER_BATCHES_FEATURE_STATISTICS_H_
#define SYNCGRADS_WORKER_BATCHES_FEATURE_STATISTICS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "worker/batches/data_set.h"
#include "worker/job/job_file.h"
#include "worker/team/team.h"
#include "worker/train/compute.h"

namespace syncgrads {

// One number for each number of a row, as the model takes it.
struct FeatureStatistics {
  std::vector<double> minimum;
  std::vector<double> maximum;
  std::vector<double> mean;
  // The square root of the mean squared distance from the mean.
  std::vector<double> deviation;
};

// Computes the statistics of the training rows of all workers; held-out rows do not count. A
// collective. All workers get the same bits. The shards are combined in the order of their numbers,
// so that the result does not depend on how they are divided among workers (Chan, Golub and
// LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979).
// Images that cannot be read are left out and added to `damaged`; if it is null, the first is an
// error.
//
// Errors:
//   FailedPrecondition  no worker has a training row
//   DataLoss            another worker's statistics are malformed
//   others              those of reading the rows, or the team's
absl::StatusOr<FeatureStatistics> FindStatistics(const v1::JobFile& job, const DataSet& data,
                                                 uint32_t world_size, const DeviceChoice& device,
                                                 DamagedImages* damaged, Team& team);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BATCHES_FEATURE_STATISTICS_H_
