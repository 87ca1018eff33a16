// Whether all workers have the same parameters, to the last bit.

#ifndef SYNCGRADS_WORKER_TRAIN_REPLICAS_H_
#define SYNCGRADS_WORKER_TRAIN_REPLICAS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/nn/parameter.h"
#include "worker/train/team.h"

namespace syncgrads {

// A worker's parameter that is not what most workers have.
struct Difference {
  std::string parameter;
  uint32_t rank = 0;
};

struct ReplicaCheck {
  uint32_t replicas = 0;
  std::vector<Difference> differences;
  bool identical() const { return differences.empty(); }
};

// "the 3 replicas are bit-identical", or "the 3 replicas differ: dense1/kernel on
// worker 2".
std::string ToString(const ReplicaCheck& check);

// Compares 64-bit hashes of each parameter's bytes. What most workers have is
// right, and of equally many what the lowest rank has. A collective.
template <typename T>
absl::StatusOr<ReplicaCheck> CompareReplicas(absl::Span<Parameter<T>* const> parameters,
                                             Team& team);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_REPLICAS_H_
