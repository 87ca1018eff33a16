// Threads that run one loop in parallel.

#ifndef SYNCGRADS_WORKER_BASE_THREAD_POOL_H_
#define SYNCGRADS_WORKER_BASE_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/mutex.h"

namespace syncgrads {

// A fixed number of threads, including the caller's, that run the parts of a loop. A thread takes
// the next part when it has ended one, so a thread from which the system has taken its processor
// delays the loop by a part. A loop with the same parts computes the same bits in every run.
//
// Not thread-safe: one loop at a time.
class ThreadPool {
 public:
  // `threads` is at least 1. With 1, everything runs on the caller's thread. Throws
  // std::system_error if the system does not start a thread.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  static constexpr int kMostParts = 0xffff;
  // Calls `part(thread, i)` for each i from 0 to below `parts` (at most kMostParts), and returns
  // when all calls have returned. `thread` is from 0 to below threads(). If a call throws, for
  // example std::bad_alloc, the exception is then rethrown here.
  using Part = absl::FunctionRef<void(int thread, int part)>;
  void Run(int parts, Part part);

 private:
  // Ends the helpers.
  void End();
  void Help(int thread);
  // Takes parts of the loop in progress until all are taken, and calls them. Stores an exception in
  // failure_.
  void Work(int thread);
  // Moves the caller, a helper, to another processor if a thread before it is on the same one.
  // Linux leaves two threads on one processor for milliseconds if one of them keeps yielding.
  void SpreadOut(int thread);

  // There are at least as many processors as threads.
  const bool may_spread_out_;
  // The processor on which each thread was last.
  std::unique_ptr<std::atomic<int>[]> processors_;
  std::vector<std::thread> helpers_;
  // The number of the loop in progress, how many parts it has, and how many are taken: 32, 16 and
  // 16 bits, from the highest to the lowest. One word, so that a thread that is late takes no part
  // of a later loop than it has read of.
  std::atomic<uint64_t> loop_{0};
  // The loop in progress. Read by a thread that has taken a part, so that the loop cannot end.
  const Part* part_ = nullptr;
  std::atomic<int> done_{0};
  std::atomic<bool> ending_{false};
  // An exception of the loop in progress. Written under mutex_, read when all calls have
  // returned.
  std::exception_ptr failure_;
  Mutex mutex_;
  CondVar changed_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_THREAD_POOL_H_
