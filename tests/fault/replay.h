// Repeats a run in one process, without servers, from the job file and from the contributors to
// each step.

#ifndef SYNCGRADS_TESTS_FAULT_REPLAY_H_
#define SYNCGRADS_TESTS_FAULT_REPLAY_H_

#include <cstdint>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "tests/fault/history.h"

namespace syncgrads::fault {

// Trains as `history` describes, and writes the resulting model to `output` in the same format as a
// worker.
//
// The gradient of each contributor is computed on the rows that belong to it. These rows are
// computed too, and compared with the rows that the worker has logged. Averages are computed by a
// plain loop in rank order. The model after each step in `kept` is written to KeptPath(output,
// step).
//
// Requirements: `job` is the file of a job with dtype F32, a chunk size, uncompressed payloads and
// unweighted averages. Its `workers` workers are named worker-0, worker-1, … by rank. `history` has
// passed CheckHistory().
//
// Errors:
//   DataLoss  a worker trained on other rows than its own, or a row was counted twice in a pass
//             over the rows in data.mode DYNAMIC; the message names the worker, the step and the
//             rows
//   others    the job file cannot be read, or the model cannot be built or written
absl::Status Replay(const std::string& job, uint32_t workers, const History& history,
                    const std::string& output, const std::set<uint64_t>& kept = {});

std::string KeptPath(const std::string& output, uint64_t step);

}  // namespace syncgrads::fault

#endif  // SYNCGRADS_TESTS_FAULT_REPLAY_H_
