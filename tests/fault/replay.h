// A run made again by one process without servers: from the job file, and from who
// contributed to which step.

#ifndef SYNCGRADS_TESTS_FAULT_REPLAY_H_
#define SYNCGRADS_TESTS_FAULT_REPLAY_H_

#include <cstdint>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "tests/fault/history.h"

namespace syncgrads::fault {

// Trains as the history says, and writes the model that comes out to `output`, as a
// worker writes it. The gradient of each contributor is worked out on the rows that
// were its own: those are worked out too, and compared with what the workers logged.
// Averages are a plain loop in the order of the ranks.
//
// `job` is the file of a job of float32 whose layout is given by chunk_bytes, whose
// payloads are not compressed, whose average is not weighted, and whose `workers`
// workers are called worker-0, worker-1, ... by their ranks. `history` is one that
// CheckHistory has let pass.
//
// What the model is after each of `kept` steps is written to KeptPath(output, step).
//
// Errors:
//   DataLoss  a worker trained on other rows than its own, or a row was counted twice
//             in a pass over dealt rows; names worker, step and rows
//   others    as the job file is read and the model is built and written
absl::Status Replay(const std::string& job, uint32_t workers, const History& history,
                    const std::string& output, const std::set<uint64_t>& kept = {});

std::string KeptPath(const std::string& output, uint64_t step);

}  // namespace syncgrads::fault

#endif  // SYNCGRADS_TESTS_FAULT_REPLAY_H_
