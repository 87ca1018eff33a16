// The plan of a server, in a log of records.

#ifndef SYNCGRADS_SERVER_SERVICE_PLAN_STORE_H_
#define SYNCGRADS_SERVER_SERVICE_PLAN_STORE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/store.h"
#include "server/state/record_log.h"

namespace syncgrads::server {

// What a log has.
struct StoredPlan {
  PlanStart start;
  std::vector<Stored> records;
};

// A group with a quorum, or that needs norms, has a record for every step: now and then
// the log is written anew without those that do not matter any more.
//
// Not thread-safe, as a Store.
class PlanStore : public Store {
 public:
  // Begins a log, in place of any that is there.
  //
  // Errors: as RecordLog::Create
  static absl::StatusOr<std::unique_ptr<PlanStore>> Create(const std::string& path,
                                                           const PlanStart& start);

  // Goes on with the log that is there.
  //
  // Errors: as RecordLog::Open
  static absl::StatusOr<std::unique_ptr<PlanStore>> Open(const std::string& path, StoredPlan& plan);

  absl::Status Append(const Stored& record) override;
  // Keeps the incarnation of the log before, if `start` has none.
  absl::Status StartAfresh(const PlanStart& start) override;

  Incarnation incarnation() const { return incarnation_; }

 private:
  // Leaves out the QuorumSets and StepNorms that others have taken the place of.
  absl::Status Compact();

  PlanStore(std::string path, std::unique_ptr<RecordLog> log, Incarnation incarnation)
      : path_(std::move(path)), log_(std::move(log)), incarnation_(incarnation) {}

  const std::string path_;
  std::unique_ptr<RecordLog> log_;
  Incarnation incarnation_;
  // Of steps, added since the log was written as a whole.
  uint64_t steps_ = 0;
  uint64_t step_bytes_ = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_PLAN_STORE_H_
