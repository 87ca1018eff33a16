#include "common/local/socket_loop.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/polling.h"
#include "common/short_slices.h"
#include "common/start_thread.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

// How long Poll lasts at most: longer than a server on this host takes for a small step.
constexpr absl::Duration kPolling = absl::Microseconds(200);
// The number of `wake_` among the sockets.
constexpr uint64_t kWake = 0;

}  // namespace

absl::StatusOr<std::unique_ptr<SocketLoop>> SocketLoop::Start(size_t threads, absl::Duration tick) {
  std::unique_ptr<SocketLoop> loop(new SocketLoop(tick));
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
    std::thread thread;
    SYNCGRADS_RETURN_IF_ERROR(StartThread("local streams", thread, [loop = loop.get(), i] {
      AskForShortSlices();
      loop->Loop(/*ticks=*/i == 0);
    }));
    loop->threads_.push_back(std::move(thread));
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
  std::vector<std::shared_ptr<MessageSocket>> sockets = Sockets();
  std::erase_if(sockets, [](const auto& socket) { return !socket->Hold(); });
  if (sockets.empty()) return;
  const absl::Time end = MonotonicNow() + kPolling;
  for (size_t next = 0; !is_done() && MonotonicNow() < end; ++next) {
    sockets[next % sockets.size()]->Handle(MessageSocket::Caller::kPoller);
    if (next % sockets.size() == 0) sched_yield();
  }
  for (const auto& socket : sockets) socket->Release();
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
    const int timeout = ticks ? PollTimeout(next_tick) : -1;
    const int count = epoll_wait(epoll_.get(), &event, 1, timeout);
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
