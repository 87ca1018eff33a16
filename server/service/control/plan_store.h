// The Store of a server: keeps the records of its plan in a RecordLog.
//
// The log is compacted in the background, because that takes milliseconds, and server 0 appends
// records under the coordinator's lock. Meanwhile records are appended to the old log, and kept in
// memory. The first Append after the compaction adds them to the new log, which then replaces the
// old one.

#ifndef SYNCGRADS_SERVER_SERVICE_CONTROL_PLAN_STORE_H_
#define SYNCGRADS_SERVER_SERVICE_CONTROL_PLAN_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/serial_thread.h"
#include "server/core/plan/store.h"
#include "server/core/plan_log/compact_plan.h"
#include "server/state/record_log.h"

namespace syncgrads::server {

// The contents of a log.
struct StoredPlan {
  PlanStart start;
  std::vector<Stored> records;
  // Why it was read from the copy of the log; see RecordLog::replaced.
  absl::Status replaced;
};

struct PlanStoreOptions {
  // The log is compacted, that is, rewritten without the records that are no longer needed, when
  // one of two conditions holds:
  // - It has reached `growth` times its length after the last compaction, plus `slack` bytes.
  //   Until this process has compacted it, that length counts as 0.
  // - It has had `max_steps` records of steps. Groups with a quorum, and groups that need norms,
  //   have such a record for every step.
  uint64_t growth = 2;
  uint64_t slack = 1 << 20;
  uint64_t max_steps = 4096;
  // Returns JobsNow::oldest_epochs. Called in Append. Null: none is known.
  std::function<std::map<JobKey, uint64_t>()> oldest_epochs;
  // Runs closures in the background, one after the other. Null: on a thread of the store.
  std::function<void(std::function<void()>)> run;
  // The options of the log.
  RecordLogOptions log = {.reserve = 256 << 10, .copied = true};
};

// Not thread-safe. Owned by the server. On server 0 it is used under the coordinator's lock; on
// other servers by the thread that applies the plan.
class PlanStore : public Store {
 public:
  // Creates a log that has only `start`, replacing any log at `path`.
  //
  // Errors: those of RecordLog::Create
  static absl::StatusOr<std::unique_ptr<PlanStore>> Create(const std::string& path,
                                                           const PlanStart& start,
                                                           const PlanStoreOptions& options = {});

  // Opens the log at `path` and stores its contents in `plan`.
  //
  // Errors: those of RecordLog::Open; DataLoss also if a record cannot be parsed
  static absl::StatusOr<std::unique_ptr<PlanStore>> Open(const std::string& path, StoredPlan& plan,
                                                         const PlanStoreOptions& options = {});

  // Appends a record; see Store. Does nothing for a ServerSeen that equals the last one stored of
  // that server.
  absl::Status Append(const Stored& record) override;
  // Removes all records; see Store. If `start` has no incarnation, keeps the present one. Needs no
  // more space than the reserve has.
  absl::Status Reset(const PlanStart& start) override;
  void Forget(const std::string& job, Generation generation) override;

  Incarnation incarnation() const { return incarnation_; }

 private:
  PlanStore(std::string path, std::unique_ptr<RecordLog> log, Incarnation incarnation,
            const PlanStoreOptions& options);

  class Compaction;

  // Begins a compaction if the log has grown enough.
  void CompactIfLong();
  // Replaces the log if the compaction in the background has ended. If the compaction failed, or
  // the new log cannot be completed, the log stays in use as it is.
  void FinishCompaction();
  // Sets the length at which the log is compacted next. `bytes` is its present length.
  void SetNextCompaction(uint64_t bytes);

  const std::string path_;
  const PlanStoreOptions options_;
  std::unique_ptr<RecordLog> log_;
  Incarnation incarnation_;
  uint64_t compact_at_ = 0;  // bytes
  // The number of records of steps since the last attempt to compact the log.
  uint64_t steps_ = 0;
  // The jobs that Forget was called for and that the log may still have.
  std::set<JobKey> forgotten_;
  // The compaction that is running; null if there is none. The background has a reference too.
  std::shared_ptr<Compaction> compaction_;
  // The last ServerSeen of each server that is stored.
  std::map<ServerIndex, ServerSeen> seen_;
  // Destroyed first: waits for the compaction. Null if the options have `run`.
  std::unique_ptr<SerialThread> thread_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CONTROL_PLAN_STORE_H_
