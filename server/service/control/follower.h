// The client of the coordinator on every server but server 0. It applies the coordinator's plan
// to this server's jobs, reports to the coordinator, and reconnects when its stream breaks.

#ifndef SYNCGRADS_SERVER_SERVICE_CONTROL_FOLLOWER_H_
#define SYNCGRADS_SERVER_SERVICE_CONTROL_FOLLOWER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/rpc/credentials.h"
#include "common/rpc/grpc_reaper.h"
#include "common/serial_thread.h"
#include "proto/control.grpc.pb.h"
#include "server/core/jobs/jobs.h"
#include "server/core/plan/journal.h"
#include "server/service/control/followed_plan.h"

namespace syncgrads::server {

struct FollowerOptions {
  // host:port of server 0.
  std::string coordinator;
  // Once this server has applied a change, the time for which the coordinator may be unreachable
  // before status() is DeadlineExceeded.
  absl::Duration coordinator_timeout = absl::InfiniteDuration();
  FollowedPlanOptions plan;
  // Returns this server's load.
  std::function<v1::ServerLoad()> load;
  ChannelSecurity security = {};
};

// Owned by the server. Thread-safe. Changes are applied on a thread of this object, because a
// change may wait for the disk. The next change is read when the one before has been applied.
// Must not be destroyed on gRPC's threads: the destructor waits for gRPC, which may need that
// thread.
class Follower {
 public:
  // `jobs`, `clock` and `journal` must outlive this object.
  Follower(FollowerOptions options, Jobs& jobs, const Clock& clock, Journal& journal);
  // Cancels the stream, and waits until gRPC has released it and no change is being applied.
  ~Follower();

  // Connects if there is no stream and the backoff has passed, and reports the load every second.
  // To be called often, by one thread.
  void Tick();

  // Report to the coordinator, if there is a stream. The greeting of the next stream repeats the
  // reports that the coordinator still needs.
  void Arrived(const Arrival& arrival);
  void Reduced(const ReducedChunk& chunk);
  // Reports to the coordinator, if there is a stream. On the next stream the coordinator repeats
  // its request instead.
  void Prepared(const GroupPrepared& prepared);
  // Reports to the coordinator, if there is a stream. The greeting of the next stream has all
  // failures.
  void StoreFailed(const StoreFailure& failure);

  // Whether there is a stream to the coordinator on which a message has been received.
  bool coordinator_reached() const {
    MutexLock lock(mutex_);
    return lost_ == absl::InfiniteFuture();
  }

  // Not OK once this server cannot continue; it then stays not OK.
  //
  // Errors:
  //   DeadlineExceeded  the coordinator has been unreachable for longer than `coordinator_timeout`
  //   InvalidArgument, PermissionDenied, FailedPrecondition, Unimplemented
  //                     the coordinator has rejected this server, or has sent a change that
  //                     this version does not support
  //   others            Jobs::status: not even the end of a job could be stored
  absl::Status status() const;

 private:
  class Stream;

  // Connects if there is no stream and the backoff has passed.
  void Connect();
  void OnReached();
  // Called on plan_thread_.
  void OnSignal(Stream& stream, const v1::PlanSignal& signal);
  // Called on plan_thread_, after all signals of the stream.
  void OnOver(const absl::Status& status);
  std::shared_ptr<Stream> stream() const;

  absl::Status CheckCoordinatorTimeoutLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string coordinator_;
  const absl::Duration coordinator_timeout_;
  const std::function<v1::ServerLoad()> load_;
  absl::Time next_load_ = absl::InfinitePast();  // used by Tick only
  FollowedPlan plan_;
  Jobs& jobs_;
  const Clock& clock_;
  Journal& journal_;
  const std::unique_ptr<v1::Control::Stub> stub_;

  // Taken before the locks of FollowedPlan and Jobs.
  mutable Mutex mutex_;
  // Null while there is no stream.
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  absl::Duration backoff_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_attempt_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // When the coordinator became unreachable; InfiniteFuture while it is reachable.
  absl::Time lost_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // The plan thread of Jobs. Its closures use all members above.
  SerialThread plan_thread_;
  // Last, so that it is destroyed first: it waits for the streams, which use all other members.
  GrpcReaper reaper_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CONTROL_FOLLOWER_H_
