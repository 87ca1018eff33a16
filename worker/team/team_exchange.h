// Sums over the batches of all workers, within a step.

#ifndef SYNCGRADS_WORKER_TEAM_TEAM_EXCHANGE_H_
#define SYNCGRADS_WORKER_TEAM_TEAM_EXCHANGE_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "worker/nn/batch_exchange.h"
#include "worker/team/team.h"

namespace syncgrads {

// Implements the exchange of layers that use the batches of all workers. A worker without
// rows in a step joins the exchanges without contributing; it takes their names and
// lengths from its first step with rows. The trainer owns it. Not thread-safe.
class TeamExchange : public BatchExchange {
 public:
  // `team` outlives this object.
  explicit TeamExchange(Team& team) : team_(team) {}

  // Starts a step with rows, in which this worker's gradient has this weight.
  void Begin(double weight);
  absl::Status Sum(const std::string& name, absl::Span<double> values) override;
  double weight() const override { return weight_; }

  // Joins the exchanges of a step without rows. Errors: FailedPrecondition if this worker
  // has not had a step with rows yet; the team's.
  absl::Status Skip();

  // The first error of Sum.
  const absl::Status& status() const { return status_; }

 private:
  Team& team_;
  double weight_ = 1;
  absl::Status status_;
  // The names and lengths of the exchanges in the first step with rows; later steps have
  // the same ones.
  std::vector<std::pair<std::string, size_t>> calls_;
  // The number of steps with rows that have begun, counted up to 2.
  int steps_ = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TEAM_TEAM_EXCHANGE_H_
