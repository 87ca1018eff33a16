// What was wrong with gradients, until somebody reads it.

#ifndef SYNCGRADS_SERVER_CORE_GRADIENT_ALERTS_H_
#define SYNCGRADS_SERVER_CORE_GRADIENT_ALERTS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"

namespace syncgrads::server {

// Thread-safe. Calls nothing.
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

  // Those since the last call: the first ones, and how many there were beside them.
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

#endif  // SYNCGRADS_SERVER_CORE_GRADIENT_ALERTS_H_
