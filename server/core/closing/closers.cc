#include "server/core/closing/closers.h"

#include <utility>

#include "common/trace/trace.h"

namespace syncgrads::server {

Closers::Closers(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

Closers::~Closers() { Stop(); }

void Closers::Stop() {
  // Dropped closures are destroyed without the lock: one may own the last reference to a group.
  TurnQueue<std::function<void()>> dropped;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    dropped = std::exchange(waiting_, {});
    changed_.NotifyAll();
  }
  dropped = {};
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void Closers::Run(const std::string& job, std::function<void()> close) {
  if (threads_.empty()) return close();
  MutexLock lock(mutex_);
  if (stopping_) return;
  waiting_.Push(job, std::move(close));
  changed_.NotifyOne();
}

void Closers::Work() {
  SetTraceRole("closer");
  while (true) {
    std::function<void()> close;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && waiting_.empty()) changed_.WaitUntil(mutex_, absl::InfiniteFuture());
      if (stopping_) return;
      close = waiting_.Pop();
    }
    close();
  }
}

}  // namespace syncgrads::server
