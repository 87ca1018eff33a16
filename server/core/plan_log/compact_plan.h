// Removes the stored records that a restart no longer needs. The PlanStore calls it.

#ifndef SYNCGRADS_SERVER_CORE_PLAN_LOG_COMPACT_PLAN_H_
#define SYNCGRADS_SERVER_CORE_PLAN_LOG_COMPACT_PLAN_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "server/core/plan/store.h"

namespace syncgrads::server {

// The name and generation of a job.
using JobKey = std::pair<std::string, Generation>;

// Facts about the jobs that the stored records do not contain.
struct JobsNow {
  // Closed jobs of which no member can reconnect.
  std::set<JobKey> forgotten;
  // The number of the oldest epoch that an open round of this server needs, for each open job of
  // which it is known.
  std::map<JobKey, uint64_t> oldest_epochs;
};

// Removes records without which a restart gives the same result. `start` and `records` are a
// stored plan, in order. A server that is restored from the remaining records must answer as if
// it were restored from all of them. Removed are:
//
//   every job      all but the newest QuorumSet and StepNorms of each group; every
//                  EpochProposed after which an Epoch or another EpochProposed follows; all
//                  but the newest MemberEnded of each member and group; the MemberAdmitted,
//                  MemberReady and MemberWithdrawn records of members that were withdrawn, or
//                  were dropped before the newest epoch, and are not evicted; every Epoch
//                  before the oldest one that an open round needs, except the newest ones,
//                  which reconnecting members are sent, and those with a newcomer that is not
//                  ready yet; all records of members that have gone and are in no remaining
//                  Epoch, except evicted ones on the coordinator; every WorkerReadmitted that a
//                  later one of this name follows, or whose members' admissions are removed. A
//                  readmitted worker is not evicted
//   a closed job   every record, once no member of the job can reconnect: it is in
//                  `now.forgotten`, or has no admissions (followers store none). If it has
//                  admissions, its generation is added to `start`. If there are other
//                  servers, its JobClosed is kept, because they may not have applied it
//                  all but the newest LearningRateSet
//   servers        all but the newest ServerSeen of each server
//
// The newest change is always kept: its number is the plan's position. So is the newest
// JobOpened or JobClosed: it decides whether all jobs are done. Of the generations in `start`,
// the largest 10,000 are kept.
void CompactPlan(PlanStart& start, std::vector<Stored>& records, const JobsNow& now);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_PLAN_LOG_COMPACT_PLAN_H_
