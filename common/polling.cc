#include "common/polling.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "common/clock.h"

namespace syncgrads {

int PollTimeout(absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) return -1;
  const absl::Duration left =
      std::clamp(deadline - MonotonicNow(), absl::ZeroDuration(), absl::Hours(1));
  return static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
}

bool AwaitSocket(int socket, short events, absl::Time deadline) {
  pollfd polled = {socket, events, 0};
  while (true) {
    const int ready = poll(&polled, 1, PollTimeout(deadline));
    if (ready > 0) return true;
    if ((ready == 0 && MonotonicNow() >= deadline) || (ready < 0 && errno != EINTR)) return false;
  }
}

StopEvent::StopEvent() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void StopEvent::Set() {
  const uint64_t one = 1;
  // The write fails only if the event has been set about 2^64 times.
  [[maybe_unused]] const ssize_t written = write(event_.get(), &one, sizeof(one));
}

bool StopEvent::is_set() const {
  pollfd polled = {event_.get(), POLLIN, 0};
  return poll(&polled, 1, 0) > 0;
}

}  // namespace syncgrads
