#include "worker/run/stop_signal.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <utility>

#include "common/clock.h"

namespace syncgrads {
namespace {

// How soon the watcher thread notices its end, or the end of a grace period.
constexpr absl::Duration kPollInterval = absl::Milliseconds(50);

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&signals, signal);
  return signals;
}

}  // namespace

void StopSignal::Block() {
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

StopSignal::StopSignal() {
  Block();
  watcher_ = std::thread([this] { Watch(); });
}

StopSignal::~StopSignal() {
  done_.store(true);
  watcher_.join();
}

StopSignal::LastResort::LastResort(StopSignal& stop, std::function<void()> action,
                                   absl::Duration grace)
    : stop_(stop), action_(std::move(action)), grace_(grace) {
  MutexLock lock(stop_.mutex_);
  stop_.last_resorts_.push_back(this);
}

StopSignal::LastResort::~LastResort() {
  MutexLock lock(stop_.mutex_);
  stop_.last_resorts_.remove(this);
}

void StopSignal::Watch() {
  const sigset_t signals = StopSignals();
  const timespec interval = absl::ToTimespec(kPollInterval);
  absl::Time requested_at = absl::InfiniteFuture();
  while (!done_.load()) {
    if (sigtimedwait(&signals, nullptr, &interval) > 0 && !requested_.exchange(true)) {
      requested_at = MonotonicNow();
    }
    // Calls actions under the lock, so that ~LastResort waits for a running action: what
    // it uses may be destroyed afterwards.
    MutexLock lock(mutex_);
    for (LastResort* const last_resort : last_resorts_) {
      if (last_resort->action_ && MonotonicNow() - requested_at >= last_resort->grace_) {
        last_resort->action_();
        last_resort->action_ = nullptr;
      }
    }
  }
}

}  // namespace syncgrads
