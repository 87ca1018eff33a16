// One line about the paths of payloads to all servers, in place of one line for each server.

#ifndef SYNCGRADS_CLIENT_SESSION_PATH_SUMMARY_H_
#define SYNCGRADS_CLIENT_SESSION_PATH_SUMMARY_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "common/mutex.h"

namespace syncgrads::client {

// Shared by the callbacks of all links of a DataPlane. Thread-safe.
class PathSummary {
 public:
  explicit PathSummary(size_t servers) : paths_(servers) {}

  // Payloads to `server` take `path` from now on, such as "over TCP"; not empty. Returns a line if
  // the path to every server is known and the line differs from the one returned before:
  //
  //   payloads to all 2 servers go through shared memory
  //   payloads to servers 0, 2 go through shared memory; payloads to server 1 go over TCP
  std::optional<std::string> Set(size_t server, absl::string_view path);

 private:
  std::string LineLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  // By server; empty while the path is not known.
  std::vector<std::string> paths_ ABSL_GUARDED_BY(mutex_);
  std::string reported_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_SESSION_PATH_SUMMARY_H_
