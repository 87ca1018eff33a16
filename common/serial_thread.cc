#include "common/serial_thread.h"

#include <utility>

#include "absl/time/time.h"

namespace syncgrads {

SerialThread::SerialThread() : thread_([this] { Work(); }) {}

SerialThread::~SerialThread() { Finish(); }

void SerialThread::Run(std::function<void()> closure) {
  MutexLock lock(mutex_);
  waiting_.push_back(std::move(closure));
  changed_.NotifyOne();
}

void SerialThread::Finish() {
  {
    MutexLock lock(mutex_);
    finishing_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void SerialThread::Work() {
  while (true) {
    std::function<void()> closure;
    {
      MutexLock lock(mutex_);
      while (!finishing_ && waiting_.empty()) changed_.WaitUntil(mutex_, absl::InfiniteFuture());
      if (waiting_.empty()) return;
      closure = std::move(waiting_.front());
      waiting_.pop_front();
    }
    closure();
  }
}

}  // namespace syncgrads
