// Delayed calls, for backoff and heartbeats.

#ifndef SYNCGRADS_CLIENT_LINK_TIMERS_H_
#define SYNCGRADS_CLIENT_LINK_TIMERS_H_

#include <functional>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace syncgrads::client {

// A clock and its delayed calls. A simulation replaces it. Thread-safe.
class Timers {
 public:
  virtual ~Timers() = default;
  virtual absl::Time Now() const = 0;
  // Calls `call` once, when `delay` has passed; never before After has returned.
  virtual void After(absl::Duration delay, std::function<void()> call) = 0;
  // Waits until the call that is running has returned, and drops all later ones. Must not be called
  // from within a call.
  virtual void Stop() = 0;
};

// Timers on the monotonic clock. One thread makes all calls. Thread-safe.
class ThreadTimers : public Timers {
 public:
  ThreadTimers();
  // Calls Stop.
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

#endif  // SYNCGRADS_CLIENT_LINK_TIMERS_H_
