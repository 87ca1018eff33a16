// Wraps std::mutex and std::condition_variable with clang's thread-safety annotations.
//
// absl::Mutex is not used because the system's prebuilt Abseil hides it from the thread sanitizer,
// which then reports races on correct code.

#ifndef SYNCGRADS_COMMON_MUTEX_H_
#define SYNCGRADS_COMMON_MUTEX_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/clock.h"

namespace syncgrads {

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class CondVar;

// Replaces the blocking waits of CondVar in simulations. A simulation runs all of its processes on
// one thread, so this thread must not block.
class Waits {
 public:
  virtual ~Waits() = default;
  // Releases `mutex`, waits for a notification of `condition` or for `deadline`, and takes `mutex`
  // again. Returns false if the deadline passed first.
  virtual bool WaitUntil(const CondVar& condition, Mutex& mutex, absl::Time deadline) = 0;
  virtual void NotifyAll(const CondVar& condition) = 0;

  // The replacement for waits on this thread. It is null except in simulations; if it is null, the
  // thread blocks. Either all threads that share a CondVar have it set, or none.
  static inline thread_local Waits* of_this_thread = nullptr;
};

class CondVar {
 public:
  // Releases `mutex`, waits for a notification or until MonotonicNow() has reached `deadline`, and
  // takes `mutex` again. Returns false if the deadline passed first. May wake up spuriously, so
  // callers check their condition in a loop.
  bool WaitUntil(Mutex& mutex, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (Waits::of_this_thread != nullptr) {
      return Waits::of_this_thread->WaitUntil(*this, mutex, deadline);
    }
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    // Also without a deadline: condition_variable::wait needs libstdc++ of GCC 12 at run time.
    const bool notified =
        condition_.wait_until(lock, SteadyTime(deadline)) == std::cv_status::no_timeout ||
        MonotonicNow() < deadline;
    lock.release();
    return notified;
  }

  void NotifyOne() {
    // Waking more threads than requested is harmless, because every wait may wake up spuriously.
    if (Waits::of_this_thread != nullptr) return Waits::of_this_thread->NotifyAll(*this);
    condition_.notify_one();
  }
  void NotifyAll() {
    if (Waits::of_this_thread != nullptr) return Waits::of_this_thread->NotifyAll(*this);
    condition_.notify_all();
  }

 private:
  // The result is at most one day away, because std::chrono durations overflow. The wait may then
  // end early.
  static std::chrono::steady_clock::time_point SteadyTime(absl::Time deadline) {
    const absl::Duration left =
        std::clamp(deadline - MonotonicNow(), absl::ZeroDuration(), absl::Hours(24));
    return std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(left);
  }

  std::condition_variable condition_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_MUTEX_H_
