// A log of what one worker did in each step, for checks of a run: that no step was
// skipped or made twice, that every contribution was counted at most once, and that a run
// on the same rows gives the same result.
//
// Each event is a line of JSON:
//
//   {"event":"begins","worker":"w1","step":7,"newcomer":true}
//   {"event":"step","worker":"w1","step":7,"epoch":3,"members":["w0","w1"],
//    "contributors":["w0","w1"],"whole":true,"rows":[[0,12],[0,3]]}
//   {"event":"checkpoint","worker":"w0","step":40,"path":"run/step-000000000040"}
//   {"event":"checkpoint","worker":"w0","step":50,"error":"cannot write ..."}
//   {"event":"ends","worker":"w1","step":60}
//
// `step` in "begins" and "ends" is the first and the last step in which the worker takes
// part. `rows` are this worker's rows in the step: pairs of the shard's number and the
// row in the shard. They count if the worker is one of `contributors`. If a worker died
// in the middle of a contribution, "whole" is false and "parts" has the contributors of
// each chunk, [["w0","w1"],["w0"]].

#ifndef SYNCGRADS_WORKER_REPORT_EVENT_LOG_H_
#define SYNCGRADS_WORKER_REPORT_EVENT_LOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/client.h"
#include "worker/base/log_file.h"
#include "worker/data/loader.h"
#include "worker/data/shards.h"

namespace syncgrads {

// Writes the log of one worker. The trainer's thread calls it. Not thread-safe.
class EventLog {
 public:
  // Opens the file to append to it: a restarted worker continues its log. Errors: those of
  // LogFile::Open.
  static absl::StatusOr<std::unique_ptr<EventLog>> Open(const std::string& path,
                                                        const std::string& worker,
                                                        LogFile::Warn warn = nullptr);

  void Begins(uint64_t step, bool newcomer);
  void Stepped(const StepOutcome& outcome, const std::vector<RowId>& rows, const WorkerData& data);
  // Logs where the state after `step` was written, or why it was not.
  void Checkpointed(uint64_t step, const absl::StatusOr<std::string>& path);
  void Ends(uint64_t step);

 private:
  EventLog(LogFile file, const std::string& worker);

  // The worker's name as a JSON string, with quotation marks.
  const std::string worker_;
  LogFile file_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_REPORT_EVENT_LOG_H_
