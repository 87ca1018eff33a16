#include "common/local/socket_loop.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/net/polling.h"

namespace syncgrads {
namespace {

// How long Poll lasts at most: longer than a server on this host takes for a small step.
constexpr absl::Duration kPolling = absl::Microseconds(200);
// The number of `wake_` among the sockets.
constexpr uint64_t kWake = 0;

}  // namespace

absl::StatusOr<std::unique_ptr<SocketLoop>> SocketLoop::Start(size_t threads, absl::Duration tick,
                                                              absl::Duration lease) {
  std::unique_ptr<SocketLoop> loop(new SocketLoop(tick, lease));
  loop->epoll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  loop->wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event woken{};
  woken.events = EPOLLIN;
  woken.data.u64 = kWake;
  if (!loop->epoll_.valid() || !loop->wake_.valid() ||
      epoll_ctl(loop->epoll_.get(), EPOLL_CTL_ADD, loop->wake_.get(), &woken) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no descriptors to wait for local streams: ", std::strerror(errno)));
  }
  for (size_t i = 0; i < std::max<size_t>(1, threads); ++i) {
    try {
      loop->threads_.emplace_back([loop = loop.get(), i] { loop->Loop(/*ticks=*/i == 0); });
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no thread to wait for local streams: ", error.what()));
    }
  }
  return loop;
}

SocketLoop::~SocketLoop() {
  {
    MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  for (const auto& socket : Sockets()) socket->Cancel(absl::UnavailableError("shutting down"));
  Wake();
  for (std::thread& thread : threads_) thread.join();
}

void SocketLoop::Wake() {
  const uint64_t once = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &once, sizeof once);
}

void SocketLoop::Run(std::function<void()> closure) {
  {
    MutexLock lock(mutex_);
    closures_.push_back(std::move(closure));
  }
  Wake();
}

void SocketLoop::Poll(absl::FunctionRef<bool()> is_done) {
  bool done = is_done();
  if (done && ExtendLease()) return;
  std::vector<std::shared_ptr<MessageSocket>> sockets = Sockets();
  std::erase_if(sockets, [](const auto& socket) { return !socket->Hold(); });
  if (sockets.empty()) return;
  const absl::Time begin = MonotonicNow();
  absl::Time now = begin;
  for (size_t next = 0; !done && now < begin + kPolling; ++next) {
    sockets[next % sockets.size()]->Handle(MessageSocket::Caller::kPoller);
    done = is_done();
    if (!done && next % sockets.size() == 0) sched_yield();
    now = MonotonicNow();
  }
  const bool is_leased = NotePoll(done, begin, now);
  for (const auto& socket : sockets) socket->Release(is_leased);
  if (is_leased) LeaseUntil(now + lease_);
}

bool SocketLoop::NotePoll(bool is_done, absl::Time begin, absl::Time end) {
  MutexLock lock(mutex_);
  const bool is_soon = begin < last_done_ + lease_;
  last_done_ = is_done ? end : absl::InfinitePast();
  is_leased_ = is_leased_ && is_done && is_soon;
  return is_done && is_soon;
}

bool SocketLoop::ExtendLease() {
  const absl::Time now = MonotonicNow();
  MutexLock lock(mutex_);
  if (!is_leased_ || now > last_done_ + lease_) return false;
  last_done_ = now;
  lease_end_ = now + lease_;
  return true;
}

void SocketLoop::LeaseUntil(absl::Time end) {
  bool is_first = false;
  {
    MutexLock lock(mutex_);
    is_first = next_look_ == absl::InfiniteFuture();
    if (is_first) next_look_ = end;
    lease_end_ = end;
    is_leased_ = true;
  }
  // A thread that sleeps does not know yet that it has to look.
  if (is_first) Wake();
}

void SocketLoop::LookAtLease() {
  bool is_over = false;
  {
    MutexLock lock(mutex_);
    const absl::Time now = MonotonicNow();
    if (now < next_look_) return;
    is_over = now >= lease_end_;
    next_look_ = is_over ? absl::InfiniteFuture() : now + lease_;
    if (is_over) is_leased_ = false;
  }
  for (const auto& socket : Sockets()) {
    if (is_over) {
      socket->EndLease();
    } else {
      socket->Handle(MessageSocket::Caller::kLoop);
    }
  }
}

uint64_t SocketLoop::NewNumber() {
  MutexLock lock(mutex_);
  return ++last_number_;
}

void SocketLoop::Add(uint64_t number, int descriptor, std::shared_ptr<MessageSocket> socket) {
  epoll_event event{};
  event.events = EPOLLOUT | EPOLLONESHOT;
  event.data.u64 = number;
  {
    MutexLock lock(mutex_);
    sockets_[number] = socket;
  }
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0) return;
  socket->Cancel(absl::ResourceExhaustedError(
      absl::StrCat("cannot wait for a local stream: ", std::strerror(errno))));
  Run([socket = std::move(socket)] { socket->Handle(MessageSocket::Caller::kLoop); });
}

