#include "worker/job/consistency.h"

#include "absl/time/time.h"

namespace syncgrads {

Policy PolicyOf(const v1::Consistency& consistency) {
  if (consistency.has_bounded_staleness()) {
    return Staleness{.bound = consistency.bounded_staleness().bound(),
                     .scales_rate = consistency.bounded_staleness().scale_rate()};
  }
  if (consistency.has_async()) {
    return Staleness{.bound = std::nullopt, .scales_rate = consistency.async().scale_rate()};
  }
  if (!consistency.has_quorum()) return Sync{};
  Quorum quorum;
  quorum.least = consistency.quorum().least();
  quorum.grace = absl::Milliseconds(consistency.quorum().grace_ms());
  if (consistency.quorum().kept() != 0) quorum.kept = consistency.quorum().kept();
  return quorum;
}

Optimizer OuterOptimizerOf(const v1::LocalSteps& local) {
  if (local.has_average()) return Sgd{.learning_rate = 1};
  Nesterov outer{.learning_rate = 0.7, .momentum = 0.9};
  const v1::Nesterov& given = local.nesterov();
  if (given.has_learning_rate()) outer.learning_rate = given.learning_rate();
  if (given.has_momentum()) outer.momentum = given.momentum();
  if (given.has_weight_decay()) outer.weight_decay = given.weight_decay();
  return outer;
}

bool ReadsAllData(const v1::JobFile& job) {
  return job.has_elastic() || job.consistency().has_best_of() ||
         job.data().partition() == v1::DataSpec::ALL;
}

}  // namespace syncgrads
