#include "worker/run/stop_signal.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
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

// Whether stdout or stderr takes no more bytes for now, so that a thread that prints waits.
bool OutputBlocks() {
  pollfd outputs[] = {{STDOUT_FILENO, POLLOUT, 0}, {STDERR_FILENO, POLLOUT, 0}};
  for (pollfd& output : outputs) {
    if (poll(&output, 1, /*timeout=*/0) == 0) return true;
  }
  return false;
}

}  // namespace

void StopSignal::Block() {
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

StopSignal::StopSignal() {
  Block();
  watcher_ = std::thread([this] { Watch(); });
  ender_ = std::thread([this] { EndIfOutputBlocks(); });
}

StopSignal::~StopSignal() {
  done_.store(true);
  watcher_.join();
  ender_.join();
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
    const absl::Duration waited = MonotonicNow() - requested_at;
    overdue_.store(requested_.load() && std::all_of(last_resorts_.begin(), last_resorts_.end(),
                                                    [waited](const LastResort* each) {
                                                      return waited >= each->grace_;
                                                    }));
    for (LastResort* const last_resort : last_resorts_) {
      if (last_resort->action_ && waited >= last_resort->grace_) {
        last_resort->action_();
        last_resort->action_ = nullptr;
      }
    }
  }
}

void StopSignal::EndIfOutputBlocks() const {
  absl::Time blocked_since = MonotonicNow();
  while (!done_.load()) {
    absl::SleepFor(kPollInterval);
    if (!overdue_.load() || !OutputBlocks()) blocked_since = MonotonicNow();
    if (MonotonicNow() - blocked_since >= kLongestBlock) _exit(128 + SIGTERM);
  }
}

}  // namespace syncgrads
