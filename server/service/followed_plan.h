// A server's side of the plan that its coordinator tells it, without the stream: what
// it says on a new stream, and what to each change.

#ifndef SYNCGRADS_SERVER_SERVICE_FOLLOWED_PLAN_H_
#define SYNCGRADS_SERVER_SERVICE_FOLLOWED_PLAN_H_

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
#include "server/core/jobs.h"
#include "server/core/plan_change.h"

namespace syncgrads::server {

struct FollowedPlanOptions {
  ServerIndex index{};
  // What workers reach this server at; ":port" for the host it is seen from.
  std::string address;
  // As which the coordinator knows this server; see PlanStart.
  Incarnation incarnation{};
  std::string server_token;
  // What is held since before a restart.
  std::vector<HeldRounds> held;
  // Draws an incarnation.
  std::function<Incarnation()> draw_incarnation;
  // Bytes that this server may still take.
  std::function<uint64_t()> available_memory;
};

// Thread-safe.
class FollowedPlan {
 public:
  // `jobs` must outlive this object.
  FollowedPlan(FollowedPlanOptions options, Jobs& jobs);

  // What a stream begins with. Arrivals from before this call are among it.
  std::vector<v1::ServerSignal> Greeting() const;

  // Applies a change, and returns what to say to it.
  //
  // Errors:
  //   InvalidArgument  it is of no kind that this version knows
  //   others           it could not be stored; nor will any that follow be
  absl::StatusOr<std::vector<v1::ServerSignal>> Apply(const v1::PlanSignal& signal);

  // The coordinator has forgotten what this server has of it: so does this one.
  void Forget();

 private:
  const FollowedPlanOptions options_;
  Jobs& jobs_;

  mutable Mutex mutex_;
  Incarnation incarnation_ ABSL_GUARDED_BY(mutex_);
  // The answers to proposals whose epochs have not come, by job: said again on a
  // new stream, since the last may have broken before they arrived.
  std::map<std::string, HeldRounds> held_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_FOLLOWED_PLAN_H_
