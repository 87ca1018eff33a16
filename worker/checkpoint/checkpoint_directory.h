// The directory that holds one job's checkpoints.
//
//   lock                     locked (flock) by the process that writes, if there are locks
//   step-000000000120/       a checkpoint: the state after 120 steps
//     model.safetensors, ... the files that the manifest lists
//     manifest.json          written last: a directory without it is not a checkpoint
//   step-000000000140.damaged/   a checkpoint that failed its checksums, set aside
//   latest, best             symbolic links to checkpoints, if there are links
//
// Each file is written under a temporary name, synced and renamed; the manifest is
// written after all other files. To remove a checkpoint, its manifest is removed first.
// So a directory with a manifest is complete, even if the process or the machine is
// killed at any point. Damage that happens later is detected by the checksums in the
// manifest.

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

// A checkpoint that has been read. All its files match the manifest.
struct Checkpoint {
  std::string path;
  Manifest manifest;
  // File contents by file name.
  std::map<std::string, std::string> files;
};

// A file to be written: the concatenation of `pieces`. The caller keeps their memory
// alive until Write returns.
struct CheckpointFile {
  std::string name;
  std::vector<absl::string_view> pieces;
};

// Reads and writes the checkpoints of one job. Several processes may open the same
// directory; a file lock lets only one of them write at a time. If the file system has no locks,
// the caller must ensure this. Thread-compatible.
class CheckpointDirectory {
 public:
  struct Options {
    std::string path;
    // How many of the newest checkpoints are kept; at least 1.
    uint32_t keep = 3;
    // Whether the checkpoint with the highest score is kept as well, if any has a score. Scores
    // by another Manifest::best than the newest checkpoint's count only if there are no others.
    bool keep_best = false;
  };

  explicit CheckpointDirectory(Options options) : options_(std::move(options)) {}

  const std::string& path() const { return options_.path; }

  // Writes a checkpoint, completely or not at all, and then removes the checkpoints that
  // need not be kept. Creates the directory if it does not exist. Ignores
  // `manifest.files` and fills it from `files`. Returns the path of the checkpoint.
  //
  // An existing checkpoint of the same step is removed first: if the write then fails, it
  // is lost. If only a link or the removal of old checkpoints fails, that error is returned
  // although the new checkpoint is complete.
  //
  // Errors:
  //   Unavailable         another process writes to this directory
  //   ResourceExhausted   the disk is full
  //   others              the errors of WriteFileAtomically
  absl::StatusOr<std::string> Write(Manifest manifest, absl::Span<const CheckpointFile> files);

  // Returns the newest checkpoint whose files match its manifest; nullopt if there is
  // none. For each newer checkpoint that is damaged or cannot be read, calls `warn` with a
  // status that names the file and the fault, and renames its directory to step-*.damaged.
  //
  // Errors: PermissionDenied or Internal if the directory cannot be read, and
  // ResourceExhausted if there is no descriptor or memory for a file; the message is the
  // system's.
  absl::StatusOr<std::optional<Checkpoint>> ReadNewest(
      const std::function<void(const absl::Status&)>& warn) const;

  // Returns the steps of all checkpoints that have a manifest, ascending; also of those for
  // which this cannot be found out. Errors: PermissionDenied or Internal if the directory
  // cannot be read.
  absl::StatusOr<std::vector<uint64_t>> Steps() const;

  // The path of the checkpoint of `step`, whether or not it exists.
  std::string PathOf(uint64_t step) const;

 private:
  absl::Status WriteFiles(const std::string& path, Manifest& manifest,
                          absl::Span<const CheckpointFile> files) const;
  // Updates the links `latest` and `best`, and removes the checkpoints that need not be
  // kept. Called after the checkpoint with the manifest `newest` has been written.
  absl::Status Prune(const Manifest& newest) const;
  // Removes step directories without a manifest. A process leaves one if it dies while it
  // writes or removes a checkpoint.
  absl::Status RemoveUnfinished() const;

  const Options options_;
};

// Reads the checkpoint in the directory `path`. Errors: DataLoss, which names the file
// and the fault, if the manifest or a file is damaged, is missing or cannot be read; or
// ResourceExhausted if there is no descriptor or memory for it. Never waits: pipes, for
// example, are refused.
absl::StatusOr<Checkpoint> ReadCheckpoint(const std::string& path);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
