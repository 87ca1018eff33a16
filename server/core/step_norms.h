// Norms of a step, of which each server has a part.
//
// A group that clips gradients, or whose optimizer needs norms of whole tensors, closes
// a round in parts. When a chunk's contributions are complete it is *reduced*: they are
// averaged, and the coordinator is told the sums of the squares of each span. When it
// has those of every chunk, it tells all servers the norms, or rather what follows from
// them; then the chunk is closed.
//
// The norms come in two stages where both are needed, since what the optimizer makes
// of a gradient depends on how it was clipped.

#ifndef SYNCGRADS_SERVER_CORE_STEP_NORMS_H_
#define SYNCGRADS_SERVER_CORE_STEP_NORMS_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/group.h"
#include "common/ids.h"
#include "common/optim/optimizer.h"
#include "common/optim/update.h"
#include "server/core/relay.h"

namespace syncgrads::server {

enum class NormStage {
  kGradient = 1,  // of the averaged gradient, of all tensors together
  kTensors = 2,   // of each tensor, and of its change
};

// Of a group that needs norms; see NeedsNorms.
inline NormStage FirstStage(const GroupSpec& spec) {
  return spec.clip_norm > 0 ? NormStage::kGradient : NormStage::kTensors;
}
inline NormStage LastStage(const GroupSpec& spec) {
  return NeedsNorms(std::get<Optimizer>(spec.rule)) ? NormStage::kTensors : NormStage::kGradient;
}

// A chunk whose open round waits for norms, and its part of them.
struct ReducedChunk {
  std::string job;
  Generation generation{};
  GroupId group{};
  ChunkId chunk{};
  Round round{};
  // That the round belongs to.
  uint64_t epoch = 0;
  NormStage stage = NormStage::kGradient;
  // Of each span; zeros for one that nobody contributed to. `values` only in the stage
  // kTensors.
  std::vector<SquareSums> spans;
};
using ReducedRelay = Relay<ReducedChunk>;

// With what a round closes on every chunk. It takes the place of what was told of the
// same round before, and of earlier rounds, which have closed on every server by then.
struct StepNorms {
  GroupId group{};
  Round round{};
  // The round that was meant belongs to it: should it come to belong to another, which
  // can only be while it has closed nowhere, its gradients are others.
  uint64_t epoch = 0;
  // Gradients are multiplied by it.
  double gradient_factor = 1;
  // The optimizer's ratio for each tensor; empty where it needs none, or while the
  // stage kTensors is to come.
  std::vector<double> ratios;

  NormStage stage() const { return ratios.empty() ? NormStage::kGradient : NormStage::kTensors; }
  friend bool operator==(const StepNorms&, const StepNorms&) = default;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_STEP_NORMS_H_
