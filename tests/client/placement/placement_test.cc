#include "client/placement/placement.h"

#include <map>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<Placement> Detect(const std::map<std::string, std::string>& environment) {
  return DetectPlacement([&](const char* name) -> const char* {
    auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

void ExpectPlacement(const std::map<std::string, std::string>& environment,
                     const std::string& source, std::optional<uint32_t> rank,
                     std::optional<uint32_t> world_size, std::optional<uint32_t> local_rank) {
  absl::StatusOr<Placement> placement = Detect(environment);
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_EQ(placement->source, source);
  EXPECT_EQ(placement->rank, rank);
  EXPECT_EQ(placement->world_size, world_size);
  EXPECT_EQ(placement->local_rank, local_rank);
}

void ExpectRefused(const std::map<std::string, std::string>& environment,
                   const std::string& message) {
  absl::StatusOr<Placement> placement = Detect(environment);
  EXPECT_EQ(placement.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(placement.status().message()), HasSubstr(message));
}

TEST(PlacementTest, WithoutALauncherNothingIsSet) {
  ExpectPlacement({{"HOME", "/root"}}, "", std::nullopt, std::nullopt, std::nullopt);
}

TEST(PlacementTest, ReadsTorchrun) {
  ExpectPlacement({{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}}, "torchrun", 5, 8, 1);
}

TEST(PlacementTest, ReadsOpenMpi) {
  ExpectPlacement({{"OMPI_COMM_WORLD_RANK", "2"},
                   {"OMPI_COMM_WORLD_SIZE", "3"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}},
                  "Open MPI", 2, 3, 0);
}

TEST(PlacementTest, ReadsMpich) {
  ExpectPlacement({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "1"}}, "MPICH", 2, 3,
                  1);
}

TEST(PlacementTest, ReadsSlurm) {
  ExpectPlacement({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_LOCALID", "0"}}, "Slurm",
                  0, 1, 0);
}

TEST(PlacementTest, ReadsAKubernetesIndexedJob) {
  ExpectPlacement({{"JOB_COMPLETION_INDEX", "3"}, {"SYNCGRADS_WORLD_SIZE", "4"}}, "Kubernetes", 3,
                  4, std::nullopt);
}

TEST(PlacementTest, AKubernetesManifestMaySayWorldSize) {
  ExpectPlacement({{"JOB_COMPLETION_INDEX", "3"}, {"WORLD_SIZE", "4"}}, "Kubernetes", 3, 4,
                  std::nullopt);
}

TEST(PlacementTest, KubernetesDoesNotSayTheWorldSize) {
  ExpectPlacement({{"JOB_COMPLETION_INDEX", "3"}}, "Kubernetes", 3, std::nullopt, std::nullopt);
}

TEST(PlacementTest, ReadsKubeflow) {
  ExpectPlacement({{"PET_NNODES", "4"}, {"PET_NODE_RANK", "3"}}, "Kubeflow", 3, 4, std::nullopt);
}

TEST(PlacementTest, KubeflowSaysTheNumberOfWorkersInAProcessIfItIsANumber) {
  for (const auto& [text, workers] : std::map<std::string, std::optional<uint32_t>>{
           {"2", 2}, {"auto", std::nullopt}, {"cpu", std::nullopt}, {"gpu", std::nullopt}}) {
    absl::StatusOr<Placement> placement =
        Detect({{"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}, {"PET_NPROC_PER_NODE", text}});
    ASSERT_TRUE(placement.ok()) << placement.status();
    EXPECT_EQ(placement->workers_per_process, workers) << text;
  }
}

TEST(PlacementTest, KubeflowDecidesInAnIndexedJob) {
  ExpectPlacement({{"PET_NNODES", "2"},
                   {"PET_NODE_RANK", "1"},
                   {"JOB_COMPLETION_INDEX", "1"},
                   {"SYNCGRADS_WORLD_SIZE", "8"}},
                  "Kubeflow", 1, 2, std::nullopt);
}

TEST(PlacementTest, TorchrunInsideKubeflowWins) {
  ExpectPlacement({{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}},
                  "torchrun", 3, 4, std::nullopt);
}

TEST(PlacementTest, LocalRankMayBeMissing) {
  ExpectPlacement({{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "torchrun", 0, 2, std::nullopt);
}

TEST(PlacementTest, MpirunInsideASlurmAllocationWins) {
  ExpectPlacement({{"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"SLURM_PROCID", "0"},
                   {"SLURM_NTASKS", "7"}},
                  "Open MPI", 1, 2, std::nullopt);
}

TEST(PlacementTest, MpichInsideASlurmAllocationWins) {
  ExpectPlacement({{"PMI_RANK", "1"},
                   {"PMI_SIZE", "2"},
                   {"MPI_LOCALRANKID", "1"},
                   {"SLURM_PROCID", "0"},
                   {"SLURM_NTASKS", "2"},
                   {"SLURM_LOCALID", "0"}},
                  "MPICH", 1, 2, 1);
}

TEST(PlacementTest, SlurmThatAlsoSetsMpichsVariablesDecides) {
  ExpectPlacement({{"PMI_RANK", "5"},
                   {"PMI_SIZE", "8"},
                   {"SLURM_PROCID", "5"},
                   {"SLURM_NTASKS", "8"},
                   {"SLURM_LOCALID", "1"}},
                  "Slurm", 5, 8, 1);
}

TEST(PlacementTest, TorchrunInsideAKubernetesJobWins) {
  ExpectPlacement({{"RANK", "9"}, {"WORLD_SIZE", "16"}, {"JOB_COMPLETION_INDEX", "1"}}, "torchrun",
                  9, 16, std::nullopt);
}

TEST(PlacementTest, ARankWithoutAWorldSizeIsRefused) {
  ExpectRefused({{"RANK", "1"}}, "RANK is \"1\" but WORLD_SIZE is not set (torchrun sets both)");
}

TEST(PlacementTest, AWorldSizeWithoutARankIsRefused) {
  ExpectRefused({{"SLURM_NTASKS", "4"}},
                "SLURM_NTASKS is \"4\" but SLURM_PROCID is not set (Slurm sets both)");
  ExpectRefused({{"PMI_SIZE", "4"}}, "PMI_SIZE is \"4\" but PMI_RANK is not set (MPICH sets both)");
  ExpectRefused({{"PET_NNODES", "4"}},
                "PET_NNODES is \"4\" but PET_NODE_RANK is not set (Kubeflow sets both)");
}

TEST(PlacementTest, AHalfSetLauncherIsNotPassedOverForTheNext) {
  ExpectRefused({{"OMPI_COMM_WORLD_SIZE", "4"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}},
                "OMPI_COMM_WORLD_RANK is not set");
}

TEST(PlacementTest, WhatIsNotANumberIsRefused) {
  const std::string rest = ", which is not a whole number";
  ExpectRefused({{"RANK", "first"}, {"WORLD_SIZE", "2"}}, "RANK is \"first\"" + rest);
  ExpectRefused({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "RANK is \"-1\"" + rest);
  ExpectRefused({{"RANK", ""}, {"WORLD_SIZE", "2"}}, "RANK is \"\"" + rest);
  ExpectRefused({{"RANK", "1"}, {"WORLD_SIZE", "2.0"}}, "WORLD_SIZE is \"2.0\"" + rest);
  ExpectRefused({{"RANK", "1"}, {"WORLD_SIZE", "4294967296"}},
                "WORLD_SIZE is \"4294967296\"" + rest);
  ExpectRefused({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_LOCALID", "x"}},
                "SLURM_LOCALID is \"x\"" + rest);
  ExpectRefused({{"PMI_RANK", "0"}, {"PMI_SIZE", "two"}}, "PMI_SIZE is \"two\"" + rest);
  ExpectRefused({{"PET_NODE_RANK", "0"}, {"PET_NNODES", "1:4"}}, "PET_NNODES is \"1:4\"" + rest);
  ExpectRefused({{"PET_NODE_RANK", "0"}, {"PET_NNODES", "1"}, {"PET_NPROC_PER_NODE", "all"}},
                "PET_NPROC_PER_NODE is \"all\"" + rest);
  ExpectRefused({{"JOB_COMPLETION_INDEX", "a"}}, "JOB_COMPLETION_INDEX is \"a\"" + rest);
}

TEST(PlacementTest, ARankBeyondTheWorldIsRefused) {
  ExpectRefused({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK is \"2\" but WORLD_SIZE is \"2\"");
  ExpectRefused({{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "RANK is \"0\" but WORLD_SIZE is \"0\"");
  ExpectRefused({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "5"}},
                "LOCAL_RANK is \"5\" but WORLD_SIZE is \"2\"");
  ExpectRefused({{"JOB_COMPLETION_INDEX", "4"}, {"SYNCGRADS_WORLD_SIZE", "4"}},
                "JOB_COMPLETION_INDEX is \"4\" but SYNCGRADS_WORLD_SIZE is \"4\"");
  ExpectRefused({{"PMI_RANK", "3"}, {"PMI_SIZE", "3"}}, "PMI_RANK is \"3\" but PMI_SIZE is \"3\"");
  ExpectRefused({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "2"}},
                "MPI_LOCALRANKID is \"2\" but PMI_SIZE is \"2\"");
  ExpectRefused({{"PET_NODE_RANK", "2"}, {"PET_NNODES", "2"}},
                "PET_NODE_RANK is \"2\" but PET_NNODES is \"2\"");
}

TEST(PlacementTest, TwoNumbersOfOnePodAreRefused) {
  ExpectRefused({{"PET_NODE_RANK", "1"}, {"PET_NNODES", "4"}, {"JOB_COMPLETION_INDEX", "2"}},
                "PET_NODE_RANK is \"1\" but JOB_COMPLETION_INDEX is \"2\"");
}

}  // namespace
}  // namespace syncgrads
