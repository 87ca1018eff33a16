#include "client/placement/placement.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

// A launcher's variables. `sizes` are tried in order.
struct Launcher {
  const char* name;
  const char* rank;
  std::vector<const char*> sizes;
  const char* local_rank;  // null: it has none
  bool says_world_size;
};

const std::vector<Launcher>& Launchers() {
  static const auto& launchers = *new std::vector<Launcher>{
      {"torchrun", "RANK", {"WORLD_SIZE"}, "LOCAL_RANK", true},
      {"Open MPI",
       "OMPI_COMM_WORLD_RANK",
       {"OMPI_COMM_WORLD_SIZE"},
       "OMPI_COMM_WORLD_LOCAL_RANK",
       true},
      {"Slurm", "SLURM_PROCID", {"SLURM_NTASKS"}, "SLURM_LOCALID", true},
      {"Kubernetes",
       "JOB_COMPLETION_INDEX",
       {"SYNCGRADS_WORLD_SIZE", "WORLD_SIZE"},
       nullptr,
       false},
  };
  return launchers;
}

struct Variable {
  const char* name = nullptr;
  const char* text = nullptr;  // null: not set
};

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
  if (rank.text != nullptr && size.text == nullptr && launcher.says_world_size) {
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

}  // namespace

absl::StatusOr<Placement> DetectPlacement(const std::function<const char*(const char*)>& getenv) {
  const bool in_kubernetes = getenv("JOB_COMPLETION_INDEX") != nullptr;
  for (const Launcher& launcher : Launchers()) {
    const Variable rank = {launcher.rank, getenv(launcher.rank)};
    Variable size;
    for (const char* name : launcher.sizes) {
      if (size.text == nullptr) size = {name, getenv(name)};
    }
    // World sizes of jobs that this process is no numbered part of.
    const bool size_alone_counts = launcher.says_world_size && !in_kubernetes;
    if (rank.text == nullptr && (size.text == nullptr || !size_alone_counts)) continue;
    SYNCGRADS_RETURN_IF_ERROR(CheckBothSet(launcher, rank, size));

    Placement placement;
    placement.source = launcher.name;
    SYNCGRADS_ASSIGN_OR_RETURN(placement.rank, Parse(rank));
    SYNCGRADS_ASSIGN_OR_RETURN(placement.world_size, Parse(size));
    SYNCGRADS_RETURN_IF_ERROR(CheckBelow(rank, placement.rank, size, placement.world_size));
    if (launcher.local_rank != nullptr) {
      const Variable local_rank = {launcher.local_rank, getenv(launcher.local_rank)};
      SYNCGRADS_ASSIGN_OR_RETURN(placement.local_rank, Parse(local_rank));
      SYNCGRADS_RETURN_IF_ERROR(
          CheckBelow(local_rank, placement.local_rank, size, placement.world_size));
    }
    return placement;
  }
  return Placement();
}

}  // namespace syncgrads
