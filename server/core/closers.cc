#include "server/core/closers.h"

#include <utility>

namespace syncgrads::server {

Closers::Closers(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

Closers::~Closers() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void Closers::Run(std::function<void()> close) {
  if (threads_.empty()) return close();
  MutexLock lock(mutex_);
  waiting_.push_back(std::move(close));
  changed_.NotifyOne();
}

void Closers::Work() {
  while (true) {
    std::function<void()> close;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && waiting_.empty()) changed_.WaitUntil(mutex_, absl::InfiniteFuture());
      if (stopping_) return;
      close = std::move(waiting_.front());
      waiting_.pop_front();
    }
    close();
  }
}

}  // namespace syncgrads::server
