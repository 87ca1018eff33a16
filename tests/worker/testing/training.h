// Trains a job's model in a test, with any Team.

#ifndef SYNCGRADS_TESTS_WORKER_TESTING_TRAINING_H_
#define SYNCGRADS_TESTS_WORKER_TESTING_TRAINING_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "worker/evaluation/evaluation.h"
#include "worker/job/job_file.h"
#include "worker/team/replicas.h"
#include "worker/team/team.h"
#include "worker/train/compute.h"

namespace syncgrads {

// The results of a job's workers.
struct Trained {
  explicit Trained(uint32_t world_size)
      : parameters(world_size),
        steps(world_size),
        out_of_memory(world_size),
        statuses(world_size) {}

  // Indexed by rank: all parameters, one after the other; those that are frozen first.
  std::vector<std::vector<double>> parameters;
  std::vector<uint64_t> steps;
  // The steps that were skipped, because there was not enough memory.
  std::vector<uint64_t> out_of_memory;
  std::vector<absl::Status> statuses;
  // Results of rank 0.
  Evaluation held_out;
  ReplicaCheck replicas;
  // Rank 0's optimizer slots, parameter by parameter; empty if the optimizer is on the servers.
  std::vector<double> slots;
  // Rank 0's states (what layers change themselves, such as running statistics), one after the
  // other.
  std::vector<double> states;
};

// Trains as one worker, compares the replicas and evaluates. Sets this rank's part of `trained`.
// `should_stop` gets the number of steps done so far; it may be empty.
void TrainOne(const Job& job, Team& team, const std::function<bool(uint64_t)>& should_stop,
              Trained& trained, const DeviceChoice& device = DeviceChoice());

// Returns the largest absolute difference of two lists of parameters, which must have the same
// length.
double LargestDifference(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_TESTING_TRAINING_H_
