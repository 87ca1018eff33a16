// Passes reports of a server's jobs on to its coordinator, once there is a connection.

#ifndef SYNCGRADS_SERVER_CORE_PLAN_RELAY_H_
#define SYNCGRADS_SERVER_CORE_PLAN_RELAY_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "common/mutex.h"

namespace syncgrads::server {

// A slot for a callback that can be replaced while it is in use. Server 0 sets a callback into
// its Coordinator, the other servers one into their Follower. Thread-safe; no lock is held
// while a sink runs.
template <typename Report>
class Relay {
 public:
  using Sink = std::function<void(const Report&)>;

  // Replaces the sink. `sink` is called on any thread, also concurrently; null: reports are
  // dropped. When this returns, no call of the previous sink is running, so what that sink
  // uses can be destroyed. Must not be called by a sink, or while a lock is held that a sink
  // takes.
  void SetSink(Sink sink) {
    auto set = sink ? std::make_shared<Set>(Set{std::move(sink), 0}) : nullptr;
    MutexLock lock(mutex_);
    set_.swap(set);
    while (set != nullptr && set->calls > 0) ended_.WaitUntil(mutex_, absl::InfiniteFuture());
  }
  // Calls the sink with `report` on this thread; does nothing without a sink.
  void Send(const Report& report) const {
    std::shared_ptr<Set> set;
    {
      MutexLock lock(mutex_);
      if (set_ == nullptr) return;
      set = set_;
      ++set->calls;
    }
    set->sink(report);
    MutexLock lock(mutex_);
    if (--set->calls == 0) ended_.NotifyAll();
  }

 private:
  // A sink and the number of its calls that are running. `mutex_` protects the number.
  struct Set {
    const Sink sink;
    int calls;
  };

  mutable Mutex mutex_;
  mutable CondVar ended_;
  std::shared_ptr<Set> set_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_PLAN_RELAY_H_
