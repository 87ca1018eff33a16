// The epochs of one job: when the first one begins, who is in the next one, and how an epoch is
// proposed and begins.
//
//   waiting ── TryStart: all servers and workers are there ──▶ first epoch
//   epoch ── Propose ──▶ proposed ── FinishProposal: all servers have answered, and enough
//                                    members are present ──▶ next epoch

#ifndef SYNCGRADS_SERVER_CORE_MEMBERSHIP_JOB_EPOCHS_H_
#define SYNCGRADS_SERVER_CORE_MEMBERSHIP_JOB_EPOCHS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/signals/membership.h"
#include "server/core/membership/epoch_proposal.h"
#include "server/core/membership/job_identity.h"
#include "server/core/membership/job_members.h"
#include "server/core/membership/membership_dependencies.h"
#include "server/core/membership/state_holders.h"
#include "server/core/plan/plan_change.h"
#include "server/core/plan_log/job_plan.h"

namespace syncgrads::server {

// A *newcomer* is a member that is not in the present epoch.
//
// Not thread-safe; owned by a CoordinatedJob and protected by Coordinator::mutex_.
class JobEpochs {
 public:
  // The arguments, and everything in `dependencies`, must outlive this object.
  JobEpochs(const JobIdentity& job, const MembershipDependencies& dependencies, JobPlan& plan,
            JobMembers& members, StateHolders& holders)
      : job_(job), dependencies_(dependencies), plan_(plan), members_(members), holders_(holders) {}
  JobEpochs(const JobEpochs&) = delete;
  JobEpochs& operator=(const JobEpochs&) = delete;

  // Restores an epoch or a proposal, or closes; ignores other changes.
  void Restore(const PlanChange& change);
  // Sends the restored epoch to its members once every server has applied it again.
  void FinishRestore();

  // The present epoch; empty before the first one.
  const Epoch& present() const { return *present_; }
  bool has_begun() const { return present().number != 0; }
  // The number of the change that began the present epoch.
  uint64_t sequence() const { return sequence_; }
  bool is_proposed() const { return proposal_.has_value(); }
  bool IsNewcomer(MemberId member) const;
  // Whether a member of the present epoch has gone.
  bool AnyGone() const;
  // Whether the present epoch must be replaced by one without members that have gone.
  bool IsOutdated() const;
  // Whether every remaining member of the epoch has ended its data in the group of the state.
  bool IsOver() const;
  // Whether a member is left that has been in an epoch and is not behind.
  bool AnyHasState() const;

  // Begins the first epoch if every server has connected once and all workers have joined. Does
  // nothing once the job has begun.
  void TryStart();
  // Proposes an epoch without the members that have gone and with newcomers that may enter. The
  // job must have begun, and no epoch may be proposed.
  void Propose();
  // If there are newcomers that can enter, proposes an epoch with them. The job must have begun,
  // and no epoch may be proposed.
  void TakeInNewcomers();
  // A server's answer to the proposed epoch. Returns false, and ignores it, if it answers any
  // other proposal.
  bool Answer(ServerIndex server, uint64_t sequence, const std::vector<GroupRound>& rounds);
  enum class Outcome {
    kWaits,      // for servers, or for workers
    kBegun,      // the epoch has begun
    kStateLost,  // elastic jobs only: no member has the state; the proposal is over
  };
  // Begins the proposed epoch if every server has answered and enough members are present.
  // `complete` increases the first rounds of the epoch's groups that are already decided, and sets
  // the epoch's learning rate.
  Outcome FinishProposal(absl::FunctionRef<void(Epoch& epoch)> complete);
  void CancelProposal() { proposal_.reset(); }

  // If the member waits for an epoch, sends it the reason. Call it when the member has joined or
  // has reconnected.
  void SendReason(MemberId id);
  // Sends a new reason to the members that wait, at most once a second, so that n members that join
  // at once are not sent n² messages. A member that has not read earlier signals is sent the reason
  // when it has read them. Call it at every tick.
  void SendReasons();

  // Sends a member that has reconnected the earlier epochs that it was in: it may have missed
  // them, and may still be in a round of one of them.
  void SendEarlier(const JobMember& member) const;
  // Sends the member the present epoch if the member is in it and every server has applied it.
  // Returns whether it was sent.
  bool SendPresent(const JobMember& member) const;

 private:
  // Why members wait for an epoch.
  struct Reason {
    std::string text;  // empty: nobody waits
    bool newcomers_only = false;
    // Grows with each new reason.
    uint64_t number = 0;
  };

  // Updates `reason_`.
  void FindReason();
  // Whether the member waits for the reason in `reason_`.
  bool Waits(const JobMember& member) const;
  // The servers or workers without which the first epoch cannot begin, for messages.
  std::string WaitingFor() const;
  // The reason why no newcomer can enter the next epoch, for messages; empty if they can.
  std::string WhyNoNewcomers() const;
  // A message if `members` is less than min_workers and the data has not ended; otherwise empty.
  std::string WhatIsMissing(size_t members) const;
  // The members of the proposed epoch, in rank order.
  std::vector<const JobMember*> Next() const;
  // Appends the epoch to the plan. Members receive it once every server has applied it.
  void Begin(Epoch epoch);
  // Makes this the present epoch and keeps the one before in `earlier_`.
  void SetPresent(Epoch epoch);

  const JobIdentity& job_;
  const MembershipDependencies dependencies_;
  JobPlan& plan_;
  JobMembers& members_;
  StateHolders& holders_;
  // Shared with the signals that wait or are sent: each has the names of all members.
  std::shared_ptr<const Epoch> present_ = std::make_shared<const Epoch>();
  // The members of `present_`, sorted.
  std::vector<MemberId> present_ids_;
  // The number of the change that began `present_`.
  uint64_t sequence_ = 0;
  // The epochs before `present_`, oldest first: as many as a disconnected member may have missed.
  std::deque<std::shared_ptr<const Epoch>> earlier_;
  std::optional<EpochProposal> proposal_;
  // The reason why the proposed epoch waits, if it was logged; otherwise empty.
  std::string held_for_;
  Reason reason_;
  // When SendReasons has last sent reasons.
  absl::Time reasons_sent_ = absl::InfinitePast();
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_MEMBERSHIP_JOB_EPOCHS_H_
