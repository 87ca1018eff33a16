// A pool of threads that close rounds. While they reduce large chunks, several at a time, the
// threads of the transport continue to read and to send.

#ifndef SYNCGRADS_SERVER_CORE_CLOSING_CLOSERS_H_
#define SYNCGRADS_SERVER_CORE_CLOSING_CLOSERS_H_

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "common/turn_queue.h"

namespace syncgrads::server {

// The server owns one, which all its jobs use. Thread-safe.
class Closers {
 public:
  // With 0 threads, Run executes each closure at once, on the caller's thread.
  explicit Closers(int threads);
  // Calls Stop().
  ~Closers();

  // Waits for the closures that are running and drops those that are queued. Afterwards Run drops
  // every closure; with 0 threads, Run still executes them. Call Stop before anything that a
  // closure uses is destroyed, from one thread at a time.
  void Stop();

  // Queues `close`, of `job`. Jobs take turns: a job with many or large chunks delays a closure of
  // another one by at most the closures that are running and one of each other job. Those of one
  // job start in the order in which they were queued. The queues have no limit of their own:
  // callers queue a closure only after a push or a plan change that may have completed a round.
  // Several closures for one chunk may be queued, so closures have to be idempotent.
  void Run(const std::string& job, std::function<void()> close);

 private:
  void Work();

  Mutex mutex_;
  CondVar changed_;
  TurnQueue<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_CLOSING_CLOSERS_H_
