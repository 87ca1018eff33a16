// The directory that keeps the state of one server.
//
//   lock        locked with flock() while the server lives; contains its process id
//   server      the number of starts in this directory, and the port
//   plan        the plan that this server has applied or, on server 0, has made: see PlanStore
//   plan.copy   its copy: see RecordLog
//   group-N     results of the group whose results_key() is N: see StateFile and PlanChange
//   group-N.further/   further slots of the same
//   unusable/   state that was found damaged: see SetAside

#ifndef SYNCGRADS_SERVER_STATE_STATE_DIRECTORY_H_
#define SYNCGRADS_SERVER_STATE_STATE_DIRECTORY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/shm/region.h"

namespace syncgrads::server {

// Thread-safe: immutable, except for the files.
class StateDirectory {
 public:
  // Creates the directory for this user only if necessary and locks it, until this object is
  // destroyed or the process ends. `room` returns the bytes that files in it may still take, and
  // may be called on any thread; null: RoomIn.
  //
  // Errors:
  //   FailedPrecondition  another process has locked the directory; has its process id
  //   PermissionDenied    another user could replace the directory; see MakePrivateDirectory
  //   Unavailable         the directory cannot be created or written
  static absl::StatusOr<std::unique_ptr<StateDirectory>> Own(
      const std::string& path, std::function<uint64_t()> room = nullptr);

  const std::string& path() const { return path_; }
  std::string plan_path() const { return path_ + "/plan"; }
  std::string group_path(uint64_t sequence) const;
  // The bytes that files in the directory may still take.
  uint64_t room() const { return room_(); }
  // The size of the directory's file system in bytes; 0 if it is not known. See SizeOfFileSystem.
  uint64_t file_system_bytes() const;
  // The size of all files in the directory in bytes, those in "unusable" included.
  uint64_t bytes() const;

  // Why the file "server" could not be read; OK if it could, or if there is none. After an error,
  // this start counts as the first one.
  const absl::Status& damage() const { return damage_; }
  // The number of starts in this directory that stored their port, plus 1 for this one.
  uint64_t start() const { return start_; }
  // The port on which the last server listened; 0 if there was none.
  uint16_t last_port() const { return last_port_; }
  // Stores the port and the number of starts, for the next start.
  //
  // Errors:
  //   ResourceExhausted, Unavailable  they cannot be stored; the earlier values stay
  absl::Status KeepPort(uint16_t port) const;

  // SetAside moves the plan and the files of all groups, or of these groups alone, into the
  // subdirectory "unusable". What was there before is deleted, unless nothing is moved.
  //
  // Errors:
  //   Unavailable  the files cannot be moved
  absl::Status SetAside() const;
  absl::Status SetAside(const std::vector<uint64_t>& groups) const;
  // Deletes the files of all groups.
  void RemoveGroups() const;

 private:
  StateDirectory(std::string path, std::function<uint64_t()> room, FileDescriptor lock)
      : path_(std::move(path)), room_(std::move(room)), lock_(std::move(lock)) {}

  // Reads the file "server", if there is one.
  absl::Status ReadServer();
  // Moves the files whose names `is_moved` accepts.
  absl::Status MoveAside(absl::FunctionRef<bool(absl::string_view name)> is_moved) const;

  const std::string path_;
  const std::function<uint64_t()> room_;
  const FileDescriptor lock_;
  absl::Status damage_;
  uint64_t start_ = 1;
  uint16_t last_port_ = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_STATE_DIRECTORY_H_
