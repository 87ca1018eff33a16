// Code that blocks, in a world of one thread.
//
// A worker's calls into the client wait for answers. Each worker is a fiber: it
// runs until it waits, for a notification or a deadline, and goes on in an event
// of its process when that comes.

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

// Thrown into a fiber that is killed, from what it waits in. What it throws through
// is destroyed in order, and may wait.
struct FiberKilled {};

class Fibers : public Waits {
 public:
  // `world` must outlive it. Waits are made here, on this thread, for as long as it
  // lives.
  explicit Fibers(World& world);
  // All fibers have ended.
  ~Fibers() override;

  class Fiber;
  // Runs `body` in events of `process`, from a moment on that is still to come.
  // `ended` is called in the last of them. Valid until then.
  Fiber* Start(Process& process, std::function<void()> body, std::function<void()> ended);
  // Not from within a fiber.
  void Kill(Fiber* fiber);
  size_t running() const { return fibers_.size(); }

  // Of the fiber that runs.
  void Sleep(absl::Duration duration);

  bool WaitUntil(const CondVar& condition, Mutex& mutex, absl::Time deadline) override;
  void NotifyAll(const CondVar& condition) override;

 private:
  void Resume(Fiber& fiber);
  void WakeAfter(Fiber& fiber, absl::Duration delay, bool notified);
  // Ends the turn of the fiber that runs. Throws FiberKilled, once.
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
