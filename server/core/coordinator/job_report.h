// The coordinator's data about one job and its members, for status reports.

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_JOB_REPORT_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_JOB_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/signals/figures.h"
#include "server/core/coordinator/checkpoint_count.h"
#include "server/core/membership/drop_counts.h"
#include "server/core/membership/job_epochs.h"
#include "server/core/membership/job_members.h"
#include "server/core/plan_log/job_plan.h"

namespace syncgrads::server {

struct MemberReport {
  MemberId member{};
  std::string name;
  std::string host;
  // Its position in the newest epoch; nullopt if it is not in it yet.
  std::optional<uint32_t> rank;
  // The time since its last message.
  absl::Duration silent = absl::ZeroDuration();
  // Its data has ended.
  bool follows = false;
  // It has left, or was dropped.
  bool gone = false;
  // What it has reported last about its training; nullopt if nothing.
  std::optional<TrainingFigures> figures;
};

// Counts are those since the job was opened, or since this coordinator was started.
struct JobReport {
  // The members of the newest epoch in rank order, and then those that are not in it yet.
  std::vector<MemberReport> members;
  // The time after its last heartbeat after which a member is dropped.
  absl::Duration lease = absl::ZeroDuration();
  // The number of workers that have joined. A worker that has rejoined counts again.
  uint64_t joins = 0;
  // How often a member has reconnected, after its stream broke or the coordinator was started
  // again.
  uint64_t reconnects = 0;
  DropCounts drops;
  CheckpointCount checkpoints;
};

// `now` is a time of the clock of leases.
std::vector<MemberReport> ReportMembers(const JobMembers& members, const Epoch& newest,
                                        const JobPlan& plan, absl::Time now);

// The coordinator's data about one server.
struct ServerReport {
  // HOST:PORT at which workers reach it; empty if it is not known.
  std::string address;
  bool connected = false;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_JOB_REPORT_H_
