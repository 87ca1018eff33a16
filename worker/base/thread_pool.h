// Threads that run one loop in parallel.

#ifndef SYNCGRADS_WORKER_BASE_THREAD_POOL_H_
#define SYNCGRADS_WORKER_BASE_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/mutex.h"

namespace syncgrads {

// A fixed number of threads, including the caller's, that run the parts of a loop. A loop with
// the same number of parts computes the same bits in every run.
//
// Not thread-safe: one loop at a time.
class ThreadPool {
 public:
  // `threads` is at least 1. With 1, everything runs on the caller's thread.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls `part(i)` for each i from 0 to below `parts` (at most threads()), each on a thread of
  // its own, and returns when all calls have returned. If a call throws, for example
  // std::bad_alloc, the exception is then rethrown here.
  void Run(int parts, absl::FunctionRef<void(int part)> part);

 private:
  void Help(int index);
  // Calls part(index) and stores its exception in failure_.
  void Do(absl::FunctionRef<void(int)> part, int index);

  std::vector<std::thread> helpers_;
  // The loop in progress. Written before `loop_` is incremented.
  const absl::FunctionRef<void(int)>* part_ = nullptr;
  int parts_ = 0;
  std::atomic<uint64_t> loop_{0};
  std::atomic<int> pending_{0};
  std::atomic<bool> ending_{false};
  // An exception of the loop in progress. Written under mutex_, read when all calls have
  // returned.
  std::exception_ptr failure_;
  Mutex mutex_;
  CondVar changed_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_THREAD_POOL_H_
