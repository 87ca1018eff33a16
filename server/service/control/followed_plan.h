// The protocol of a server that follows the plan, without the stream: the messages that it sends
// first on a new stream, and its replies to the coordinator's messages.

#ifndef SYNCGRADS_SERVER_SERVICE_CONTROL_FOLLOWED_PLAN_H_
#define SYNCGRADS_SERVER_SERVICE_CONTROL_FOLLOWED_PLAN_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "proto/control.pb.h"
#include "server/core/jobs/jobs.h"
#include "server/core/plan/plan_change.h"

namespace syncgrads::server {

struct FollowedPlanOptions {
  ServerIndex index{};
  // host:port at which workers connect to this server; ":port" stands for the host from which the
  // coordinator sees this server's stream.
  std::string address;
  // The incarnation with which this server identifies itself to the coordinator; see PlanStart.
  Incarnation incarnation{};
  std::string server_token;
  // The rounds that are held since before a restart; see Jobs::Restore.
  std::vector<HeldRounds> held;
  // Draws a random incarnation.
  std::function<Incarnation()> draw_incarnation;
  // Returns the bytes that this server may still take.
  std::function<uint64_t()> available_memory;
};

// Owned by the Follower. Thread-safe, but Apply has one caller at a time.
class FollowedPlan {
 public:
  // `jobs` must outlive this object.
  FollowedPlan(FollowedPlanOptions options, Jobs& jobs);

  // Returns the messages that a new stream begins with. They include all arrivals, norms and
  // store failures from before this call that the coordinator still needs.
  std::vector<v1::ServerSignal> Greeting() const;

  // Applies a message of the coordinator and returns the replies to send.
  //
  // Errors:
  //   InvalidArgument  this version does not support the kind of change, or the group plan is not
  //                    valid
  //   others           Jobs::status: not even the end of a job could be stored, and no later
  //                    change will be applied
  absl::StatusOr<std::vector<v1::ServerSignal>> Apply(const v1::PlanSignal& signal);

  // Acknowledges all changes that have been applied.
  v1::ServerSignal Applied() const;

  // Drops all jobs and draws a new incarnation. To be called when the coordinator does not have
  // the plan that this server has applied.
  void Forget();

 private:
  const FollowedPlanOptions options_;
  Jobs& jobs_;

  mutable Mutex mutex_;
  Incarnation incarnation_ ABSL_GUARDED_BY(mutex_);
  // By job: the answers to proposals whose epochs have not come yet. Repeated on a new stream,
  // since the last stream may have broken before they arrived.
  std::map<std::string, HeldRounds> held_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CONTROL_FOLLOWED_PLAN_H_
