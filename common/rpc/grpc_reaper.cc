#include "common/rpc/grpc_reaper.h"

namespace syncgrads {

GrpcReaper::GrpcReaper() : thread_([this] { Run(); }) {}

GrpcReaper::~GrpcReaper() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void GrpcReaper::Count() {
  MutexLock lock(mutex_);
  ++alive_;
}

void GrpcReaper::Bury(std::function<void()> destroy) {
  MutexLock lock(mutex_);
  graves_.push_back(std::move(destroy));
  changed_.NotifyAll();
}

void GrpcReaper::Run() {
  while (true) {
    std::function<void()> destroy;
    {
      MutexLock lock(mutex_);
      while (graves_.empty()) {
        if (stopping_ && alive_ == 0) return;
        changed_.WaitUntil(mutex_, absl::InfiniteFuture());
      }
      destroy = std::move(graves_.front());
      graves_.pop_front();
    }
    destroy();
    MutexLock lock(mutex_);
    --alive_;
  }
}

}  // namespace syncgrads
