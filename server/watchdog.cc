#include "server/watchdog.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/file_descriptor.h"

namespace syncgrads::server {

Watchdog::Watchdog(WatchdogOptions options, std::function<void()> answered,
                   std::function<void(const std::string&)> silent)
    : options_(std::move(options)),
      answered_(std::move(answered)),
      silent_(std::move(silent)),
      thread_([this] { Run(); }) {}

Watchdog::~Watchdog() {
  stop_.Set();
  thread_.join();
}

void Watchdog::Run() {
  int unanswered = 0;
  while (!stop_.is_set()) {
    const absl::Time next = MonotonicNow() + options_.interval;
    if (Answers()) {
      unanswered = 0;
      answered_();
    } else if (!stop_.is_set() && ++unanswered >= options_.attempts) {
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
  pollfd polled[] = {{stop_.descriptor(), POLLIN, 0}, {descriptor, events, 0}};
  while (true) {
    const int ready = poll(polled, 2, PollTimeout(deadline));
    if (ready > 0) return polled[0].revents == 0;
    if ((ready == 0 && MonotonicNow() >= deadline) || (ready < 0 && errno != EINTR)) return false;
  }
}

}  // namespace syncgrads::server