void SocketLoop::Arm(uint64_t number, int descriptor, uint32_t events) {
  epoll_event event{};
  event.events = events | EPOLLONESHOT;
  event.data.u64 = number;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, descriptor, &event);
}

void SocketLoop::Remove(uint64_t number, int descriptor) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, nullptr);
  std::shared_ptr<MessageSocket> removed;  // destroyed without the lock
  MutexLock lock(mutex_);
  const auto found = sockets_.find(number);
  removed = std::move(found->second);
  sockets_.erase(found);
  if (is_stopping_ && sockets_.empty()) Wake();
}

void SocketLoop::Loop(bool ticks) {
  absl::Time next_tick = MonotonicNow() + tick_;
  while (true) {
    epoll_event event{};
    absl::Time next = ticks ? next_tick : absl::InfiniteFuture();
    {
      MutexLock lock(mutex_);
      next = std::min(next, next_look_);
    }
    const int count = epoll_wait(epoll_.get(), &event, 1, PollTimeout(next));
    LookAtLease();
    if (ticks && MonotonicNow() >= next_tick) {
      Tick();
      next_tick = MonotonicNow() + tick_;
    }
    if (count < 1) continue;
    // A copy: the kernel's struct is packed, so that its members are not aligned.
    const uint64_t number = event.data.u64;
    if (number == kWake) {
      if (!RunClosures()) return;
      continue;
    }
    std::shared_ptr<MessageSocket> socket;
    {
      MutexLock lock(mutex_);
      const auto found = sockets_.find(number);
      if (found != sockets_.end()) socket = found->second;
    }
    if (socket != nullptr) socket->Handle(MessageSocket::Caller::kLoop);
  }
}

void SocketLoop::Tick() {
  for (const auto& socket : Sockets()) socket->Tick();
}

std::vector<std::shared_ptr<MessageSocket>> SocketLoop::Sockets() {
  std::vector<std::shared_ptr<MessageSocket>> sockets;
  MutexLock lock(mutex_);
  sockets.reserve(sockets_.size());
  for (const auto& [number, socket] : sockets_) sockets.push_back(socket);
  return sockets;
}

bool SocketLoop::RunClosures() {
  std::vector<std::function<void()>> closures;
  {
    MutexLock lock(mutex_);
    closures.swap(closures_);
    // `wake_` stays readable, so that all threads end.
    if (closures.empty() && is_stopping_ && sockets_.empty()) return false;
    uint64_t times = 0;
    [[maybe_unused]] const ssize_t got = read(wake_.get(), &times, sizeof times);
  }
  for (const std::function<void()>& closure : closures) closure();
  MutexLock lock(mutex_);
  if (is_stopping_ && sockets_.empty()) Wake();
  return true;
}

}  // namespace syncgrads
