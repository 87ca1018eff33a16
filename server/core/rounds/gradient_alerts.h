// Warnings about gradients, kept until they are read, and who has sent gradients that are not
// finite.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_GRADIENT_ALERTS_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_GRADIENT_ALERTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"

namespace syncgrads::server {

// Shared by a Job and its chunks. Thread-safe; calls nothing, so it may be used with any lock held.
class GradientAlerts {
 public:
  // Counts of more workers than this are added up under kOthers.
  static constexpr size_t kMostWorkers = 64;
  static constexpr char kOthers[] = "(others)";

  void Add(std::string line) {
    MutexLock lock(mutex_);
    ++total_;
    if (lines_.size() < kMostLines) {
      lines_.push_back(std::move(line));
    } else {
      ++more_;
    }
  }

  // Adds a warning about a contribution of `worker` in which an element was not finite.
  void AddNonFinite(const std::string& worker, std::string line) {
    {
      MutexLock lock(mutex_);
      const bool is_listed = non_finite_.contains(worker) || non_finite_.size() < kMostWorkers;
      ++(is_listed ? non_finite_[worker] : non_finite_of_others_);
    }
    Add(std::move(line));
  }

  // The contributions that were not finite, by the name of the worker, also of workers that have
  // gone.
  std::map<std::string, uint64_t> NonFinite() const {
    MutexLock lock(mutex_);
    std::map<std::string, uint64_t> counts = non_finite_;
    if (non_finite_of_others_ > 0) counts[kOthers] += non_finite_of_others_;
    return counts;
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
  std::map<std::string, uint64_t> non_finite_ ABSL_GUARDED_BY(mutex_);
  uint64_t non_finite_of_others_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_GRADIENT_ALERTS_H_
