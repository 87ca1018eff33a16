// Sums over the workers of a step.

#ifndef SYNCGRADS_WORKER_TRAIN_TEAM_EXCHANGE_H_
#define SYNCGRADS_WORKER_TRAIN_TEAM_EXCHANGE_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "worker/nn/batch_exchange.h"
#include "worker/train/team.h"

namespace syncgrads {

// A worker without rows in a step takes part in its exchanges, but contributes nothing; so
// it has to know them, from a step with rows that it has made before.
class TeamExchange : public BatchExchange {
 public:
  // `team` outlives this object.
  explicit TeamExchange(Team& team) : team_(team) {}

  // A step with rows begins, in which this worker's gradient has that weight.
  void Begin(double weight);
  absl::Status Sum(const std::string& name, absl::Span<double> values) override;
  double weight() const override { return weight_; }

  // A step without rows. Errors: FailedPrecondition if this worker has not had any yet; as
  // the team.
  absl::Status Skip();

  // The first error of Sum.
  const absl::Status& status() const { return status_; }

 private:
  Team& team_;
  double weight_ = 1;
  absl::Status status_;
  // Names and lengths, of the first step with rows; all that follow have the same.
  std::vector<std::pair<std::string, size_t>> calls_;
  int steps_ = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_TEAM_EXCHANGE_H_
