// Warnings about gradients, kept until they are read.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_GRADIENT_ALERTS_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_GRADIENT_ALERTS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"

namespace syncgrads::server {

// Shared by a Job and its chunks. Thread-safe; calls nothing, so it may be used with any lock held.
class GradientAlerts {
 public:
  void Add(std::string line) {
    MutexLock lock(mutex_);
    ++total_;
    if (lines_.size() < kMostLines) {
      lines_.push_back(std::move(line));
    } else {
      ++more_;
    }
  }

  // The warnings since the last call: the first ones, and the number of the others.
  struct Taken {
    std::vector<std::string> lines;
    uint64_t more = 0;
  };
  Taken Take() {
    MutexLock lock(mutex_);
    return {std::exchange(lines_, {}), std::exchange(more_, 0)};
  }

  uint64_t total() const {
    MutexLock lock(mutex_);
    return total_;
  }

 private:
  static constexpr size_t kMostLines = 20;

  mutable Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  uint64_t more_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t total_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_GRADIENT_ALERTS_H_
