#include "tests/sim/fibers.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace syncgrads::sim {
namespace {

constexpr size_t kStackBytes = 512 << 10;

// Aborts if the simulation itself has a bug.
void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// Stacks are reused, because the first use of each costs page faults. All worlds run on one thread.
std::vector<void*>& FreeStacks() {
  static thread_local std::vector<void*> stacks;
  return stacks;
}

void* TakeStack() {
  std::vector<void*>& free = FreeStacks();
  if (!free.empty()) {
    void* const stack = free.back();
    free.pop_back();
    return stack;
  }
  void* const stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
  Require(stack != MAP_FAILED, "no memory for a stack");
  // The lowest page is a guard page.
  Require(mprotect(stack, 4096, PROT_NONE) == 0, "no guard for a stack");
  return stack;
}

}  // namespace

class Fibers::Fiber {
 public:
  Fiber(Fibers& fibers, uint64_t number, Process& process, std::function<void()> body,
        std::function<void()> ended)
      : fibers(fibers),
        number(number),
        process(process),
        body(std::move(body)),
        ended(std::move(ended)),
        stack(TakeStack()) {}
  ~Fiber() { FreeStacks().push_back(stack); }

  Fibers& fibers;
  const uint64_t number;
  Process& process;
  const std::function<void()> body;
  const std::function<void()> ended;
  void* const stack;
  ucontext_t context{};
  ucontext_t caller{};
  // State of the address sanitizer: the fake stacks of both sides, and the caller's stack.
  void* fake_stack = nullptr;
  void* caller_fake_stack = nullptr;
  const void* caller_stack = nullptr;
  size_t caller_stack_bytes = 0;

  const CondVar* waits_for = nullptr;
  // The number of the current wait. A wake-up for an earlier wait is ignored.
  uint64_t wait = 0;
  bool notified = false;
  bool over = false;
  bool killed = false;  // FiberKilled has not been thrown yet
};

Fibers::Fibers(World& world) : world_(world) { Waits::of_this_thread = this; }

Fibers::~Fibers() {
  Require(fibers_.empty(), "a fiber has not ended");
  Waits::of_this_thread = nullptr;
}

Fibers::Fiber* Fibers::Start(Process& process, std::function<void()> body,
                             std::function<void()> ended) {
  fibers_.push_back(
      std::make_unique<Fiber>(*this, started_++, process, std::move(body), std::move(ended)));
  Fiber& fiber = *fibers_.back();
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack;
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  const uint64_t address = reinterpret_cast<uintptr_t>(&fiber);
  makecontext(&fiber.context, reinterpret_cast<void (*)()>(&Fibers::Main), 2,
              static_cast<unsigned int>(address), static_cast<unsigned int>(address >> 32));
  WakeAfter(fiber, absl::ZeroDuration(), true);
  return &fiber;
}

void Fibers::Main(unsigned int low, unsigned int high) {
  auto& fiber = *reinterpret_cast<Fiber*>(uint64_t{high} << 32 | low);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &fiber.caller_stack, &fiber.caller_stack_bytes);
#endif
  try {
    if (!std::exchange(fiber.killed, false)) fiber.body();
  } catch (const FiberKilled&) {
  }
  fiber.over = true;
  fiber.fibers.SwitchBack(fiber, /*for_ever=*/true);
}

void Fibers::SwitchTo(Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fiber.caller_fake_stack, fiber.stack, kStackBytes);
#endif
  swapcontext(&fiber.caller, &fiber.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fiber.caller_fake_stack, nullptr, nullptr);
#endif
}

void Fibers::SwitchBack(Fiber& fiber, [[maybe_unused]] bool for_ever) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_ever ? nullptr : &fiber.fake_stack, fiber.caller_stack,
                                 fiber.caller_stack_bytes);
#endif
  swapcontext(&fiber.context, &fiber.caller);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fiber.fake_stack, &fiber.caller_stack, &fiber.caller_stack_bytes);
#endif
}

void Fibers::Resume(Fiber& fiber) {
  fiber.waits_for = nullptr;
  ++fiber.wait;
  current_ = &fiber;
  SwitchTo(fiber);
  current_ = nullptr;
  if (!fiber.over) return;
  const std::function<void()> ended = fiber.ended;
  std::erase_if(fibers_, [&fiber](const auto& one) { return one.get() == &fiber; });
  ended();
}

void Fibers::WakeAfter(Fiber& fiber, absl::Duration delay, bool notified) {
  world_.After(fiber.process, delay, [this, number = fiber.number, wait = fiber.wait, notified] {
    const auto found = std::find_if(fibers_.begin(), fibers_.end(),
                                    [number](const auto& one) { return one->number == number; });
    if (found == fibers_.end() || (*found)->wait != wait) return;
    (*found)->notified = notified;
    Resume(**found);
  });
}

void Fibers::Pause() {
  Fiber& fiber = *current_;
  SwitchBack(fiber, /*for_ever=*/false);
  if (std::exchange(fiber.killed, false)) throw FiberKilled();
}

void Fibers::Kill(Fiber* fiber) {
  fiber->killed = true;
  WakeAfter(*fiber, absl::ZeroDuration(), true);
}

void Fibers::Sleep(absl::Duration duration) {
  WakeAfter(*current_, duration, false);
  Pause();
}

bool Fibers::WaitUntil(const CondVar& condition, Mutex& mutex, absl::Time deadline) {
  if (deadline <= world_.Now()) return false;
  Require(current_ != nullptr, "an event of the simulation waits: it would for ever");
  Fiber& fiber = *current_;
  fiber.waits_for = &condition;
  if (deadline != absl::InfiniteFuture()) {
    WakeAfter(fiber, std::max(deadline - world_.Now(), absl::ZeroDuration()), false);
  }
  mutex.Unlock();
  // Locks the mutex again for the caller, also if FiberKilled is thrown.
  struct Relock {
    Mutex& mutex;
    ~Relock() { mutex.Lock(); }
  } relock{mutex};
  Pause();
  return fiber.notified;
}

void Fibers::NotifyAll(const CondVar& condition) {
  for (const std::unique_ptr<Fiber>& fiber : fibers_) {
    if (fiber->waits_for == &condition) WakeAfter(*fiber, absl::ZeroDuration(), true);
  }
}

}  // namespace syncgrads::sim
