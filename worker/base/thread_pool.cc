#include "worker/base/thread_pool.h"

#include <sched.h>

#include <utility>

#include "absl/time/time.h"

namespace syncgrads {
namespace {

// A training step is many short loops in quick succession. To sleep between them costs more time
// than most of them take.
constexpr int kSpins = 4000;
// While the results of a small step are awaited, a processor that sleeps would wake late. So the
// thread goes on for about a millisecond, but offers its processor to others.
constexpr int kYields = 2000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// The parts of the word that describes a loop.
uint64_t NumberOf(uint64_t loop) { return loop >> 32; }
uint64_t PartsOf(uint64_t loop) { return loop >> 16 & 0xffff; }
uint64_t TakenOf(uint64_t loop) { return loop & 0xffff; }
uint64_t FirstOf(uint64_t number, int parts) {
  return number << 32 | static_cast<uint64_t>(parts) << 16;
}

// Empty if the system has more processors than the set has room for.
cpu_set_t AllowedProcessors() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) CPU_ZERO(&allowed);
  return allowed;
}

int CountOf(const cpu_set_t& processors) { return CPU_COUNT(&processors); }

}  // namespace

ThreadPool::ThreadPool(int threads)
    : may_spread_out_(CountOf(AllowedProcessors()) >= threads),
      processors_(new std::atomic<int>[threads]) {
  for (int i = 0; i < threads; ++i) processors_[i] = -1;
  try {
    for (int i = 1; i < threads; ++i) {
      helpers_.emplace_back([this, i] { Help(i); });
    }
  } catch (...) {
    End();
    throw;
  }
}

ThreadPool::~ThreadPool() { End(); }

void ThreadPool::End() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
    loop_ = FirstOf(NumberOf(loop_) + 1, /*parts=*/0);
  }
  changed_.NotifyAll();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::Run(int parts, Part part) {
  if (helpers_.empty() || parts <= 1) {
    for (int i = 0; i < parts; ++i) part(0, i);
    return;
  }
  processors_[0].store(sched_getcpu(), std::memory_order_relaxed);
  failure_ = nullptr;
  part_ = &part;
  done_.store(0, std::memory_order_relaxed);
  {
    // The lock ensures that a thread which is about to sleep does not miss the change.
    MutexLock lock(mutex_);
    loop_.store(FirstOf(NumberOf(loop_) + 1, parts), std::memory_order_release);
  }
  changed_.NotifyAll();
  Work(0);
  // The parts are short, so the other threads are about to finish too.
  for (int spins = 0; done_.load(std::memory_order_acquire) < parts; ++spins) {
    if (spins < kSpins) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::Work(int thread) {
  uint64_t loop = loop_.load(std::memory_order_acquire);
  while (TakenOf(loop) < PartsOf(loop)) {
    // After a failure, `loop` has the current value.
    if (!loop_.compare_exchange_weak(loop, loop + 1, std::memory_order_acq_rel)) continue;
    try {
      (*part_)(thread, static_cast<int>(TakenOf(loop)));
    } catch (...) {
      MutexLock lock(mutex_);
      failure_ = std::current_exception();
    }
    done_.fetch_add(1, std::memory_order_release);
    loop = loop_.load(std::memory_order_acquire);
  }
}

void ThreadPool::Help(int thread) {
  uint64_t seen = 0;
  const auto is_new = [&] { return NumberOf(loop_.load(std::memory_order_acquire)) != seen; };
  while (true) {
    for (int spins = 0; spins < kSpins && !is_new(); ++spins) Pause();
    for (int spins = 0; spins < kYields && !is_new(); ++spins) {
      SpreadOut(thread);
      std::this_thread::yield();
    }
    if (!is_new()) {
      MutexLock lock(mutex_);
      while (!is_new()) changed_.WaitUntil(mutex_, absl::InfiniteFuture());
    }
    seen = NumberOf(loop_.load(std::memory_order_acquire));
    if (ending_) return;
    SpreadOut(thread);
    Work(thread);
  }
}

void ThreadPool::SpreadOut(int thread) {
  if (!may_spread_out_) return;
  const int own = sched_getcpu();
  processors_[thread].store(own, std::memory_order_relaxed);
  cpu_set_t taken;
  CPU_ZERO(&taken);
  for (int i = 0; i < thread; ++i) {
    const int processor = processors_[i].load(std::memory_order_relaxed);
    if (processor >= 0 && processor < CPU_SETSIZE) CPU_SET(processor, &taken);
  }
  if (own < 0 || own >= CPU_SETSIZE || !CPU_ISSET(own, &taken)) return;
  const cpu_set_t allowed = AllowedProcessors();
  cpu_set_t others;
  CPU_XOR(&others, &allowed, &taken);
  CPU_AND(&others, &others, &allowed);
  if (CountOf(others) == 0) return;
  sched_setaffinity(0, sizeof others, &others);
  sched_setaffinity(0, sizeof allowed, &allowed);
}

}  // namespace syncgrads
