// Threads that close rounds, so that the threads of the transport go on reading
// and sending while large chunks are reduced, several at a time.

#ifndef SYNCGRADS_SERVER_CORE_CLOSERS_H_
#define SYNCGRADS_SERVER_CORE_CLOSERS_H_

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"

namespace syncgrads::server {

// Thread-safe.
class Closers {
 public:
  // 0 threads: Run runs what it is given at once, on the caller's thread.
  explicit Closers(int threads);
  // Ends when what runs has; what waits is dropped.
  ~Closers();

  // Runs `close` soon, first come first served. At most one for each open chunk
  // waits at a time: callers give none twice.
  void Run(std::function<void()> close);

 private:
  void Work();

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_CLOSERS_H_
