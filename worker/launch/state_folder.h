// The folder in memory that the servers of one launch keep their state in.

#ifndef SYNCGRADS_WORKER_LAUNCH_STATE_FOLDER_H_
#define SYNCGRADS_WORKER_LAUNCH_STATE_FOLDER_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace syncgrads {

// Removed with this object. What launchers that were killed have left is removed
// when the next one makes its own.
class StateFolder {
 public:
  // In `memory`, a file system that lies in memory.
  //
  // Errors:
  //   Unavailable  it cannot be made
  static absl::StatusOr<StateFolder> Make(const std::string& memory = "/dev/shm");
  StateFolder(StateFolder&& other) noexcept;
  StateFolder& operator=(StateFolder&&) = delete;
  ~StateFolder();

  const std::string& path() const { return path_; }

 private:
  StateFolder(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  std::string path_;  // empty once it has been moved from
  // The folder, locked: no launcher takes it for left behind.
  int lock_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_LAUNCH_STATE_FOLDER_H_
