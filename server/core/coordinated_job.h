// One job as its coordinator holds it: who was admitted, the epochs, the groups,
// and how it ends.
//
//   admitted ── all members are there ──▶ in an epoch ──┬─ Leave ──────────▶ gone
//      ▲                                     ▲          └─ lease ends, or ─▶ gone,
//      │                                     │             stream and grace   and a
//      │                                     │                            new epoch
//   newcomer of an elastic job ── all ───────┘
//                              members ready;
//                              a new epoch
//
// In an elastic job members say when they are ready: they have their state, and
// could give it. Newcomers enter an epoch together; until all of them are ready no
// further newcomer does, so that they all begin at the same rounds.

#ifndef SYNCGRADS_SERVER_CORE_COORDINATED_JOB_H_
#define SYNCGRADS_SERVER_CORE_COORDINATED_JOB_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/group.h"
#include "server/core/announcements.h"
#include "server/core/checkpoint_count.h"
#include "server/core/coordinator_options.h"
#include "server/core/epoch_proposal.h"
#include "server/core/group_registry.h"
#include "server/core/introduction.h"
#include "server/core/job_signal.h"
#include "server/core/jobs.h"
#include "server/core/journal.h"
#include "server/core/norm_tally.h"
#include "server/core/plan_log.h"
#include "server/core/quorum_tally.h"
#include "server/core/store.h"

namespace syncgrads::server {

// What all workers of a job agree on.
struct JobTerms {
  uint32_t world_size = 0;
  uint32_t max_workers = 0;
  uint32_t min_workers = 0;
  absl::Duration step_timeout;

  friend bool operator==(const JobTerms&, const JobTerms&) = default;
};

// What all jobs of a coordinator share. All of it outlives them.
struct JobSurroundings {
  const CoordinatorOptions& options;
  PlanLog& log;
  // Of this server.
  Jobs& own;
  const Clock& clock;
  Journal& journal;
  // Null: nothing is kept over a crash.
  Store* store = nullptr;
};

// Not thread-safe; the Coordinator that owns it holds the lock. Links are sent to
// in its methods; they only queue.
class CoordinatedJob {
 public:
  // Opens a job at all servers, for its first worker; one that is `restored` has
  // been opened.
  CoordinatedJob(const Introduction& first, Generation generation,
                 const JobSurroundings& surroundings, bool restored = false);

  // Of a job that is restored: what was stored, in order. The job goes on with
  // FinishRestore; `held` is as in Coordinator::Restore.
  void Restore(const MemberAdmitted& admitted);
  void Restore(const MemberWithdrawn& withdrawn);
  void Restore(const MemberReady& ready);
  void Restore(const PlanChange& change);
  void FinishRestore(const std::vector<HeldRounds>& held);

  const std::string& name() const { return name_; }
  bool has_begun() const { return epoch_.number != 0; }
  bool closed() const { return closed_by_ != 0; }
  // Every member has left or was dropped.
  bool AllGone() const;

  // As Coordinator::Admit, of an introduction that CheckIntroduction has passed.
  absl::StatusOr<MemberId> Admit(const Introduction& introduction,
                                 std::shared_ptr<MemberLink> link);

  // What members say. Of one that is not there, or has gone, nothing is heard.
  void Heartbeat(MemberId member, const std::vector<GroupRound>& progress);
  void Register(MemberId member, uint64_t request, const GroupSpec& spec, double link_rate);
  void Refuse(MemberId member, uint64_t request, const absl::Status& error);
  void End(MemberId member, uint64_t request, GroupId group, Round last_round, bool follows);
  void Leave(MemberId member, uint64_t request, std::vector<GroupRound> last_rounds);
  void Ready(MemberId member, uint64_t request, GroupId group);
  void LinkBroken(MemberId member, const MemberLink* link);

  // All servers are there now, some for the first time.
  void ServersComplete();
  // Servers have come, gone, or applied changes: tells members what waited for it,
  // and begins the first epoch if it can begin.
  void TellApplied();
  void TryStart();
  // Contributions to a round of a group with a quorum are complete on a server.
  void Arrived(ServerIndex server, const Arrival& arrival);
  // A chunk on a server waits for norms; they are told if it was the last.
  void Reduced(ServerIndex server, const ReducedChunk& chunk);
  // The server is out of reach, and will say again what waits there.
  void ForgetReduced(ServerIndex server);
  // Fixes the sets of the rounds that can be decided now. To be called often.
  void DecideRounds();
  // A server's answer to the epoch that is proposed; others are ignored.
  void OpenRounds(ServerIndex server, uint64_t sequence, const std::vector<GroupRound>& rounds);

  // As Coordinator::Evict.
  absl::Status Evict(const std::string& token, const std::string& worker,
                     const std::string& reason);

  // As Coordinator::AskForCheckpoint.
  absl::StatusOr<uint32_t> AskForCheckpoint(const std::string& token) const;
  void Checkpointed(MemberId member, const CheckpointReport& report);
  const CheckpointCount& checkpoints() const { return checkpoints_; }

  // Drops members whose lease or grace has ended, and those who are behind or not
  // up to date for too long. If others are left, an epoch without those is on its
  // way.
  void DropLost();

  // Tells everybody who is left, as an error of this code. `last`: no other job is
  // open.
  void Close(const std::string& reason, bool last,
             absl::StatusCode code = absl::StatusCode::kAborted);
  // Whether it is closed and nobody must still hear of that.
  bool CanBeForgotten() const;

