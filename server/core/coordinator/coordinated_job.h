// One job on the coordinator: its members, epochs and groups, and how it ends.
//
// The states of a worker:
//
//   admitted    ── world_size workers have joined ────────────▶ in the first epoch
//   newcomer    ── all members are ready ─────────────────────▶ in a new epoch
//                  (elastic jobs)
//   in an epoch ── Leave ─────────────────────────────────────▶ gone
//                                                               (elastic jobs: a new epoch)
//   in an epoch ── lease, grace period or a timeout ends; ────▶ gone, and a new epoch
//                  Evict
//
// The class passes each request to the part that has the data, and then updates the other parts:
//
//   part                what it has
//   JobPlan             the stored changes, and the members of each round that result
//   JobMembers          who was admitted, the members' streams, signals that wait for the plan
//   Admission           who may join; the workers that were evicted
//   StateHolders        which members have the state of an elastic job
//   FailureDetector     which members are lost; whether the job is abandoned
//   JobEpochs           the present epoch, the earlier ones, and the proposed one
//   GroupRegistrations  the groups, and the requests for groups that wait
//   RoundDecisions      quorums and norms of rounds
//   JobCheckpoints      the count of checkpoints
//   JobLearningRate     the learning rate factor that was set last
//   TrainingCurves      losses and validations that members have reported, and steps per second
//   Departures          members that have left, until their contributions must have arrived
//
// Not thread-safe. The Coordinator owns the jobs. It calls every method, the constructor and the
// destructor included, while it holds Coordinator::mutex_; coordinator.h lists the threads and
// the lock order. No part has a lock of its own. Methods call links and the Journal, which only
// queue; the Store, which writes to the disk; and the jobs of server 0, whose locks come after
// Coordinator::mutex_.

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_COORDINATED_JOB_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_COORDINATED_JOB_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/group/group.h"
#include "common/signals/membership.h"
#include "common/signals/signals.h"
#include "server/core/coordinator/group_registrations.h"
#include "server/core/coordinator/job_checkpoints.h"
#include "server/core/coordinator/job_dependencies.h"
#include "server/core/coordinator/job_learning_rate.h"
#include "server/core/coordinator/job_report.h"
#include "server/core/coordinator/round_decisions.h"
#include "server/core/coordinator/training_curves.h"
#include "server/core/membership/admission.h"
#include "server/core/membership/departures.h"
#include "server/core/membership/failure_detector.h"
#include "server/core/membership/job_epochs.h"
#include "server/core/membership/job_identity.h"
#include "server/core/membership/job_members.h"
#include "server/core/membership/pulse.h"
#include "server/core/membership/state_holders.h"
#include "server/core/plan/group_preparation.h"
#include "server/core/plan/journal.h"
#include "server/core/plan/member_link.h"
#include "server/core/plan/plan_change.h"
#include "server/core/plan/store.h"
#include "server/core/plan_log/job_plan.h"

namespace syncgrads::server {

// Not thread-safe; protected by Coordinator::mutex_.
class CoordinatedJob {
 public:
  // Opens a job for its first worker: appends JobOpened to the plan. If that cannot be stored,
  // failure() is not OK. `restored`: the job was opened before a restart, and nothing is
  // appended.
  CoordinatedJob(const Hello& first, Generation generation, const JobDependencies& dependencies,
                 bool restored = false);
  CoordinatedJob(const CoordinatedJob&) = delete;
  CoordinatedJob& operator=(const CoordinatedJob&) = delete;

  // Restored jobs only: applies one stored record. Call these in the stored order, and then
  // FinishRestore once, which continues the job.
  void Restore(const MemberAdmitted& admitted) { members_.Restore(admitted); }
  void Restore(const MemberWithdrawn& withdrawn) { members_.Restore(withdrawn); }
  void Restore(const MemberReady& ready);
  void Restore(const WorkerReadmitted& readmitted) { admission_.Readmit(readmitted.worker); }
  void Restore(const LearningRateSet& rate) { learning_rate_.Restore(rate); }
  void Restore(const PlanChange& change);
  void FinishRestore();

