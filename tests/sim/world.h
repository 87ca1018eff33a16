// Virtual time, and what happens in it: one queue of events, on one thread.
//
// Nothing in a simulation depends on anything but its seed: events are made in the
// order of their times, those of one time in the order in which they were added.

#ifndef SYNCGRADS_TESTS_SIM_WORLD_H_
#define SYNCGRADS_TESTS_SIM_WORLD_H_

#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "tests/sim/random.h"

namespace syncgrads::sim {

// Something that events happen to, and that can be killed or stopped.
class Process {
 public:
  explicit Process(std::string name) : name_(std::move(name)) {}
  virtual ~Process() = default;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  const std::string& name() const { return name_; }
  bool frozen() const { return frozen_; }

  // An event ended with ProcessDied.
  virtual void OnDied() {}

 protected:
  // Events that were posted so far will not happen.
  void ForgetEvents() {
    ++life_;
    waiting_.clear();
  }

 private:
  friend class World;
  const std::string name_;
  uint64_t life_ = 0;
  bool frozen_ = false;
  std::vector<std::function<void()>> waiting_;  // until it is thawed
};

// Thrown by what simulates a process's surroundings, to kill it in the middle of
// what it does.
struct ProcessDied {
  Process* process;
};

class World : public Clock {
 public:
  // With `trace`, what happens is written to the standard error as it does.
  World(uint64_t seed, bool trace);

  absl::Time Now() const override { return now_; }
  Random& random() { return random_; }

  // Calls `call` when `delay` has passed; events of a process only if it is still
  // the same, and not while it is frozen.
  void After(absl::Duration delay, std::function<void()> call);
  void After(Process& process, absl::Duration delay, std::function<void()> call);

  void Freeze(Process& process) { process.frozen_ = true; }
  void Thaw(Process& process);

  // Makes events happen until `done`, or until something has failed. False if
  // `limit` of virtual time passes first.
  bool Run(absl::Duration limit, const std::function<bool()>& done);

  // Records that something is wrong. The first counts.
  void Fail(const std::string& what);
  const std::string& failure() const { return failure_; }
  // At the end: goes on whatever has failed; then, drops all events.
  void Forgive() { failure_.clear(); }
  void Clear() { queue_ = {}; }

  bool tracing() const { return trace_; }
  void Trace(const std::string& line) const;

  uint64_t events() const { return made_; }

 private:
  struct Event {
    absl::Time at;
    uint64_t number;
    std::function<void()> call;
    bool operator<(const Event& other) const {
      return at != other.at ? at > other.at : number > other.number;
    }
  };

  const bool trace_;
  const absl::Time start_ = absl::FromUnixSeconds(1'700'000'000);
  absl::Time now_ = start_;
  Random random_;
  std::priority_queue<Event> queue_;
  uint64_t added_ = 0;
  uint64_t made_ = 0;
  std::string failure_;
};

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_WORLD_H_
