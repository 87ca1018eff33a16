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
  std::map<std::string, Queue> dropped;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    dropped = std::exchange(waiting_, {});
    turns_.clear();
    changed_.NotifyAll();
  }
  dropped.clear();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void Closers::Run(const std::string& job, std::function<void()> close) {
  if (threads_.empty()) return close();
  MutexLock lock(mutex_);
  if (stopping_) return;
  const auto [queue, is_new] = waiting_.try_emplace(job);
  if (is_new) turns_.push_back(job);
  queue->second.push_back(std::move(close));
  changed_.NotifyOne();
}

std::function<void()> Closers::TakeLocked() {
  const auto found = waiting_.find(turns_.front());
  turns_.pop_front();
  Queue& queue = found->second;
  std::function<void()> close = std::move(queue.front());
  queue.pop_front();
  if (queue.empty()) {
    waiting_.erase(found);
  } else {
    turns_.push_back(found->first);
  }
  return close;
}

void Closers::Work() {
  SetTraceRole("closer");
  while (true) {
    std::function<void()> close;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && waiting_.empty()) changed_.WaitUntil(mutex_, absl::InfiniteFuture());
      if (stopping_) return;
      close = TakeLocked();
    }
    close();
  }
}

}  // namespace syncgrads::server
