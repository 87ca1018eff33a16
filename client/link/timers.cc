#include "client/link/timers.h"

#include <utility>

#include "common/clock.h"

namespace syncgrads::client {

ThreadTimers::ThreadTimers() : thread_([this] { Run(); }) {}

ThreadTimers::~ThreadTimers() { Stop(); }

absl::Time ThreadTimers::Now() const { return MonotonicNow(); }

void ThreadTimers::After(absl::Duration delay, std::function<void()> call) {
  MutexLock lock(mutex_);
  if (stopped_) return;
  calls_.emplace(MonotonicNow() + delay, std::move(call));
  changed_.NotifyAll();
}

void ThreadTimers::Stop() {
  std::multimap<absl::Time, std::function<void()>> dropped;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    dropped.swap(calls_);
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void ThreadTimers::Run() {
  while (true) {
    std::function<void()> call;
    {
      MutexLock lock(mutex_);
      while (!stopped_ && (calls_.empty() || calls_.begin()->first > MonotonicNow())) {
        changed_.WaitUntil(mutex_, calls_.empty() ? absl::InfiniteFuture() : calls_.begin()->first);
      }
      if (stopped_) return;
      call = std::move(calls_.begin()->second);
      calls_.erase(calls_.begin());
    }
    call();
  }
}

}  // namespace syncgrads::client
