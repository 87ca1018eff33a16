// What a checkpoint says of itself, as JSON.
//
//   {"checkpoint": {"format": 1, "job": "iris", "step": 120, ...,
//                   "files": [{"name": "model.safetensors", "bytes": 1234,
//                              "xxh3": "0123456789abcdef"}, ...]},
//    "xxh3": "fedcba9876543210"}
//
// The last is the checksum of the object before it, without white space and with
// its keys in alphabetical order.

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

struct ManifestFile {
  std::string name;
  uint64_t bytes = 0;
  uint64_t checksum = 0;
  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

struct Manifest {
  std::string job;
  // Steps that had been made.
  uint64_t step = 0;
  // As in the job file: "F32", "SERVERS", ...
  std::string dtype;
  std::string place;
  std::string optimizer;
  // What the order of the rows and all that is random depend on, with the step.
  uint64_t seed = 0;
  uint32_t workers = 0;
  uint32_t shards = 0;
  // Where rows are not dealt: how far the shards have been used.
  std::vector<DataSegment> data;
  // Of the rows held out, by name: "loss", "accuracy"; and what the best checkpoint
  // has the most of.
  std::map<std::string, double> evaluation;
  std::optional<double> score;
  // In UTC, for people.
  std::string written_at;
  std::vector<ManifestFile> files;

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// XXH3, 64 bits, of the pieces one after the other.
uint64_t ChecksumOf(absl::Span<const absl::string_view> pieces);

std::string ToJson(const Manifest& manifest);

// `path` is for errors.
//
// Errors:
//   DataLoss  "PATH: what is wrong"
absl::StatusOr<Manifest> ParseManifest(absl::string_view json, const std::string& path);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_CHECKPOINT_MANIFEST_H_
