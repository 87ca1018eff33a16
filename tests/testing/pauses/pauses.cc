// A library for LD_PRELOAD that lets every thread of a process pause at random places, as it would
// on a busy machine. A test that depends on the order of its threads then fails in some runs in
// hundred, not in one in ten thousand.
//
// A thread may pause where it has released a lock, around sending and receiving, around a futex,
// and where it reads the clock:
// - anywhere, from time to time;
// - at a few places, again and again. Each process chooses its own: one of 32 of the places that
//   release a lock. So a thread is late at the same place in each turn of a loop.
//
// The functions here replace those of the C library. They must not call anything that calls them,
// so they use system calls only.

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdint>

namespace {

constexpr uint64_t kMicrosecond = 1000;  // in nanoseconds
constexpr uint64_t kMillisecond = 1000 * kMicrosecond;

// Makes a system call. Returns the kernel's answer: errors are negative.
long Call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  long result;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}

uint64_t Now() {
  timespec now;
  Call(SYS_clock_gettime, CLOCK_MONOTONIC, reinterpret_cast<long>(&now));
  return static_cast<uint64_t>(now.tv_sec) * 1000 * kMillisecond +
         static_cast<uint64_t>(now.tv_nsec);
}

void Sleep(uint64_t nanoseconds) {
  timespec duration = {static_cast<time_t>(nanoseconds / (1000 * kMillisecond)),
                       static_cast<long>(nanoseconds % (1000 * kMillisecond))};
  Call(SYS_nanosleep, reinterpret_cast<long>(&duration));
}

uint64_t Mix(uint64_t value) {
  value *= 0x9e3779b97f4a7c15;
  value ^= value >> 29;
  value *= 0xbf58476d1ce4e5b9;
  return value ^ value >> 32;
}

// The random numbers and the plans of one thread. It has no constructor: memory of threads that is
// initialised at first use would be allocated by functions that call this library.
struct Thread {
  uint64_t random;  // 0 until the thread pauses for the first time
  uint64_t next;    // when it may pause anywhere again
  uint32_t pauses;  // at chosen places, so far
};
[[gnu::tls_model("initial-exec")]] thread_local Thread self;

// Returns the next random number of this thread (xorshift64).
uint64_t Random() {
  self.random ^= self.random << 13;
  self.random ^= self.random >> 7;
  self.random ^= self.random << 17;
  return self.random;
}

uint64_t Below(uint64_t limit) { return (Random() >> 11) % limit; }

// Most pauses are short. Some take as long as another process may have the processor, and a few as
// long as a machine under heavy load keeps a thread waiting.
uint64_t SomeLength() {
  const uint64_t kind = Below(128);
  if (kind == 0) return 20 * kMillisecond + Below(130 * kMillisecond);
  if (kind < 24) return kMillisecond + Below(14 * kMillisecond);
  return 20 * kMicrosecond + Below(1500 * kMicrosecond);
}

// Pauses in a few of the calls, at most once in some milliseconds.
void PauseAnywhere() {
  if (self.random == 0) {
    self.random = Mix(Now() ^ static_cast<uint64_t>(Call(SYS_gettid)) << 32) | 1;
    self.next = Now() + Below(4 * kMillisecond);
  }
  if (Below(4) != 0 || Now() < self.next || Below(8) != 0) return;
  Sleep(SomeLength());
  self.next = Now() + 2 * kMillisecond + Below(30 * kMillisecond);
}

// Pauses if this process has chosen `place`, an address in the program's code.
void PauseAt(const void* place) {
  static uint64_t salt = 0;  // if two threads draw it at the same time, the later one counts
  if (salt == 0) {
    uint64_t drawn = 0;
    Call(SYS_getrandom, reinterpret_cast<long>(&drawn), sizeof(drawn));
    salt = drawn | 1;
  }
  const uint64_t choice = Mix(reinterpret_cast<uint64_t>(place) ^ salt);
  // A thread that has paused often enough runs on, so that every test ends.
  if (choice % 32 != 0 || self.pauses > 200) return;
  ++self.pauses;
  constexpr uint64_t kLengths[] = {300 * kMicrosecond, 1500 * kMicrosecond, 5 * kMillisecond,
                                   25 * kMillisecond};
  const uint64_t length = kLengths[choice / 32 % 4];
  Sleep(self.pauses < 20 ? length : length / 8);
}

// Keeps `errno` as it is.
void Pause() {
  const int before = errno;
  PauseAnywhere();
  errno = before;
}

// Returns the function of this name that would be called without this library.
template <typename Function>
Function* Replaced(Function*& known, const char* name) {
  if (known == nullptr) known = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
  return known;
}

}  // namespace

extern "C" {

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  static decltype(pthread_mutex_unlock)* replaced = nullptr;
  const int result = Replaced(replaced, "pthread_mutex_unlock")(mutex);
  Pause();
  PauseAt(__builtin_return_address(0));
  return result;
}

ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  static decltype(sendmsg)* replaced = nullptr;
  Pause();
  const ssize_t result = Replaced(replaced, "sendmsg")(socket, message, flags);
  Pause();
  return result;
}

ssize_t recvmsg(int socket, msghdr* message, int flags) {
  static decltype(recvmsg)* replaced = nullptr;
  Pause();
  return Replaced(replaced, "recvmsg")(socket, message, flags);
}

int epoll_wait(int poller, epoll_event* events, int most, int timeout) {
  static decltype(epoll_wait)* replaced = nullptr;
  const int result = Replaced(replaced, "epoll_wait")(poller, events, most, timeout);
  Pause();
  return result;
}

ssize_t write(int file, const void* bytes, size_t size) {
  static decltype(write)* replaced = nullptr;
  Pause();
  const ssize_t result = Replaced(replaced, "write")(file, bytes, size);
  Pause();
  return result;
}

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  static decltype(clock_gettime)* replaced = nullptr;
  Pause();
  return Replaced(replaced, "clock_gettime")(clock, now);
}

long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_futex) Pause();
  long result = Call(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                     arguments[5]);
  if (result < 0 && result > -4096) {
    errno = static_cast<int>(-result);
    result = -1;
  }
  if (number == SYS_futex) Pause();
  return result;
}

}  // extern "C"
