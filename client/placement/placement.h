// Which worker of how many this process is, as its launcher says through the
// environment.
//
// The first launcher of this list that has set a variable decides; the others
// are not looked at, since launchers run inside each other (mpirun inside a
// Slurm allocation, torchrun inside a Kubernetes job):
//
//   launcher    rank                   world size                local rank
//   torchrun    RANK                   WORLD_SIZE                LOCAL_RANK
//   Open MPI    OMPI_COMM_WORLD_RANK   OMPI_COMM_WORLD_SIZE      OMPI_COMM_WORLD_LOCAL_RANK
//   Slurm       SLURM_PROCID           SLURM_NTASKS              SLURM_LOCALID
//   Kubernetes  JOB_COMPLETION_INDEX   SYNCGRADS_WORLD_SIZE or   -
//                                      WORLD_SIZE
//
// Kubernetes tells the pods of an indexed job their index but not their number:
// that is up to the manifest, and may be left to a flag. Such manifests often set
// WORLD_SIZE, so WORLD_SIZE without RANK counts as torchrun's only where there is
// no JOB_COMPLETION_INDEX.

#ifndef SYNCGRADS_CLIENT_PLACEMENT_PLACEMENT_H_
#define SYNCGRADS_CLIENT_PLACEMENT_PLACEMENT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace syncgrads {

struct Placement {
  std::optional<uint32_t> rank;
  std::optional<uint32_t> world_size;
  // This process's number among the workers of its machine.
  std::optional<uint32_t> local_rank;
  // "torchrun", "Open MPI", "Slurm", "Kubernetes"; "" if there is no launcher, and
  // then nothing else is set.
  std::string source;
};

// Reads the environment through `getenv`, which returns null for a variable that
// is not set. Where flags give rank and world size there is no need to call it:
// flags win, and a shell inside an allocation is no error then.
//
// InvalidArgument, naming variable and value: it is not a number, or too large;
// the launcher's rank is set and its world size is not (Kubernetes excepted), or
// the other way round; the rank or local rank is not below the world size.
absl::StatusOr<Placement> DetectPlacement(const std::function<const char*(const char*)>& getenv);

}  // namespace syncgrads

#endif  // SYNCGRADS_CLIENT_PLACEMENT_PLACEMENT_H_
