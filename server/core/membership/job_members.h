// The members of one job: who was admitted under which name, their streams, and who has gone.

#ifndef SYNCGRADS_SERVER_CORE_MEMBERSHIP_JOB_MEMBERS_H_
#define SYNCGRADS_SERVER_CORE_MEMBERSHIP_JOB_MEMBERS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/signals/membership.h"
#include "common/signals/signals.h"
#include "server/core/membership/announcements.h"
#include "server/core/membership/job_identity.h"
#include "server/core/membership/membership_dependencies.h"
#include "server/core/membership/pulse.h"
#include "server/core/plan/member_link.h"
#include "server/core/plan_log/job_plan.h"

namespace syncgrads::server {

// One admitted worker.
struct JobMember {
  Member member;
  std::optional<uint32_t> asked_rank;
  std::string host;
  bool shares_memory = false;
  // Null while the member has no stream.
  std::shared_ptr<MemberLink> link;
  std::shared_ptr<Pulse> pulse;
  // When the stream broke; InfiniteFuture if it is not broken.
  absl::Time link_broken = absl::InfiniteFuture();
  // The number of the reason for waiting that was sent last on this stream; see JobEpochs. 0: none.
  uint64_t reason_sent = 0;
  // The member has left or was dropped.
  bool gone = false;
  // The member has left, and its Farewell may not have reached it.
  bool awaits_farewell = false;
};

// A member is *present* until it leaves or is dropped. It is kept after that until it has been
// informed and is in no epoch. Pointers to members are valid until a member is removed.
//
// Not thread-safe; owned by a CoordinatedJob and protected by Coordinator::mutex_. Links only
// queue. Add and Withdraw write to the disk.
class JobMembers {
 public:
  // The arguments, and everything in `dependencies`, must outlive this object.
  JobMembers(const JobIdentity& job, const MembershipDependencies& dependencies, JobPlan& plan)
      : job_(job), dependencies_(dependencies), plan_(plan) {}
  JobMembers(const JobMembers&) = delete;
  JobMembers& operator=(const JobMembers&) = delete;

  // Adds a worker, which has no stream yet, and stores its admission. If the worker requests no
  // name, it gets a free one. `shares_memory`: see MemberLink.
  //
  // Errors:
  //   ResourceExhausted, Unavailable  the admission cannot be stored
  absl::StatusOr<MemberId> Add(const Hello& hello, bool shares_memory);
  // Removes a member that was in no epoch, and stores that.
  void Withdraw(MemberId id);
  // Withdraws all members that have gone. Only before the first epoch.
  void WithdrawGone();
  // Removes the members that have gone, have been informed of it, and are not in `epoch`.
  // Returns them.
  std::vector<MemberId> RemoveGone(const Epoch& epoch);

  // Apply stored records after a restart, in the stored order. Every member gets a new lease.
  void Restore(const MemberAdmitted& admitted);
  void Restore(const MemberWithdrawn& withdrawn) { members_.erase(withdrawn.member); }
  void Restore(const MemberGone& gone);
  void Restore(const JobClosed& closed);

  // The number of calls of Add that have succeeded.
  uint64_t joins() const { return joins_; }
  // All members, including those that have gone.
  const std::map<MemberId, JobMember>& all() const { return members_; }
  // Whether every member has left or was dropped.
  bool AllGone() const;
  bool AnyAwaitsFarewell() const;
  // Whether every member shares memory with the coordinator's host.
  bool AllShareMemory() const;
  // Null if the member is unknown or gone.
  const JobMember* Find(MemberId id) const;
  // Null if the member is unknown.
  const JobMember* FindKnown(MemberId id) const;
  // The present member of this name; null if there is none.
  const JobMember* FindNamed(absl::string_view name) const;
  // The member that this incarnation is, if it is present or awaits its Farewell; otherwise null.
  const JobMember* FindIncarnation(Incarnation incarnation) const;
  // The present members in rank order: by requested rank, then by name.
  std::vector<const JobMember*> Ranked() const;

  // The member has a new stream. Renews its lease.
  void Connect(MemberId id, std::shared_ptr<MemberLink> link);
  // The member's stream broke. Ignored if the member has another stream by now.
  void Disconnect(MemberId id, const MemberLink* link);
  // Renews the lease of a member because of a message from it. Returns the member; null if it
  // is unknown or gone, and then nothing is renewed.
  const JobMember* Renew(MemberId id);
  // Renews the leases of the members that have a stream.
  void RenewConnected();
  // Gives every present member a full lease and, if it has no stream, a full grace period.
  void RenewAll();

  // Members that have left and have had no stream for the grace of a stream are not waited for any
  // more. If one returns later, it is refused, and knows by that that it has left.
  void GiveUpFarewells();
  // The member has left gracefully. It keeps its stream until it is sent its Farewell.
  void MarkLeft(MemberId id);
  // The member is dropped: sends it Expelled with `reason`, and ends its stream.
  void Expel(MemberId id, const absl::Status& reason);
  // Expels every present member.
  void ExpelAll(const absl::Status& reason);

  // Sends the signal if the member has a stream.
  void Send(const JobMember& member, const JobSignal::Kind& signal) const;
  // Sends the member the reason why it waits. `number` identifies the reason; not 0.
  void SendReason(MemberId id, const Waiting& reason, uint64_t number);
  // Sends the member its Welcome. Every server must have connected once.
  void SendWelcome(const JobMember& member) const;
  // Sends the signal to the member once every server has applied the change `sequence`. Never,
  // if that is JobPlan::kNeverApplied.
  void SendWhenApplied(uint64_t sequence, MemberId member, JobSignal::Kind signal);
  // Sends the signals that waited for changes which every server has applied by now. A member
  // whose stream is broken does not get them: it repeats its request on its next stream.
  void SendApplied();
  // Whether signals wait in SendWhenApplied.
  bool signals_wait() const { return !announcements_.empty(); }

 private:
  // Fills in a new member, with a full lease.
  JobMember& Enter(const Hello& hello, MemberId id, bool shares_memory);
  // A free name for a member that did not request one.
  std::string NameFor(std::optional<uint32_t> rank, MemberId id) const;

  const JobIdentity& job_;
  const MembershipDependencies dependencies_;
  JobPlan& plan_;
  uint32_t next_member_ = 0;
  uint64_t joins_ = 0;
  std::map<MemberId, JobMember> members_;
  Announcements announcements_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_MEMBERSHIP_JOB_MEMBERS_H_
