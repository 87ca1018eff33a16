// The directory that one server keeps its state in.
//
//   lock        locked for as long as the server lives; has its process id
//   server      the port, and how often a server has started here
//   plan        what the coordinator has said: see RecordLog
//   group-N     results of the group that change N of the plan registered: see
//               StateFile

#ifndef SYNCGRADS_SERVER_STATE_STATE_DIRECTORY_H_
#define SYNCGRADS_SERVER_STATE_STATE_DIRECTORY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shm/region.h"

namespace syncgrads::server {

// Immutable, but for the files.
class StateDirectory {
 public:
  // Makes the directory if there is none, and becomes its owner until this object
  // or the process ends. `room` says how many bytes may be taken; null: what the
  // file system has.
  //
  // Errors:
  //   FailedPrecondition  another server owns it; has its process id
  //   Unavailable         the directory cannot be made or written to
  //   DataLoss            the file "server" is damaged
  static absl::StatusOr<std::unique_ptr<StateDirectory>> Own(
      const std::string& path, std::function<uint64_t()> room = nullptr);

  const std::string& path() const { return path_; }
  std::string plan_path() const { return path_ + "/plan"; }
  std::string group_path(uint64_t sequence) const;
  uint64_t room() const { return room_(); }

  // Counts the servers that have started here, this one included, from 1.
  uint64_t start() const { return start_; }
  // What the last server listened on; 0 if there was none.
  uint16_t last_port() const { return last_port_; }
  absl::Status KeepPort(uint16_t port) const;

  // Puts what is there, but for the lock and the server's own file, into a folder
  // "unusable" of the directory, in place of what was there before.
  absl::Status SetAside() const;
  // Deletes all groups' files.
  void RemoveGroups() const;

 private:
  StateDirectory(std::string path, std::function<uint64_t()> room, FileDescriptor lock)
      : path_(std::move(path)), room_(std::move(room)), lock_(std::move(lock)) {}

  absl::Status ReadServer();

  const std::string path_;
  const std::function<uint64_t()> room_;
  const FileDescriptor lock_;
  uint64_t start_ = 1;
  uint16_t last_port_ = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_STATE_DIRECTORY_H_
