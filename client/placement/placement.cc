#include "client/placement/placement.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

// Two variables, by name.
struct Pair {
  const char* first;
  const char* second;
};

// The variables of one launcher. `sizes` are tried in order.
struct Launcher {
  const char* name;
  const char* rank;
  std::vector<const char*> sizes;
  const char* local_rank;  // null: it has none
  bool sets_world_size;
  // If all of these pairs are set and equal, a later launcher has set the variables of this one
  // too. That launcher then decides.
  std::vector<Pair> set_by_later = {};
  // The number of workers in each process. Null: it has none.
  const char* workers_per_process = nullptr;
  // Has the same value as `rank` if it is set. Null: it has none.
  const char* rank_again = nullptr;
};

const std::vector<Launcher>& Launchers() {
  static const auto& launchers = *new std::vector<Launcher>{
      {"torchrun", "RANK", {"WORLD_SIZE"}, "LOCAL_RANK", true},
      {"Open MPI",
       "OMPI_COMM_WORLD_RANK",
       {"OMPI_COMM_WORLD_SIZE"},
       "OMPI_COMM_WORLD_LOCAL_RANK",
       true},
      // srun with a PMI plugin also sets the variables of MPICH, but not MPI_LOCALRANKID.
      {"MPICH",
       "PMI_RANK",
       {"PMI_SIZE"},
       "MPI_LOCALRANKID",
       true,
       {{"PMI_RANK", "SLURM_PROCID"}, {"PMI_SIZE", "SLURM_NTASKS"}}},
      {"Slurm", "SLURM_PROCID", {"SLURM_NTASKS"}, "SLURM_LOCALID", true},
      {"Kubeflow",
       "PET_NODE_RANK",
       {"PET_NNODES"},
       nullptr,
       true,
       {},
       "PET_NPROC_PER_NODE",
       "JOB_COMPLETION_INDEX"},
      {"Kubernetes",
       "JOB_COMPLETION_INDEX",
       {"SYNCGRADS_WORLD_SIZE", "WORLD_SIZE"},
       nullptr,
       false},
  };
  return launchers;
}

using Getenv = std::function<const char*(const char*)>;

struct Variable {
  const char* name = nullptr;
  const char* text = nullptr;  // null: not set
};

Variable Get(const Getenv& getenv, const char* name) { return {name, getenv(name)}; }

bool IsSetByLater(const Launcher& launcher, const Getenv& getenv) {
  for (const Pair& pair : launcher.set_by_later) {
    const char* const first = getenv(pair.first);
    const char* const second = getenv(pair.second);
    if (first == nullptr || second == nullptr || absl::string_view(first) != second) return false;
  }
  return !launcher.set_by_later.empty();
}

std::string Describe(const Variable& variable) {
  return absl::StrCat(variable.name, " is \"", variable.text, "\"");
}

absl::StatusOr<std::optional<uint32_t>> Parse(const Variable& variable) {
  if (variable.text == nullptr) return std::optional<uint32_t>();
  uint32_t number;
  if (!absl::SimpleAtoi(variable.text, &number)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(variable), ", which is not a whole number from 0 to 4294967295"));
  }
  return std::optional<uint32_t>(number);
}

absl::Status CheckBelow(const Variable& rank, const std::optional<uint32_t>& value,
                        const Variable& size, const std::optional<uint32_t>& world_size) {
  if (!value.has_value() || !world_size.has_value() || *value < *world_size) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(Describe(rank), " but ", Describe(size),
                                                 ": ranks count from 0 and are below it"));
}

absl::Status CheckBothSet(const Launcher& launcher, const Variable& rank, const Variable& size) {
  if (rank.text != nullptr && size.text == nullptr && launcher.sets_world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(rank), " but ", size.name, " is not set (", launcher.name,
                     " sets both); give both, or --rank and --world_size"));
  }
  if (rank.text == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(size), " but ", rank.name, " is not set (", launcher.name,
                     " sets both); give both, or --rank and --world_size"));
  }
  return absl::OkStatus();
}

// Kubeflow passes each pod its number under two names.
absl::Status CheckSameRank(const Launcher& launcher, const Getenv& getenv, const Variable& rank,
                           const std::optional<uint32_t>& value) {
  if (launcher.rank_again == nullptr) return absl::OkStatus();
  const Variable again = Get(getenv, launcher.rank_again);
  SYNCGRADS_ASSIGN_OR_RETURN(const std::optional<uint32_t> other, Parse(again));
  if (!other.has_value() || other == value) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Describe(rank), " but ", Describe(again), ": both are the number of this pod"));
}

// The number may also be left to the program that the variable is for: "auto", "cpu" or "gpu".
absl::StatusOr<std::optional<uint32_t>> ParseWorkersPerProcess(const Launcher& launcher,
                                                               const Getenv& getenv) {
  if (launcher.workers_per_process == nullptr) return std::optional<uint32_t>();
  const Variable variable = Get(getenv, launcher.workers_per_process);
  for (const absl::string_view word : {"auto", "cpu", "gpu"}) {
    if (variable.text != nullptr && variable.text == word) return std::optional<uint32_t>();
  }
  return Parse(variable);
}

}  // namespace

absl::StatusOr<Placement> DetectPlacement(const Getenv& getenv) {
  const bool in_kubernetes = getenv("JOB_COMPLETION_INDEX") != nullptr;
  for (const Launcher& launcher : Launchers()) {
    if (IsSetByLater(launcher, getenv)) continue;
    const Variable rank = Get(getenv, launcher.rank);
    Variable size;
    for (const char* name : launcher.sizes) {
      if (size.text == nullptr) size = Get(getenv, name);
    }
    // A world size without a rank may belong to a job in which this process has no rank.
    const bool size_alone_counts = launcher.sets_world_size && !in_kubernetes;
    if (rank.text == nullptr && (size.text == nullptr || !size_alone_counts)) continue;
    SYNCGRADS_RETURN_IF_ERROR(CheckBothSet(launcher, rank, size));

    Placement placement;
    placement.source = launcher.name;
    SYNCGRADS_ASSIGN_OR_RETURN(placement.rank, Parse(rank));
    SYNCGRADS_ASSIGN_OR_RETURN(placement.world_size, Parse(size));
    SYNCGRADS_RETURN_IF_ERROR(CheckBelow(rank, placement.rank, size, placement.world_size));
    SYNCGRADS_RETURN_IF_ERROR(CheckSameRank(launcher, getenv, rank, placement.rank));
    SYNCGRADS_ASSIGN_OR_RETURN(placement.workers_per_process,
                               ParseWorkersPerProcess(launcher, getenv));
    if (launcher.local_rank != nullptr) {
      const Variable local_rank = Get(getenv, launcher.local_rank);
      SYNCGRADS_ASSIGN_OR_RETURN(placement.local_rank, Parse(local_rank));
      SYNCGRADS_RETURN_IF_ERROR(
          CheckBelow(local_rank, placement.local_rank, size, placement.world_size));
    }
    return placement;
  }
  return Placement();
}

}  // namespace syncgrads
