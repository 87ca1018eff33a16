#include "worker/base/thread_pool.h"

#include <utility>

#include "absl/time/time.h"

namespace syncgrads {
namespace {

// A training step is many short loops in quick succession. To sleep between them costs more time
// than most of them take.
constexpr int kSpins = 4000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) {
    helpers_.emplace_back([this, i] { Help(i); });
  }
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
    ++loop_;
  }
  changed_.NotifyAll();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::Run(int parts, absl::FunctionRef<void(int part)> part) {
  if (helpers_.empty() || parts <= 1) {
    for (int i = 0; i < parts; ++i) part(i);
    return;
  }
  failure_ = nullptr;
  part_ = &part;
  parts_ = parts;
  pending_ = static_cast<int>(helpers_.size());
  {
    // The lock ensures that a thread which is about to sleep does not miss the change.
    MutexLock lock(mutex_);
    ++loop_;
  }
  changed_.NotifyAll();
  Do(part, 0);
  // The parts are even, so the other threads are about to finish too.
  for (int spins = 0; pending_.load(std::memory_order_acquire) > 0; ++spins) {
    if (spins < kSpins) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::Do(absl::FunctionRef<void(int)> part, int index) {
  try {
    part(index);
  } catch (...) {
    MutexLock lock(mutex_);
    failure_ = std::current_exception();
  }
}

void ThreadPool::Help(int index) {
  uint64_t seen = 0;
  while (true) {
    for (int spins = 0; spins < kSpins && loop_.load(std::memory_order_acquire) == seen; ++spins) {
      Pause();
    }
    if (loop_.load(std::memory_order_acquire) == seen) {
      MutexLock lock(mutex_);
      while (loop_.load(std::memory_order_acquire) == seen) {
        changed_.WaitUntil(mutex_, absl::InfiniteFuture());
      }
    }
    seen = loop_.load(std::memory_order_acquire);
    if (ending_) return;
    if (index < parts_) Do(*part_, index);
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace syncgrads
