// Records the lines in which clients report the transport of their payloads.

#ifndef SYNCGRADS_TESTS_CLIENT_REPORTED_PATHS_H_
#define SYNCGRADS_TESTS_CLIENT_REPORTED_PATHS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace syncgrads::testing {

// The recorded lines, in order. Must outlive the clients that use its Recorder. Thread-safe.
class ReportedPaths {
 public:
  // Returns the callback for ClientOptions::on_path.
  std::function<void(const std::string&)> Recorder() {
    return [this](const std::string& path) {
      MutexLock lock(mutex_);
      lines_.push_back(path);
      added_.NotifyAll();
    };
  }
  std::vector<std::string> lines() const {
    MutexLock lock(mutex_);
    return lines_;
  }
  // Waits until `count` lines have been recorded. Returns false if `deadline` passes first.
  bool AwaitCount(size_t count, absl::Time deadline) const {
    MutexLock lock(mutex_);
    while (lines_.size() < count) {
      if (!added_.WaitUntil(mutex_, deadline)) return false;
    }
    return true;
  }

 private:
  mutable Mutex mutex_;
  mutable CondVar added_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::testing

#endif  // SYNCGRADS_TESTS_CLIENT_REPORTED_PATHS_H_
