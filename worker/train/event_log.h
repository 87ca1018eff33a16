// What one worker did in each step, for whoever wants to check a run: that no step
// was skipped or made twice, that every contribution was counted at most once, and
// what a run on the same rows gives.
//
// A line of JSON for each event:
//
//   {"event":"begins","worker":"w1","step":7,"newcomer":true}
//   {"event":"step","worker":"w1","step":7,"epoch":3,"members":["w0","w1"],
//    "contributors":["w0","w1"],"whole":true,"rows":[[0,12],[0,3]]}
//   {"event":"checkpoint","worker":"w0","step":40,"path":"run/step-000000000040"}
//   {"event":"checkpoint","worker":"w0","step":50,"error":"cannot write ..."}
//   {"event":"ends","worker":"w1","step":60}
//
// `step` of the first and last is the first and last step that the worker takes
// part in. `rows` are this worker's in this step, each as its shard's number and
// the row in the shard; they were counted if the worker is among `contributors`.
// Where a worker died in the middle of a contribution, a step is not "whole" and has
// "parts": the contributors of each chunk, [["w0","w1"],["w0"]].

#ifndef SYNCGRADS_WORKER_TRAIN_EVENT_LOG_H_
#define SYNCGRADS_WORKER_TRAIN_EVENT_LOG_H_

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/client.h"
#include "worker/data/loader.h"
#include "worker/data/shards.h"

namespace syncgrads {

// Not thread-safe.
class EventLog {
 public:
  // Adds to what the file has: a worker that is started again goes on in it.
  //
  // Errors:
  //   PermissionDenied  the file cannot be written
  static absl::StatusOr<std::unique_ptr<EventLog>> Open(const std::string& path,
                                                        const std::string& worker);

  void Begins(uint64_t step, bool newcomer);
  void Stepped(const StepOutcome& outcome, const std::vector<RowId>& rows, const WorkerData& data);
  // Where the state after `step` is kept, or why it is not.
  void Checkpointed(uint64_t step, const absl::StatusOr<std::string>& path);
  void Ends(uint64_t step);

 private:
  explicit EventLog(const std::string& worker);
  // A line is written as a whole: a reader finds it all or not at all, unless the
  // process is killed within it.
  void Write(absl::string_view line);

  const std::string worker_;  // quoted
  std::ofstream file_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_EVENT_LOG_H_
