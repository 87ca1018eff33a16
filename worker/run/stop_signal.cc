#include "worker/run/stop_signal.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <utility>

#include "absl/time/clock.h"

namespace syncgrads {
namespace {

// How soon the watcher sees that it is done, or that the grace is over.
constexpr absl::Duration kPollInterval = absl::Milliseconds(50);

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
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

void StopSignal::SetLastResort(std::function<void()> action, absl::Duration grace) {
  MutexLock lock(mutex_);
  last_resort_ = std::move(action);
  grace_ = grace;
}

void StopSignal::Watch() {
  const sigset_t signals = StopSignals();
  const timespec interval = absl::ToTimespec(kPollInterval);
  absl::Time requested_at = absl::InfiniteFuture();
  while (!done_.load()) {
    if (sigtimedwait(&signals, nullptr, &interval) > 0 && !requested_.exchange(true)) {
      requested_at = absl::Now();
    }
    // The action runs under the lock, so that taking it back waits for its end: what
    // it uses may be gone afterwards.
    MutexLock lock(mutex_);
    if (last_resort_ && absl::Now() - requested_at >= grace_) {
      last_resort_();
      last_resort_ = nullptr;
    }
  }
}

}  // namespace syncgrads
