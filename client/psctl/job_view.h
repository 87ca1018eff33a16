// Jobs, as the answers of all servers together show them.

#ifndef SYNCGRADS_CLIENT_PSCTL_JOB_VIEW_H_
#define SYNCGRADS_CLIENT_PSCTL_JOB_VIEW_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/psctl/cluster_query.h"
#include "proto/admin.pb.h"

namespace syncgrads::client {

struct WorkerView {
  uint32_t member = 0;
  std::string name;
  // Empty if the coordinator has not answered.
  std::string host;
  std::optional<uint32_t> rank;
  // The newest round of the training group that it has contributed to.
  uint64_t step = 0;
  // How late its contributions are after the first of their rounds: the mean since the previous
  // query, or since the job began if there was none. At least the time that the others wait for it
  // now. nullopt if no server has counted a lag.
  std::optional<absl::Duration> lag;
  // The time since its last heartbeat, and the time after which it is dropped; nullopt if the
  // coordinator has not answered.
  std::optional<absl::Duration> silent, lease;
  bool follows = false;
  bool gone = false;
  // What it has reported last about its training; nullopt if nothing, or if the coordinator has not
  // answered.
  std::optional<v1::TrainingFigures> figures;
};

struct JobView {
  std::string name;
  uint64_t generation = 0;
  uint64_t epoch = 0;
  // The members of the newest epoch in rank order, and then those that are not in it yet.
  std::vector<WorkerView> workers;
  // The name of the training group; empty if the job has no group. It is taken to be the group in
  // which most rounds have closed, other than collectives. The fields below are of this group.
  std::string group;
  uint32_t chunks = 0;
  uint64_t open_round = 0;
  uint64_t late_contributions = 0;
  uint32_t open_chunks = 0;
  absl::Duration oldest_open;
  // Since the previous query, or without one over the last seconds, on the slowest server.
  std::optional<double> steps_per_second;
  // The number of other groups.
  size_t other_groups = 0;
  // The coordinator's answer; nullopt if it has not answered.
  std::optional<v1::JobStatus> coordinator;
};

// Returns the jobs in the order of the answers. `before`: the answers of an earlier query, or null.
std::vector<JobView> JobsOf(const std::vector<Answer>& now, const std::vector<Answer>* before);

// The job's learning rate factor, in the newest epoch that the server has applied.
double RateFactorOf(const v1::JobStatus& job);
// That factor with its first steps: learning rate factor 0.1 from step 25 of group "model" on
std::string RateFactorText(const v1::JobStatus& job);

// Moves the workers that the others wait for longest to the front: by lag, or, if no lag is
// counted, by step. Returns whether the first one is slow: its lag is at least 1 ms and more than
// twice that of the next one, or it is behind in its step.
bool SortSlowestFirst(JobView& job);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_PSCTL_JOB_VIEW_H_
