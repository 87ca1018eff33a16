// A training run's state after a step, in memory, and as the files of a checkpoint.
//
//   model.safetensors     parameters and states, as ps-worker --output writes them
//   training.safetensors  what else training goes on from: optimizer slots, counters,
//                         the position in data that is dealt

#ifndef SYNCGRADS_WORKER_CHECKPOINT_SNAPSHOT_H_
#define SYNCGRADS_WORKER_CHECKPOINT_SNAPSHOT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/layout.h"
#include "worker/checkpoint/checkpoint_directory.h"
#include "worker/checkpoint/manifest.h"

namespace syncgrads {

struct SavedTensor {
  TensorSpec spec;
  // spec.bytes() of them.
  std::string bytes;
};

struct Snapshot {
  Manifest manifest;
  std::map<std::string, std::string> model_metadata;
  // Names are unique over both.
  std::vector<SavedTensor> model;
  std::vector<SavedTensor> training;

  // Null if there is none of this name.
  const SavedTensor* FindNamed(absl::string_view name) const;
  // The bytes of the tensor that `expected` describes.
  //
  // Errors:
  //   NotFound         there is no tensor of that name
  //   InvalidArgument  it has another dtype or shape; names both
  absl::StatusOr<absl::string_view> Find(const TensorSpec& expected) const;
};

// Errors and result: as CheckpointDirectory::Write.
absl::StatusOr<std::string> WriteSnapshot(const Snapshot& snapshot, CheckpointDirectory& directory);

// DataLoss, naming the file, if one of the two is missing or is no safetensors file.
absl::StatusOr<Snapshot> SnapshotOf(Checkpoint checkpoint);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_CHECKPOINT_SNAPSHOT_H_
