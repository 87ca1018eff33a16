// Norms over all chunks of a step; each server has only a part of the chunks.
//
// A group that clips gradients by their norm, or whose optimizer needs norms of whole tensors,
// closes a round in two parts. When a chunk's contributions are complete, the chunk is
// *reduced*: the contributions are averaged, and each span's sum of squares is reported to the
// coordinator. When the coordinator has the sums of every chunk, it sends all servers the
// factors that follow from the norms, and the chunks are closed.
//
// If both kinds of norms are needed, there are two stages, because the optimizer's update
// depends on the clipped gradient.

#ifndef SYNCGRADS_SERVER_CORE_PLAN_STEP_NORMS_H_
#define SYNCGRADS_SERVER_CORE_PLAN_STEP_NORMS_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/group/group.h"
#include "common/ids.h"
#include "common/optim/optimizer.h"
#include "common/optim/update.h"
#include "server/core/plan/relay.h"

namespace syncgrads::server {

enum class NormStage {
  kGradient = 1,  // the norm of the averaged gradient, over all tensors
  kTensors = 2,   // the norms of each tensor and of its update
};

// The first and the last stage of a group's rounds. The group must need norms; see NeedsNorms.
inline NormStage FirstStage(const GroupSpec& spec) {
  return spec.clip_norm > 0 ? NormStage::kGradient : NormStage::kTensors;
}
inline NormStage LastStage(const GroupSpec& spec) {
  return NeedsNorms(std::get<Optimizer>(spec.rule)) ? NormStage::kTensors : NormStage::kGradient;
}

// A chunk whose open round waits for norms, with its sums of squares.
struct ReducedChunk {
  std::string job;
  Generation generation{};
  GroupId group{};
  ChunkId chunk{};
  Round round{};
  // The number of the epoch that the round belongs to.
  uint64_t epoch = 0;
  NormStage stage = NormStage::kGradient;
  // The sums of each span; zeros for a span without contributions. SquareSums::values is set in
  // the stage kTensors only.
  std::vector<SquareSums> spans;
};
using ReducedRelay = Relay<ReducedChunk>;

// The factors with which a round closes on every chunk. They replace earlier ones of the same
// round (the first stage), and those of earlier rounds, which have closed on every server.
struct StepNorms {
  GroupId group{};
  Round round{};
  // The number of the epoch in which the round was reduced. If the round moves to a later epoch,
  // which is possible only while no chunk has closed it, its contributions differ, and these
  // factors are not used.
  uint64_t epoch = 0;
  // The factor that clips the averaged gradient.
  double gradient_factor = 1;
  // The optimizer's ratio for each tensor; empty if it needs none, or before the stage kTensors.
  std::vector<double> ratios;

  NormStage stage() const { return ratios.empty() ? NormStage::kGradient : NormStage::kTensors; }
  friend bool operator==(const StepNorms&, const StepNorms&) = default;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_PLAN_STEP_NORMS_H_
