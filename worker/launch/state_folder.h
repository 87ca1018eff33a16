// The folder, in memory, in which the servers of one ps-launch keep their state.

#ifndef SYNCGRADS_WORKER_LAUNCH_STATE_FOLDER_H_
#define SYNCGRADS_WORKER_LAUNCH_STATE_FOLDER_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace syncgrads {

// Creates a folder and removes it when this object is destroyed. A launcher that is
// killed leaves its folder; the next launcher removes it. Not thread-safe.
class StateFolder {
 public:
  // Creates a folder in `memory`, the root of a memory-backed file system.
  //
  // Errors:
  //   PermissionDenied  another user could replace the folder; see MakePrivateDirectory
  //   Unavailable       the folder cannot be created
  static absl::StatusOr<StateFolder> Make(const std::string& memory = "/dev/shm");
  StateFolder(StateFolder&& other) noexcept;
  StateFolder& operator=(StateFolder&&) = delete;
  ~StateFolder();

  const std::string& path() const { return path_; }

 private:
  StateFolder(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  std::string path_;  // empty after a move
  // A descriptor of the folder, locked (flock) so that no other launcher removes it.
  int lock_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_LAUNCH_STATE_FOLDER_H_
