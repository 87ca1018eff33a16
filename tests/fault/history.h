// What the workers of a run say they have done, from their event logs.

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

// Shard and row.
using Row = std::pair<uint32_t, uint64_t>;

// A step as one worker saw it; see worker/train/event_log.h.
struct Step {
  uint64_t number = 0;
  uint64_t epoch = 0;
  std::vector<std::string> members;
  std::vector<std::string> contributors;
  // Of each chunk, if they differ; else empty.
  std::vector<std::vector<std::string>> parts;
  std::vector<Row> rows;  // of this worker
};

// What a worker did from one joining to its death, its departure, or its next joining.
struct Stint {
  std::string worker;
  uint64_t first = 0;
  bool newcomer = false;
  std::vector<Step> steps;
  std::optional<uint64_t> end;  // the last step of a training that was finished
};

// By worker, in the order in which they were written.
using History = std::map<std::string, std::vector<Stint>>;

// Adds what `log` (a worker's event log, whole) says. A last line that was cut off is
// left out.
//
// Errors:
//   DataLoss  a line is none of an event log; it is named
absl::Status AddTo(History& history, const std::string& log);

// Whether every contribution is waited for. If not, a late one is not counted, and who
// is late can be told the result of a later step.
enum class Waits { kForAll, kForQuorum };

// Checks what must hold in every run of `steps` steps in all:
//   no stint goes back or skips a step, and a worker's next one begins after the last
//   step of the one before; all who saw a step say the same of it; epochs do not go
//   back; whoever contributed is a member, and once; what a worker contributed in a
//   step that it saw closed was counted; every step was seen; whoever finished did so
//   after the last step.
//
// Errors:
//   DataLoss  names the workers, the step, and both values
absl::Status CheckHistory(const History& history, uint64_t steps, Waits waits = Waits::kForAll);

// A view of every step from the first, in order: any worker's, but for the rows. Of a
// history that CheckHistory has let pass.
std::vector<const Step*> StepsOf(const History& history);

}  // namespace syncgrads::fault

#endif  // SYNCGRADS_TESTS_FAULT_HISTORY_H_
