// Trains a job's model for a test, with whatever team.

#ifndef SYNCGRADS_TESTS_WORKER_TESTING_TRAINING_H_
#define SYNCGRADS_TESTS_WORKER_TESTING_TRAINING_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "worker/job/job_file.h"
#include "worker/train/compute.h"
#include "worker/train/evaluation.h"
#include "worker/train/replicas.h"
#include "worker/train/team.h"

namespace syncgrads {

// What became of a job's workers.
struct Trained {
  explicit Trained(uint32_t world_size)
      : parameters(world_size), steps(world_size), statuses(world_size) {}

  // By rank: all parameters, one after the other.
  std::vector<std::vector<double>> parameters;
  std::vector<uint64_t> steps;
  std::vector<absl::Status> statuses;
  // As rank 0 has them.
  Evaluation held_out;
  ReplicaCheck replicas;
  // Of rank 0, one after the other: what layers change themselves.
  std::vector<double> states;
};

// Trains, compares replicas and evaluates as one worker; sets this rank's part of
// `trained`. `should_stop` is given the steps done so far, and may be empty.
void TrainOne(const Job& job, Team& team, const std::function<bool(uint64_t)>& should_stop,
              Trained& trained, const DeviceChoice& device = DeviceChoice());

// Of two lists of parameters; they must be equally long.
double LargestDifference(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_TESTING_TRAINING_H_
