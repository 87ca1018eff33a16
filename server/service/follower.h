// A server's view of its coordinator: follows its plan, and comes back when the
// stream breaks.

#ifndef SYNCGRADS_SERVER_SERVICE_FOLLOWER_H_
#define SYNCGRADS_SERVER_SERVICE_FOLLOWER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "proto/control.grpc.pb.h"
#include "server/core/jobs.h"
#include "server/core/journal.h"
#include "server/service/followed_plan.h"

namespace syncgrads::server {

struct FollowerOptions {
  // host:port of server 0.
  std::string coordinator;
  // Once a plan has been followed, the coordinator may be out of reach for so long.
  absl::Duration patience = absl::InfiniteDuration();
  FollowedPlanOptions plan;
};

// Thread-safe.
class Follower {
 public:
  // `jobs`, `clock` and `journal` must outlive this object.
  Follower(FollowerOptions options, Jobs& jobs, const Clock& clock, Journal& journal);
  // Ends the stream and waits for it.
  ~Follower();

  // Connects, or connects again when its time has come. To be called often.
  void Tick();

  // To be told to the coordinator: now, if there is a stream, and again on the next.
  void Arrived(const Arrival& arrival);
  void Reduced(const ReducedChunk& chunk);

  // Not OK for good, when this server cannot go on.
  //
  // Errors:
  //   DeadlineExceeded  the coordinator has been out of reach for longer than `patience`
  //   InvalidArgument, PermissionDenied, FailedPrecondition, Unimplemented
  //                     it will not have this server
  absl::Status status() const;

 private:
  class Stream;

  void OnReached();
  void OnSignal(Stream& stream, const v1::PlanSignal& signal);
  void OnDone(const absl::Status& status);

  absl::Status CheckPatienceLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string coordinator_;
  const absl::Duration patience_;
  FollowedPlan plan_;
  Jobs& jobs_;
  const Clock& clock_;
  Journal& journal_;
  const std::unique_ptr<v1::Control::Stub> stub_;

  mutable Mutex mutex_;
  CondVar ended_;
  std::unique_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  absl::Duration backoff_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_attempt_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // Since when the coordinator has been out of reach; in the future while it is not.
  absl::Time lost_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // The stream before, which gRPC is done with.
  std::unique_ptr<Stream> spent_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_FOLLOWER_H_
