// The history of the workers of a run, according to their event logs.

#ifndef SYNCGRADS_TESTS_FAULT_HISTORY_H_
#define SYNCGRADS_TESTS_FAULT_HISTORY_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace syncgrads::fault {

// The number of the shard, and the row in it.
using Row = std::pair<uint32_t, uint64_t>;

// A step as one worker has logged it; see worker/report/event_log.h.
struct Step {
  uint64_t number = 0;
  uint64_t epoch = 0;
  std::vector<std::string> members;
  std::vector<std::string> contributors;
  // The contributors of each chunk, if they differ between chunks; otherwise empty.
  std::vector<std::vector<std::string>> parts;
  std::vector<Row> rows;  // the rows of this worker
};

// The steps of a worker between joining and the next event of these: its death, its departure, or
// its next joining.
struct Stint {
  std::string worker;
  uint64_t first = 0;
  bool newcomer = false;
  std::vector<Step> steps;
  std::optional<uint64_t> end;  // the last step, if the training was completed
};

// The key is the worker's name. The stints of a worker are in the order of its logs.
using History = std::map<std::string, std::vector<Stint>>;

// Adds the contents of a worker's event log to `history`. An incomplete last line is ignored.
//
// Errors:
//   DataLoss  a line is not an event; the message has the line
absl::Status AddTo(History& history, const std::string& log);

// Whether steps wait for every contribution. If not, a late contribution is not counted, and a late
// worker may receive the result of a later step.
enum class Waits { kForAll, kForQuorum };

// Checks a run that has `steps` steps:
//
//   - No stint goes back or skips a step. A worker's next stint begins after the last step of the
//     previous one.
//   - All workers that have logged a step have logged the same.
//   - Epochs do not go back.
//   - Each contributor to a step is a member and appears once.
//   - If a worker contributed to a step and saw the step closed, its contribution was counted.
//   - Every step has been logged. A worker that completed the training did so after the last step.
//
// Errors:
//   DataLoss  the message names the workers, the step, and both values
absl::Status CheckHistory(const History& history, uint64_t steps, Waits waits = Waits::kForAll);

// Returns each step from the first, in order, as one of the workers has logged it; `rows` are those
// of that worker. `history` must have passed CheckHistory().
std::vector<const Step*> StepsOf(const History& history);

}  // namespace syncgrads::fault

#endif  // SYNCGRADS_TESTS_FAULT_HISTORY_H_
