#include "server/watchdog.h"

#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"

namespace syncgrads::server {

Watchdog::Watchdog(WatchdogOptions options, std::function<void()> answered,
                   std::function<void(const std::string&)> silent)
    : options_(std::move(options)),
      answered_(std::move(answered)),
      silent_(std::move(silent)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { Run(); }) {}

Watchdog::~Watchdog() {
  const uint64_t one = 1;
  // The write cannot fail, since the counter is 0.
  [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void Watchdog::Run() {
  int unanswered = 0;
  while (!stopping()) {
    const absl::Time next = MonotonicNow() + options_.interval;
    if (Answers()) {
      unanswered = 0;
      answered_();
    } else if (!stopping() && ++unanswered >= options_.attempts) {
      silent_(absl::StrCat("this server's own port, ", ToString(options_.address),
                           ", has answered ", "none of ", unanswered, " connections within ",
                           absl::FormatDuration(options_.interval)));
      return;
    }
    Await(-1, 0, next);
  }
}

bool Watchdog::Answers() const {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(options_.address.host.c_str(), absl::StrCat(options_.address.port).c_str(),
                  &hints, &found) != 0) {
    return true;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> address(found, &freeaddrinfo);
  const FileDescriptor connection(
      socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!connection.valid()) return true;
  const absl::Time deadline = MonotonicNow() + options_.interval;
  int error = 0;
  if (connect(connection.get(), address->ai_addr, address->ai_addrlen) != 0) error = errno;
  if (error == EINPROGRESS) {
    socklen_t size = sizeof(error);
    if (!Await(connection.get(), POLLOUT, deadline)) return false;
    getsockopt(connection.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  // Other errors are those of a network that has no such address, for example because it is down.
  if (error != 0) return error != ECONNREFUSED;
  shutdown(connection.get(), SHUT_WR);
  return Await(connection.get(), POLLIN, deadline);
}

bool Watchdog::Await(int descriptor, short events, absl::Time deadline) const {
  // poll() ignores a negative descriptor.
  pollfd polled[] = {{stop_.get(), POLLIN, 0}, {descriptor, events, 0}};
  while (true) {
    const absl::Duration left = std::max(deadline - MonotonicNow(), absl::ZeroDuration());
    const absl::Duration whole = absl::Ceil(left, absl::Milliseconds(1));
    const int ready = poll(polled, 2, static_cast<int>(absl::ToInt64Milliseconds(whole)));
    if (ready < 0 && errno == EINTR) continue;
    return ready > 0 && polled[0].revents == 0;
  }
}

bool Watchdog::stopping() const {
  pollfd polled = {stop_.get(), POLLIN, 0};
  return poll(&polled, 1, 0) > 0;
}

}  // namespace syncgrads::server