 private:
  struct MemberState {
    Member member;
    std::optional<uint32_t> asked_rank;
    std::string host;
    bool shares_memory = false;
    std::shared_ptr<MemberLink> link;
    absl::Time last_heard;
    absl::Time link_broken = absl::InfiniteFuture();
    bool gone = false;
    // It has said so.
    bool ready = false;
    // It came into an epoch as a newcomer, and is not ready yet.
    bool behind = false;
    // Has no more data for the group that its state belongs to.
    bool ended = false;
    // Of that group, as its heartbeats say.
    Round progress{};
    // Since when others have been further; the future if they have not.
    absl::Time behind_since = absl::InfiniteFuture();
    // It has left, and may not have heard that it has.
    bool awaits_farewell = false;
  };
  // For a group that nobody has registered yet.
  struct RegistrationRequest {
    MemberId member{};
    uint64_t request = 0;
    GroupSpec spec;
    double link_rate = 0;
  };

  // Whether payloads of all members and servers go through shared memory.
  bool SharesMemory() const;
  bool is_elastic() const { return terms_.max_workers > 0; }
  uint32_t most_workers() const { return is_elastic() ? terms_.max_workers : terms_.world_size; }
  // ResourceExhausted if there is no place for one more beside `present` others.
  absl::Status CheckRoom(size_t present) const;
  absl::Status CheckBelongs(const Introduction& introduction) const;
  // What a member is called that did not ask for a name.
  std::string NameFor(std::optional<uint32_t> rank, MemberId id) const;
  MemberId Return(MemberState& member, std::shared_ptr<MemberLink> link);
  void Welcome(const MemberState& member);
  std::string WaitingFor() const;
  // Null unless the member is there and has not gone.
  MemberState* Find(MemberId id);
  void Send(const MemberState& member, const JobSignal& signal) const;
  std::string Quoted() const;

  // Stores a change, applies it, and sends it to the other servers. Returns its
  // sequence; `held` gets what applying it returned.
  uint64_t Append(decltype(PlanChange::kind) kind, std::vector<GroupRound>* held = nullptr);
  absl::Status Keep(const Stored& record) const;
  // Of a member that no epoch has had.
  void Withdraw(MemberId id);
  // Whether it is a member that has left and may not have heard that it has.
  bool IsLeaving(const Introduction& introduction) const;
  void TellWhenApplied(uint64_t sequence, MemberId member, JobSignal signal);

  // Drops a member, who may rejoin if `why` is FailedPrecondition. The epoch stays.
  void Drop(MemberState& member, const absl::Status& why);
  // Why a member has to be dropped; OK if it has not.
  absl::Status CheckAlive(MemberState& member, absl::Time now) const;
  void WatchProgress(absl::Time now);
  // After members have gone: begins without them what can begin.
  void GoOnWithout();

  // Begins the change to an epoch without those who have gone, and with newcomers.
  void ProposeEpoch();
  void FinishProposal();
  // The members of the epoch that is proposed, as they are ranked.
  std::vector<const MemberState*> Next() const;
  // Who brings up to date those of `members` who need it. False if nobody can.
  bool PlanHandover(const std::vector<const MemberState*>& members,
                    const std::vector<GroupRound>& first_rounds, Handover& handover);
  void BeginEpochOf(const std::vector<const MemberState*>& members,
                    std::vector<GroupRound> first_rounds, Handover handover);
  void BeginEpoch(Epoch epoch);
  void SetEpoch(Epoch epoch);
  // Members who have not gone, as they are ranked.
  std::vector<const MemberState*> Ranked() const;
  bool IsNewcomer(const MemberState& member) const { return !epoch_.Has(member.member.id); }
  // Why no newcomer can enter the next epoch, in words; empty if they can.
  std::string WhyNoNewcomers() const;
  // Brings newcomers in, or tells them what they wait for.
  void TryGrow();
  // The members that the next epoch needs, in words, if there are too few.
  std::string WhatIsMissing(size_t members) const;
  // From now on the group's rounds are decided, if its policy is a quorum, and its
  // norms put together, if it needs any.
  void BeginTally(const std::shared_ptr<const GroupPlan>& plan);
  // Decides the group's next round, if it can be.
  bool DecideRound(GroupId group, QuorumTally& tally);
  // A step that is decided belongs to the members that it was decided among, though a
  // server that has died knows of none who has contributed to it.
  void PassDecided(std::vector<GroupRound>& first_rounds) const;
  // Whether the group that states belong to has come to its end.
  bool IsOver() const;

  // Bytes that the server may still take, if that is known.
  std::optional<uint64_t> Available(ServerIndex server) const;

  const JobSurroundings with_;
  const std::string name_;
  const std::string token_;
  const Generation generation_;
  const JobTerms terms_;
  uint32_t next_member_ = 0;
  std::map<MemberId, MemberState> members_;
  // Empty until all members are there.
  Epoch epoch_;
  // Before it, oldest first: as many as a member may have missed.
  std::deque<Epoch> earlier_epochs_;
  // The first rounds of the newcomers in it, and when they came.
  std::vector<GroupRound> newcomers_first_rounds_;
  absl::Time newcomers_since_;
  // What the next epoch waits for, if it has been said.
  std::string held_for_;
  // That members' states belong to; as the first to be ready said.
  std::optional<GroupId> state_group_;
  uint64_t epoch_sequence_ = 0;
  bool epoch_told_ = false;
  std::optional<EpochProposal> proposal_;
  GroupRegistry groups_;
  std::map<GroupId, QuorumTally> tallies_;
  std::map<GroupId, NormTally> norm_tallies_;
  // What came while an epoch was proposed: a new group begins in the next.
  std::vector<RegistrationRequest> postponed_;
  Announcements announcements_;
  CheckpointCount checkpoints_;
  // The change that closed it; 0 while it is open.
  uint64_t closed_by_ = 0;
  absl::Time closed_at_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATED_JOB_H_
