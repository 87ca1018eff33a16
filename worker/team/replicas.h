// Checks that all workers have bit-identical parameters.

#ifndef SYNCGRADS_WORKER_TEAM_REPLICAS_H_
#define SYNCGRADS_WORKER_TEAM_REPLICAS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/nn/parameter.h"
#include "worker/team/team.h"

namespace syncgrads {

// A parameter of one worker that differs from most workers' values.
struct Difference {
  std::string parameter;
  uint32_t rank = 0;
};

// The result of a comparison.
struct ReplicaCheck {
  uint32_t replicas = 0;
  std::vector<Difference> differences;
  bool identical() const { return differences.empty(); }
};

// "the 3 replicas are bit-identical", or "the 3 replicas differ: dense1/kernel on worker
// 2".
std::string ToString(const ReplicaCheck& check);

// Compares 64-bit hashes of each parameter's bytes. For each parameter, the value that
// most workers have is right; in a tie, the value of the lowest rank among these. A
// collective.
template <typename T>
absl::StatusOr<ReplicaCheck> CompareReplicas(absl::Span<Parameter<T>* const> parameters,
                                             Team& team);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TEAM_REPLICAS_H_