  const std::string& name() const { return job_.name(); }
  bool has_begun() const { return epochs_.has_begun(); }
  Generation generation() const { return job_.generation(); }
  bool closed() const { return plan_.closed(); }
  // Whether every member has left or was dropped.
  bool AllGone() const { return members_.AllGone(); }
  // Not OK once a change of the job could not be stored, here or on another server. The job
  // must then be closed; JobClosed is the only change that it still appends.
  const absl::Status& failure() const { return plan_.failure(); }
  // Sets failure() to `error`, which is not OK. The first error is kept.
  void Fail(const absl::Status& error) { plan_.Fail(error); }
  // Elastic jobs only: whether every member that had the job's state is gone.
  bool state_lost() const { return state_lost_; }
  // How long the job has been abandoned; zero if it is not.
  absl::Duration abandoned_for() const { return detector_.abandoned_for(); }
  // Whether a step may have been made: server 0 has closed the first round of a group, not counting
  // the round that sets the parameters. The first group of a job has a chunk on server 0.
  bool HasTrained() const;
  // Whether a new job of this worker may replace this one: this job is abandoned, and the worker
  // has its token but cannot become a member of it.
  bool CanBeReplacedBy(const Hello& hello) const;

  // Admits a worker, or reconnects a member on a new stream. CheckHello(hello)
  // must be OK. Errors: those of Coordinator::Admit that concern an existing job.
  absl::StatusOr<MemberId> Admit(const Hello& hello, std::shared_ptr<MemberLink> link);
  // PermissionDenied if it is not the token of the job.
  absl::Status CheckToken(absl::string_view token) const { return job_.CheckToken(token); }
  // Whether the worker is a member that has a secret, and has sent it.
  bool IsMember(const Hello& hello) const { return admission_.IsMember(hello); }

  // Records the heartbeats of a member; null if the member is unknown.
  std::shared_ptr<Pulse> PulseOf(MemberId id) const {
    const JobMember* const member = members_.FindKnown(id);
    return member == nullptr ? nullptr : member->pulse;
  }

  // Requests of members; see Coordinator. They are ignored if the member is unknown or gone,
  // except that a member that has left may retry Leave and gets its Farewell.
  void Register(MemberId member, uint64_t request, const GroupSpec& spec, double link_rate,
                const GroupRegistrations::Ahead& ahead) {
    registrations_.Register(member, request, spec, link_rate, ahead);
  }
  GroupRegistrations::Ahead LookAhead(const GroupSpec& spec, uint64_t bytes,
                                      double link_rate) const {
    return registrations_.LookAhead(spec, bytes, link_rate);
  }
  void Refuse(MemberId member, uint64_t request, const absl::Status& error);
  void End(MemberId member, uint64_t request, GroupId group, Round last_round, bool follows);
  void Leave(MemberId member, uint64_t request, std::vector<GroupRound> last_rounds);
  void Ready(MemberId member, uint64_t request, GroupId group);
  void LinkBroken(MemberId member, const MemberLink* link) { members_.Disconnect(member, link); }

  // Sends every member its Welcome. Call it when the last server has connected for the first
  // time.
  void WelcomeAll();
  // Sends members the signals that waited until every server has applied a change. Call it
  // when a server has connected, has disconnected, or has applied changes.
  void SendApplied() { members_.SendApplied(); }
  // Begins the first epoch if every server has connected once and all workers have joined.
  void TryStart() { epochs_.TryStart(); }
  // Sends members that wait for an epoch a new reason, at most once a second. Call it at every
  // tick.
  void SendReasons() { epochs_.SendReasons(); }
  // Quorum groups: a member's contribution to a round is complete on a server.
  void Arrived(ServerIndex server, const Arrival& arrival);
  // A chunk on a server waits for norms. If it was the last one, appends the norms to the plan.
  void Reduced(ServerIndex server, const ReducedChunk& chunk);
  // Discards what the server has reported with Reduced. Call it when the server disconnects:
  // it repeats the reports on its next stream.
  void ForgetReduced(ServerIndex server) { decisions_.ForgetReduced(server); }
  // Fixes the sets of the quorum rounds that can be decided now. Call it after Arrived, and
  // at every tick, because a grace period may have ended.
  void DecideRounds();
  // A server's progress with the memory of the group that is being prepared; ignored for any
  // other group.
  void Prepared(ServerIndex server, const GroupPrepared& prepared) {
    registrations_.Prepared(server, prepared);
  }
  // Requests the memory of that group from a server. Idempotent. Call it when the server has
  // reconnected, since it may have lost the request.
  void PrepareOn(ServerIndex server) const { registrations_.PrepareOn(server); }
  // Sends the progress to the workers that wait for the group, at most once a second. Call it
  // at every tick.
  void SendPreparationProgress() { registrations_.SendProgress(); }
  // A server's answer to the proposed epoch. An answer to any other proposal is ignored.
  void OpenRounds(ServerIndex server, uint64_t sequence, const std::vector<GroupRound>& rounds) {
    if (epochs_.Answer(server, sequence, rounds)) FinishProposal();
  }

