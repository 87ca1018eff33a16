// Writes checkpoints in the background while training continues.

#ifndef SYNCGRADS_WORKER_CHECKPOINT_CHECKPOINT_WRITER_H_
#define SYNCGRADS_WORKER_CHECKPOINT_CHECKPOINT_WRITER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/checkpoint/checkpoint_directory.h"
#include "worker/checkpoint/snapshot.h"

namespace syncgrads {

// The result of one checkpoint.
struct CheckpointOutcome {
  uint64_t step = 0;
  // The path of the checkpoint, or the error if it was not written.
  absl::StatusOr<std::string> path;
};

// Writes one checkpoint at a time, on a background thread that the first Begin starts.
// Thread-compatible: one thread, the trainer's, calls the methods.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(CheckpointDirectory::Options options);
  // Waits for the checkpoint that is being written, but at most 30 s, because a file
  // system may hang. After that the thread is detached.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  const std::string& path() const { return path_; }

  // Whether a checkpoint is being written, so that Begin would be refused.
  bool busy() const;

  // Starts to write a checkpoint. Unless `complete` is empty, the background thread calls
  // it first; it adds to the snapshot what was not available yet. Everything that
  // `complete` uses must live until TakeOutcomes has returned the outcome.
  //
  // Errors:
  //   Unavailable        a checkpoint is being written; names its step
  //   ResourceExhausted  the system has no thread for it; the next Begin tries again
  absl::Status Begin(Snapshot snapshot, std::function<absl::Status(Snapshot&)> complete = nullptr);

  // Returns the outcomes of the checkpoints that have ended since the last call.
  std::vector<CheckpointOutcome> TakeOutcomes();

  // Waits until no checkpoint is being written. Errors: DeadlineExceeded, which names the
  // step and the directory.
  absl::Status Finish(absl::Duration timeout);

 private:
  struct State;

  static void Run(const std::shared_ptr<State>& state);

  const std::string path_;
  // Shared with the background thread, which may outlive this object.
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_CHECKPOINT_CHECKPOINT_WRITER_H_
