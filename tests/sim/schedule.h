// One simulated run of a job, all of it drawn from one seed: who takes part, what
// the network does, who dies when.

#ifndef SYNCGRADS_TESTS_SIM_SCHEDULE_H_
#define SYNCGRADS_TESTS_SIM_SCHEDULE_H_

#include <cstdint>
#include <string>

namespace syncgrads::sim {

struct ScheduleOptions {
  uint64_t seed = 0;
  // What happens is written to the standard error.
  bool trace = false;
  // A directory that exists, for the servers' state.
  std::string directory;
};

struct ScheduleOutcome {
  // Empty: everything held.
  std::string failure;
  // What took part, in words.
  std::string description;
  uint64_t events = 0;
  uint64_t results = 0;
  uint64_t server_deaths = 0;
  uint64_t dropped = 0;
  uint64_t epochs = 0;
  // Steps that a quorum made without some that had data.
  uint64_t left_behind = 0;
};

ScheduleOutcome RunSchedule(const ScheduleOptions& options);

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_SCHEDULE_H_
