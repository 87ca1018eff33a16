// Blocking code in a simulation that has only one thread.
//
// A worker's calls into the client library block until an answer arrives. Therefore each worker is
// a fiber. It runs until it waits for a notification or a deadline. When one of these comes, it
// continues in an event of its process.

#ifndef SYNCGRADS_TESTS_SIM_FIBERS_H_
#define SYNCGRADS_TESTS_SIM_FIBERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "common/mutex.h"
#include "tests/sim/world.h"

namespace syncgrads::sim {

// Thrown from the wait of a fiber that is killed. Destructors run as usual, and they may wait.
struct FiberKilled {};

class Fibers : public Waits {
 public:
  // `world` must outlive this object. While this object exists, all waits of CondVar on this thread
  // are handled by it.
  explicit Fibers(World& world);
  // Requires that all fibers have ended.
  ~Fibers() override;

  class Fiber;
  // Starts a fiber that runs `body` in events of `process`, beginning with a later event. When
  // `body` has ended, `ended` is called in the same event. The returned pointer is valid until
  // then.
  Fiber* Start(Process& process, std::function<void()> body, std::function<void()> ended);
  // Ends a fiber: FiberKilled is thrown from its current wait. Must not be called from within a
  // fiber.
  void Kill(Fiber* fiber);
  size_t running() const { return fibers_.size(); }

  // Suspends the current fiber for this time.
  void Sleep(absl::Duration duration);

  // Without analysis, because it cannot follow a mutex that a destructor locks again.
  bool WaitUntil(const CondVar& condition, Mutex& mutex,
                 absl::Time deadline) override ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void NotifyAll(const CondVar& condition) override;

 private:
  void Resume(Fiber& fiber);
  void WakeAfter(Fiber& fiber, absl::Duration delay, bool notified);
  // Suspends the current fiber. If the fiber has been killed, throws FiberKilled once when it
  // continues.
  void Pause();
  void SwitchTo(Fiber& fiber);
  void SwitchBack(Fiber& fiber, bool for_ever);
  static void Main(unsigned int low, unsigned int high);

  World& world_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  uint64_t started_ = 0;
  Fiber* current_ = nullptr;
};

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_FIBERS_H_
