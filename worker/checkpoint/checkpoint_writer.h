// Writes checkpoints while training goes on.

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

// What became of a checkpoint.
struct CheckpointOutcome {
  uint64_t step = 0;
  // Where it is, or why there is none.
  absl::StatusOr<std::string> path;
};

// Thread-compatible. One checkpoint is under way at a time.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(CheckpointDirectory::Options options);
  // Waits for the one that is under way, but not for ever: a file system may have
  // stopped to answer. Then it is left to itself.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  const std::string& path() const { return path_; }

  // Whether Begin would be refused.
  bool busy() const;

  // Begins to write a checkpoint, unless one is under way. `complete` is called
  // first, in the background, to add to it what is not here yet; may be empty. What
  // it uses lives until the outcome is there.
  //
  // Errors:
  //   Unavailable  one is under way: names its step
  absl::Status Begin(Snapshot snapshot, std::function<absl::Status(Snapshot&)> complete = nullptr);

  // Those that are over since the last call.
  std::vector<CheckpointOutcome> TakeOutcomes();

  // Waits until none is under way. DeadlineExceeded, naming step and directory.
  absl::Status Finish(absl::Duration timeout);

 private:
  struct State;

  static void Run(const std::shared_ptr<State>& state);

  const std::string path_;
  // Outlives this object if the thread does.
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_CHECKPOINT_CHECKPOINT_WRITER_H_
