// The manifest of a checkpoint: a description of its contents, as JSON.
//
//   {"checkpoint": {"format": 1, "job": "iris", "step": 120, ...,
//                   "files": [{"name": "model.safetensors", "bytes": 1234,
//                              "xxh3": "0123456789abcdef"}, ...]},
//    "xxh3": "fedcba9876543210"}
//
// The outer "xxh3" is the checksum of the object "checkpoint", printed without white
// space and with its keys in alphabetical order.

#ifndef SYNCGRADS_WORKER_CHECKPOINT_MANIFEST_H_
#define SYNCGRADS_WORKER_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/data/data_segment.h"

namespace syncgrads {

// One file of a checkpoint. `checksum` is that of ChecksumOf.
struct ManifestFile {
  std::string name;
  uint64_t bytes = 0;
  uint64_t checksum = 0;
  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

struct Manifest {
  std::string job;
  // The number of steps that had been made.
  uint64_t step = 0;
  // The values of dtype, optimizer_placement and optimizer in the job file: "F32", "SERVERS",
  // "adam".
  std::string dtype;
  std::string place;
  std::string optimizer;
  // Determines, together with the step, the order of the rows and every random choice.
  uint64_t seed = 0;
  uint32_t workers = 0;
  uint32_t shards = 0;
  // The value of data.partition in the job file.
  std::string partition = "CONTIGUOUS";
  // The job's learning rate factor in the last step.
  double learning_rate_factor = 1;
  // Data mode SHARDS only: how the shards have been used so far. Empty in mode DYNAMIC.
  std::vector<DataSegment> data;
  // The evaluation on the held-out rows: "loss", "accuracy". A value that is not finite
  // is missing after ParseManifest.
  std::map<std::string, double> evaluation;
  // The best checkpoint is the one with the highest score.
  std::optional<double> score;
  // The values of checkpoint.best and early_stopping.metric in the job file: what `score` and the
  // record of validations (trainer/validation) measure. Empty in checkpoints of older programs.
  std::string best;
  std::string stopping_metric;
  // The time of writing in UTC; no program reads it.
  std::string written_at;
  std::vector<ManifestFile> files;

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// Returns the 64-bit XXH3 hash of the concatenation of `pieces`.
uint64_t ChecksumOf(absl::Span<const absl::string_view> pieces);

std::string ToJson(const Manifest& manifest);

// Parses a manifest and verifies its checksum. `path` is used in error messages only.
//
// Errors:
//   DataLoss  the text is damaged or has another format; "PATH: the fault"
absl::StatusOr<Manifest> ParseManifest(absl::string_view json, const std::string& path);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_CHECKPOINT_MANIFEST_H_
