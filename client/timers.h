// Calls that are to be made later: backoff, heartbeats.

#ifndef SYNCGRADS_CLIENT_TIMERS_H_
#define SYNCGRADS_CLIENT_TIMERS_H_

#include <functional>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace syncgrads::client {

// Thread-safe.
class Timers {
 public:
  virtual ~Timers() = default;
  virtual absl::Time Now() const = 0;
  // Calls `call` once `delay` has passed; never from within this function.
  virtual void After(absl::Duration delay, std::function<void()> call) = 0;
  // Waits for a call that is being made and drops those to come. Not from within
  // a call.
  virtual void Stop() = 0;
};

// Timers on the system's clock, with a thread that makes the calls. Thread-safe.
class ThreadTimers : public Timers {
 public:
  ThreadTimers();
  // Stop, if it has not been called.
  ~ThreadTimers() override;

  absl::Time Now() const override;
  void After(absl::Duration delay, std::function<void()> call) override;

  void Stop() override;

 private:
  void Run();

  Mutex mutex_;
  CondVar changed_;
  std::multimap<absl::Time, std::function<void()>> calls_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_TIMERS_H_
