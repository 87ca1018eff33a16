// This process's rank among the workers, and their number, as the launcher passes them in the
// environment.
//
// The first launcher of this list that has set a variable decides, and the others are ignored. The
// reason is that launchers run inside each other (mpirun inside a Slurm allocation, torchrun inside
// a Kubernetes job):
//
//   launcher    rank                   world size                local rank
//   torchrun    RANK                   WORLD_SIZE                LOCAL_RANK
//   Open MPI    OMPI_COMM_WORLD_RANK   OMPI_COMM_WORLD_SIZE      OMPI_COMM_WORLD_LOCAL_RANK
//   MPICH       PMI_RANK               PMI_SIZE                  MPI_LOCALRANKID
//   Slurm       SLURM_PROCID           SLURM_NTASKS              SLURM_LOCALID
//   Kubeflow    PET_NODE_RANK          PET_NNODES                -
//   Kubernetes  JOB_COMPLETION_INDEX   SYNCGRADS_WORLD_SIZE or   -
//                                      WORLD_SIZE
//
// srun with a PMI plugin sets the variables of MPICH too, with Slurm's values. If PMI_RANK equals
// SLURM_PROCID and PMI_SIZE equals SLURM_NTASKS, Slurm decides, because only it sets a local rank.
//
// Kubeflow starts one process on each node. PET_NPROC_PER_NODE is the number of workers that this
// process is to run, or a word such as "auto".
//
// Kubernetes passes each pod of an indexed job its index, but not the number of pods. The manifest
// may set that number, or a flag may. Such manifests often set WORLD_SIZE, so WORLD_SIZE without
// RANK counts as torchrun's only if JOB_COMPLETION_INDEX is not set.

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
  // The number of this process among the workers on its machine.
  std::optional<uint32_t> local_rank;
  // The number of workers that each process is to run (Kubeflow). nullopt: the launcher does not
  // set it.
  std::optional<uint32_t> workers_per_process;
  // "torchrun", "Open MPI", "MPICH", "Slurm", "Kubeflow" or "Kubernetes". If there is no launcher,
  // this is "" and no other field is set.
  std::string source;
};

// Reads the environment through `getenv`, which returns null for a variable that is not set. Do not
// call it if flags set rank and world size: flags take precedence, and a shell inside an allocation
// is then no error.
//
// Errors:
//   InvalidArgument  a variable is not a number or too large; only one of the launcher's rank and
//                    world size is set (for Kubernetes the rank alone is allowed); the rank or
//                    local rank is not below the world size; or PET_NODE_RANK and
//                    JOB_COMPLETION_INDEX differ. The message has the variables and their values
absl::StatusOr<Placement> DetectPlacement(const std::function<const char*(const char*)>& getenv);

}  // namespace syncgrads

#endif  // SYNCGRADS_CLIENT_PLACEMENT_PLACEMENT_H_
