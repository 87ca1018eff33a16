// One simulated run of a job. The members, the behaviour of the network, and the faults are drawn
// from one seed.

#ifndef SYNCGRADS_TESTS_SIM_SCHEDULE_H_
#define SYNCGRADS_TESTS_SIM_SCHEDULE_H_

#include <cstdint>
#include <string>

namespace syncgrads::sim {

struct ScheduleOptions {
  uint64_t seed = 0;
  // Writes the events of the run to stderr.
  bool trace = false;
  // Processes also pause, some of them for longer than a lease. The job and the other faults are
  // the same with and without pauses; the course of events is the same until the first pause.
  bool pauses = false;
  // An existing directory for the servers' state. Its contents are removed after the run.
  std::string directory;
};

struct ScheduleOutcome {
  // Empty if all invariants held.
  std::string failure;
  // For people to read: the job and its faults.
  std::string description;
  uint64_t events = 0;
  uint64_t results = 0;
  uint64_t server_deaths = 0;
  uint64_t dropped = 0;
  uint64_t epochs = 0;
  // The number of steps that a quorum closed without some members that had data.
  uint64_t left_behind = 0;
};

ScheduleOutcome RunSchedule(const ScheduleOptions& options);

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_SCHEDULE_H_
