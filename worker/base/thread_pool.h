// Threads that share the work of one loop.

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

// A fixed number of threads, the caller's included. A loop is always cut in the
// same way for the same number of threads, so that what it computes has the same
// bits in every run.
//
// Not thread-safe: one loop at a time.
class ThreadPool {
 public:
  // `threads` is at least 1; with 1, everything runs on the caller's.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls `part(i)` for each i from 0 to below `parts` (at most threads()), each
  // on a thread of its own, and returns when all have returned. What one of them
  // throws, for want of memory, is thrown here, when all are over.
  void Run(int parts, absl::FunctionRef<void(int part)> part);

 private:
  void Help(int index);
  // Calls part(index), and keeps what it throws.
  void Do(absl::FunctionRef<void(int)> part, int index);

  std::vector<std::thread> helpers_;
  // The loop under way; written before `loop_` grows.
  const absl::FunctionRef<void(int)>* part_ = nullptr;
  int parts_ = 0;
  std::atomic<uint64_t> loop_{0};
  std::atomic<int> pending_{0};
  std::atomic<bool> ending_{false};
  // What a part of the loop under way has thrown. Written under the lock, read when
  // all parts are over.
  std::exception_ptr failure_;
  Mutex mutex_;
  CondVar changed_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_THREAD_POOL_H_
