// std::mutex and std::condition_variable with clang's thread-safety
// annotations.
//
// absl::Mutex is not used because the system's prebuilt Abseil hides it from
// the thread sanitizer, which then reports races on correct code.

#ifndef SYNCGRADS_COMMON_MUTEX_H_
#define SYNCGRADS_COMMON_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

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

// What waits in place of a thread that stands for many: a simulation runs all of
// its processes on one thread, where none may block.
class Waits {
 public:
  virtual ~Waits() = default;
  // As CondVar::WaitUntil: releases `mutex`, and has it again at the end.
  virtual bool WaitUntil(const CondVar& condition, Mutex& mutex, absl::Time deadline) = 0;
  virtual void NotifyAll(const CondVar& condition) = 0;

  // Of this thread; null, as it is unless a simulation has set it: the thread
  // waits itself. It has to be set for all that share a CondVar or for none.
  static inline thread_local Waits* of_this_thread = nullptr;
};

class CondVar {
 public:
  // Releases `mutex`, waits for a notification or `deadline`, and takes it
  // again. Returns false if the deadline passed first. May wake for no reason.
  bool WaitUntil(Mutex& mutex, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (Waits::of_this_thread != nullptr) {
      return Waits::of_this_thread->WaitUntil(*this, mutex, deadline);
    }
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    bool notified = true;
    if (deadline == absl::InfiniteFuture()) {
      condition_.wait(lock);
    } else {
      notified = condition_.wait_until(lock, absl::ToChronoTime(deadline)) ==
                 std::cv_status::no_timeout;
    }
    lock.release();
    return notified;
  }

  void NotifyOne() {
    // One more than asked for is no harm.
    if (Waits::of_this_thread != nullptr) return Waits::of_this_thread->NotifyAll(*this);
    condition_.notify_one();
  }
  void NotifyAll() {
    if (Waits::of_this_thread != nullptr) return Waits::of_this_thread->NotifyAll(*this);
    condition_.notify_all();
  }

 private:
  std::condition_variable condition_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_MUTEX_H_
