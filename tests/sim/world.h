// Virtual time and the queue of events, on one thread.
//
// A simulation depends only on its seed. Events run in the order of their times. Events with the
// same time run in the order in which they were added.

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

// A simulated process. Events happen to it; it can be killed and stopped.
class Process {
 public:
  explicit Process(std::string name) : name_(std::move(name)) {}
  virtual ~Process() = default;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  const std::string& name() const { return name_; }
  bool frozen() const { return frozen_; }

  // Called after one of its events has thrown ProcessDied.
  virtual void OnDied() {}

 protected:
  // Cancels all events of this process that have been posted so far.
  void ForgetEvents() {
    ++life_;
    waiting_.clear();
  }

 private:
  friend class World;
  const std::string name_;
  uint64_t life_ = 0;
  bool frozen_ = false;
  std::vector<std::function<void()>> waiting_;  // events that wait until the process is thawed
};

// Thrown by the simulated environment of a process, to kill the process in the middle of an
// operation.
struct ProcessDied {
  Process* process;
};

class World : public Clock {
 public:
  // `trace`: writes each step of the simulation to stderr.
  World(uint64_t seed, bool trace);

  absl::Time Now() const override { return now_; }
  Random& random() { return random_; }

  // Calls `call` after `delay`. If a process is given: the call is cancelled if the process dies
  // before, and is postponed while the process is frozen.
  void After(absl::Duration delay, std::function<void()> call);
  void After(Process& process, absl::Duration delay, std::function<void()> call);

  void Freeze(Process& process) { process.frozen_ = true; }
  void Thaw(Process& process);

  // Runs events until `done` returns true or a failure is recorded; returns true then. Returns
  // false if no event is left within `limit` of virtual time.
  bool Run(absl::Duration limit, const std::function<bool()>& done);

  // Records a failure. Only the first one is kept.
  void Fail(const std::string& what);
  const std::string& failure() const { return failure_; }
  // Used at the end of a run. Forgive() removes the failure, so that Run() continues. Clear()
  // removes all events.
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
