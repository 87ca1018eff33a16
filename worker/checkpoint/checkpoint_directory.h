// The directory of one job's checkpoints.
//
//   lock                     locked by whoever writes
//   step-000000000120/       a checkpoint: what was true after 120 steps
//     model.safetensors, ... the files that the manifest lists
//     manifest.json          written last: without it there is no checkpoint
//   step-000000000140.damaged/   one that did not read as it was written
//   latest, best             links to checkpoints
//
// Each file is written under another name, synced, and renamed; the manifest after
// all others. To remove a checkpoint its manifest is removed first. So whatever
// kills the process or the machine, a directory with a manifest is whole, and what
// happens to it later is found by its checksums.

#ifndef SYNCGRADS_WORKER_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
#define SYNCGRADS_WORKER_CHECKPOINT_CHECKPOINT_DIRECTORY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/checkpoint/manifest.h"

namespace syncgrads {

// A checkpoint as it was read, every file as its manifest says.
struct Checkpoint {
  std::string path;
  Manifest manifest;
  // By name.
  std::map<std::string, std::string> files;
};

// A file to be written: the pieces, one after the other.
struct CheckpointFile {
  std::string name;
  std::vector<absl::string_view> pieces;
};

// Thread-compatible. Of several processes one writes at a time.
class CheckpointDirectory {
 public:
  struct Options {
    std::string path;
    // So many of the newest are kept; at least 1.
    uint32_t keep = 3;
    // And the one with the highest score, if any has one.
    bool keep_best = false;
  };

  explicit CheckpointDirectory(Options options) : options_(std::move(options)) {}

  const std::string& path() const { return options_.path; }

  // Writes a checkpoint, whole or not at all, instead of any of the same step, and
  // removes those that need not be kept. The directory is made if there is none.
  // `manifest.files` is not looked at. Returns where it is.
  //
  // Errors:
  //   Unavailable         another process writes to this directory
  //   ResourceExhausted   the disk is full
  //   others              as WriteFileAtomically
  absl::StatusOr<std::string> Write(Manifest manifest, absl::Span<const CheckpointFile> files);

  // The newest checkpoint that reads as it was written; none if there is none. Of
  // each newer one that does not, `warn` is told the file and the fault, and it is set
  // aside.
  //
  // Errors:
  //   PermissionDenied, Internal  the directory cannot be read, in the system's words
  absl::StatusOr<std::optional<Checkpoint>> ReadNewest(
      const std::function<void(const absl::Status&)>& warn) const;

  // The steps of all that have a manifest, ascending. Errors: as ReadNewest.
  absl::StatusOr<std::vector<uint64_t>> Steps() const;

  // Of a step.
  std::string PathOf(uint64_t step) const;

 private:
  absl::Status WriteFiles(const std::string& path, Manifest& manifest,
                          absl::Span<const CheckpointFile> files) const;
  // After `newest` has been written.
  absl::Status Prune(uint64_t newest) const;
  // What was being written or removed when a process died.
  absl::Status RemoveUnfinished() const;

  const Options options_;
};

// One checkpoint, by its path. Errors: DataLoss, naming the file and what is wrong
// with it, or as ReadFile of the manifest.
absl::StatusOr<Checkpoint> ReadCheckpoint(const std::string& path);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