  // Evict a worker, and lift its eviction; see Coordinator for the errors.
  absl::Status Evict(const std::string& token, const std::string& worker,
                     const std::string& reason);
  absl::Status Readmit(const std::string& token, const std::string& worker);

  // Requests a checkpoint from the epoch's connected members and returns their number; see
  // Coordinator for the errors.
  absl::StatusOr<uint32_t> RequestCheckpoint(const std::string& token) const;
  void Checkpointed(MemberId member, const CheckpointReport& report) {
    checkpoints_.Report(member, report);
  }
  // Set the learning rate factor: for an operator, and for a member; see Coordinator.
  absl::StatusOr<uint64_t> SetLearningRate(const std::string& token, double factor,
                                           const std::string& by);
  void SetLearningRate(MemberId member, uint64_t request, double factor);
  // Asks members of the epoch to record; see Coordinator::RequestTrace.
  absl::StatusOr<std::vector<MemberReport>> RequestTrace(const std::string& token,
                                                         const std::map<MemberId, uint64_t>& traces,
                                                         absl::Duration length) const;
  JobReport Report() const;
  // Takes a sample of what the members have reported about their training, and of the job's steps
  // per second, if a second has passed since the last one. Call it at every tick. `now` is a time
  // of the coordinator's clock, which also counts pauses of the process.
  void SampleCurves(absl::Time now);
  const TrainingCurves& curves() const { return curves_; }

  // Drops the members that have failed, and proposes an epoch without them if others are left;
  // see FailureDetector. Call it at every tick.
  void DropLost();

  // Appends JobClosed to the plan, and sends every remaining member Expelled with `code` and
  // `reason`. The job must not be closed yet. `last`: no other job is open. Returns an error if
  // JobClosed could not be stored; it is then sent to no server.
  absl::Status Close(const std::string& reason, bool last,
                     absl::StatusCode code = absl::StatusCode::kAborted);
  // Whether the job is closed and everyone has been informed: every server has applied
  // JobClosed, and every member that left has its Farewell. Disconnected members and servers
  // are waited for no longer than a grace period.
  bool CanBeForgotten() const;

 private:
  void Refuse(const JobMember& member, uint64_t request, const absl::Status& error) const {
    members_.Send(member, Refused{request, error});
  }
  // Records an event of this job, whose name is put before `text`.
  void Record(EventKind kind, const std::string& worker, absl::string_view text,
              LogLevel level = LogLevel::kInfo) const;
  // Records an event of one worker, whose name is put before `text` too.
  void RecordWorker(EventKind kind, const std::string& worker, absl::string_view text,
                    LogLevel level = LogLevel::kInfo) const;
  // Reconnects a member on a new stream.
  void Reconnect(const JobMember& member, std::shared_ptr<MemberLink> link);
  // Sends the member its Welcome, and the earlier epochs that it was in.
  void Welcome(const JobMember& member) const;
  // Whether the member may report that its state is in this group. Errors: FailedPrecondition,
  // InvalidArgument.
  absl::Status CheckReady(const JobMember& member, GroupId group);
  // Drops a member and sends it `why`. FailedPrecondition: it may rejoin. Aborted: it is
  // evicted. Others: the job is over. The epoch does not change; see ContinueWithoutGone.
  void Drop(const JobMember& member, DropReason reason, const absl::Status& why);
  void DropAll(const absl::Status& why);
  // Continues after members have gone: proposes an epoch without them. Before the first epoch,
  // withdraws them.
  void ContinueWithoutGone();
  // Proposes an epoch if the present one does not have the learning rate that was set.
  void ChangeLearningRate();
  // Begins the proposed epoch if it can begin, and handles what waited for it.
  void FinishProposal();
  // Takes newcomers in if they can enter.
  void TryGrow();

  const JobIdentity job_;
  const JobDependencies dependencies_;
  JobPlan plan_;
  JobMembers members_;
  StateHolders holders_;
  RoundDecisions decisions_;
  JobEpochs epochs_;
  GroupRegistrations registrations_;
  Admission admission_;
  FailureDetector detector_;
  Departures departures_;
  uint64_t reconnects_ = 0;
  DropCounts drops_;
  JobCheckpoints checkpoints_;
  JobLearningRate learning_rate_;
  TrainingCurves curves_;
  bool state_lost_ = false;
  absl::Time closed_at_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_COORDINATED_JOB_H_
