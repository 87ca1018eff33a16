// The plan of one job: its changes as they are stored and sent to the servers, and the members
// of each round that follow from them.

#ifndef SYNCGRADS_SERVER_CORE_PLAN_LOG_JOB_PLAN_H_
#define SYNCGRADS_SERVER_CORE_PLAN_LOG_JOB_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/ids.h"
#include "server/core/plan/plan_change.h"
#include "server/core/plan/roster.h"
#include "server/core/plan/store.h"
#include "server/core/plan_log/plan_log.h"

namespace syncgrads::server {

// Not thread-safe; owned by a CoordinatedJob and protected by Coordinator::mutex_. Append,
// Close and StoreRecord write to the disk.
class JobPlan {
 public:
  // The number of a change that could not be stored; no server ever reaches it.
  static constexpr uint64_t kNeverApplied = ~uint64_t{0};
  // More epochs than can begin while a disconnected member may still come back.
  static constexpr size_t kEarlierEpochs = 64;

  // The end of a member's data in one group.
  struct End {
    Round last_round{};
    bool follows = true;
    // The number of the MemberEnded change.
    uint64_t sequence = 0;
  };

  // `job`: the job's name. `log` and `store` must outlive this object. If `store` is null, nothing
  // is stored.
  JobPlan(std::string job, Generation generation, PlanLog& log, Store* store)
      : job_(std::move(job)), generation_(generation), log_(log), store_(store) {}
  JobPlan(const JobPlan&) = delete;
  JobPlan& operator=(const JobPlan&) = delete;

  // Stores a change, applies it to the roster, and sends it to the servers. Returns its sequence
  // number. If it cannot be stored, or an earlier one could not, sets failure() and returns
  // kNeverApplied. `prepared`: for a group's plan, the key of its preparation.
  uint64_t Append(decltype(PlanChange::kind) kind, uint64_t prepared = 0);
  // Appends JobClosed, also after a failure. Returns an error if it could not be stored; it is
  // then sent to no server. The job must not be closed yet.
  absl::Status Close(const std::string& reason, bool last);
  // Applies a change that was stored before a restart.
  void Restore(const PlanChange& change);

  // Stores a record that is sent to no server; does nothing without a store.
  //
  // Errors:
  //   ResourceExhausted, Unavailable  the record cannot be stored
  absl::Status StoreRecord(const Stored& record) const;

  // The members of each round according to the stored changes. Servers may not have applied all
  // of these changes yet.
  const Roster& roster() const { return roster_; }
  // The stored end of a member's data; null if it has not ended or the member has gone.
  const End* EndOf(MemberId member, GroupId group) const;
  // Whether the data of a member that has not gone has ended in any group.
  bool HasEndedAny(MemberId member) const { return ends_.contains(member); }

  bool closed() const { return closed_by_ != 0; }
  // The number of the JobClosed change; 0 while the job is open.
  uint64_t closed_by() const { return closed_by_; }
  // The number of the newest change that every server has applied. A closed job does not wait
  // for servers that are disconnected.
  uint64_t applied() const;

  // Not OK once a change could not be stored, here or on another server.
  const absl::Status& failure() const { return failure_; }
  // Sets failure() to `error`, which is not OK. The first error is kept.
  void Fail(const absl::Status& error) { failure_.Update(error); }

 private:
  // Applies a stored change to `roster_` and `ends_`.
  void Follow(const PlanChange& change);

  const std::string job_;
  const Generation generation_;
  PlanLog& log_;
  Store* const store_;
  Roster roster_;
  // The ends of data of the members that have not gone.
  std::map<MemberId, std::map<GroupId, End>> ends_;
  uint64_t closed_by_ = 0;
  absl::Status failure_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_PLAN_LOG_JOB_PLAN_H_
