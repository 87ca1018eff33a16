// One training run on one server: its groups (ServedGroup), its members (Roster), and their
// connections (PresenceTable).
//
// Jobs creates a Job when the plan opens it. Streams and closures share it.
//
// Threads:
// - The plan thread (see jobs.h) applies changes: AddGroup, AddEpoch, End, Remove, FixQuorum,
//   SetNorms, Hold, EndStreams, RemoveState. It also calls ExplainDrop. MakeResults is called
//   there, or on GroupMemory's thread.
// - gRPC threads that read data streams call Admit and Push.
// - The threads that exchange shared memory with workers call Admit and ShareResults.
// - gRPC threads of the admin service, and threads that answer HTTP, call Explain, Progress, epoch
//   and HoldRound.
// - One thread that looks for stalls calls Stalled.
// - The server's ticker calls alerts and FirstClosed; and NewestArrivals and Reduced, when it opens
//   a stream to the coordinator.
// - On server 0, the coordinator calls RecordMessage, without its lock, and NewestOpenRound, with
//   its lock held. So does its store with oldest_epoch; on other servers, the plan thread does.
//
// Lock order: `change_mutex_`, then the coordinator's lock (on server 0), then `mutex_`, the lock
// of PresenceTable or a chunk's lock. Of these three, no two are held together.
// - `change_mutex_` is held for a whole change. Meanwhile chunks may be constructed or visited,
//   small rounds that this completes are closed, answers are sent, and sinks of ToCoordinator may
//   be called.
// - `mutex_` is held only to read or replace members.

#ifndef SYNCGRADS_SERVER_CORE_JOBS_JOB_H_
#define SYNCGRADS_SERVER_CORE_JOBS_JOB_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/group/group.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/secret.h"
#include "common/shm/region.h"
#include "common/signals/membership.h"
#include "common/signals/round_wait.h"
#include "common/wire/frame.h"
#include "server/core/closing/closers.h"
#include "server/core/closing/payload.h"
#include "server/core/jobs/group_results.h"
#include "server/core/jobs/paced.h"
#include "server/core/jobs/presence.h"
#include "server/core/jobs/presence_table.h"
#include "server/core/jobs/served_group.h"
#include "server/core/jobs/to_coordinator.h"
#include "server/core/plan/current_roster.h"
#include "server/core/plan/plan_change.h"
#include "server/core/plan/roster.h"
#include "server/core/plan/step_norms.h"
#include "server/core/rounds/arrivals.h"
#include "server/core/rounds/gradient_alerts.h"
#include "server/core/rounds/round_result.h"
#include "server/state/state_directory.h"

namespace syncgrads::server {

// What a data stream of a member needs.
enum class StreamCredential : uint8_t {
  kSecretOrToken,  // the member's secret; of a member that has none: the job's token
  kSecret,         // the member's secret. Tokens are not compared.
};

// Thread-safe.
class Job {
 public:
  // `clock`, `closers`, `state` and `to_coordinator` must outlive this object and the closures that
  // it has given to `closers`. The last three may be null.
  //
  // `closers` close large rounds; null: the thread that brings the last contribution does. Closed
  // rounds are stored in `state`; null: they are lost in a crash. `to_coordinator` receives what
  // the coordinator needs to know.
  //
  // `token` is that of JobOpened.
  Job(std::string name, std::string token, Generation generation, ServerIndex self,
      const Clock& clock, Closers* closers = nullptr, const StateDirectory* state = nullptr,
      const ToCoordinator* to_coordinator = nullptr);

  const std::string& name() const { return name_; }
  // Whether this is the job's token.
  bool HasToken(absl::string_view token) const { return MatchesHash(token_, token); }
  Generation generation() const { return generation_; }

  // Allocates the memory of a group's results on this server. `key` names it; `progress` may be
  // null. If this fails, give the error to AddGroup.
  //
  // Errors:
  //   ResourceExhausted, Unavailable  see MakeGroupResults
  absl::StatusOr<GroupResults> MakeResults(const GroupPlan& plan, uint64_t key,
                                           const AllocationProgress& progress = nullptr) const;
  // Opens the results that a previous process of this server has left. The job has a state
  // directory.
  //
  // Errors:
  //   NotFound, DataLoss, Unavailable  see OpenGroupResults
  absl::StatusOr<GroupResults> OpenResults(const GroupPlan& plan, uint64_t key) const;
  // The number of bytes that MakeResults needs.
  uint64_t BytesToAllocate(const GroupPlan& plan) const;
  // Adds a registered group, with its chunks on this server. `sequence` is the key of its results.
  // If `results` is an error, every push to the group is answered with it.
  void AddGroup(std::shared_ptr<const GroupPlan> plan, uint64_t sequence = 0) {
    AddGroup(plan, sequence, MakeResults(*plan, sequence));
  }
  void AddGroup(std::shared_ptr<const GroupPlan> plan, uint64_t sequence,
                absl::StatusOr<GroupResults> results);
  // Deletes the job's files. Call it when the job is closed or dropped.
  void RemoveState() const;
  // The paths of the files in which the job's results are stored.
  std::vector<std::string> StatePaths() const;
  // Begins an epoch, and ends Hold. The epoch's first rounds are no earlier than the rounds that
  // Hold returned.
  void AddEpoch(const Epoch& epoch);
  // End, Remove, FixQuorum and SetNorms apply a change of the plan, and close the rounds that it
  // completes. Remove also cuts the data streams of a member that was dropped.
  void End(const MemberEnded& ended);
  void Remove(const MemberGone& gone);
  void FixQuorum(const QuorumSet& set);
  void SetNorms(const StepNorms& norms);
  // Freezes all rounds without a contribution on this server until AddEpoch. Returns the first
  // frozen round of each group. `held_for` is the reason that waiting workers are shown; empty if
  // the wait is expected to be short.
  std::vector<GroupRound> Hold(const std::string& held_for = "");

  // Whether a member with this number is known here, and this is its secret.
  bool IsSecretOf(MemberId member, absl::string_view secret) const;
  // Admits a data stream of a member. The streams of a member that is dropped are cut.
  //
  // Errors:
  //   PermissionDenied    the member has a secret, and this is another one; or it has none, and
  //                       `credential` demands one; or neither the secret is the member's nor the
  //                       token the job's, unless tokens are not compared
  //   Unavailable         the member is in no epoch here yet: retry
  //   FailedPrecondition  another incarnation, or the member was dropped: rejoin
  //   Aborted             the member was evicted
  absl::StatusOr<std::shared_ptr<Presence>> Admit(
      const DataHello& hello, StreamCredential credential = StreamCredential::kSecretOrToken);
  // Ends the data streams of all members. Call it when the job is closed or dropped.
  void EndStreams(const absl::Status& reason);
  // Records the time of a message from a member, other than a push; for example a heartbeat.
  void RecordMessage(MemberId member, absl::Time now);

  // Seats a push, or refuses it. The answer is sent at once, or when the round has closed.
  void Push(const PushHeader& header, Payload payload, std::shared_ptr<AnswerSink> sink);

  // Returns a descriptor of a group's results, for a worker on this host to map read-only.
  //
  // Errors:
  //   NotFound     there is no such group, or its results are not shared
  //   Unavailable  the descriptor cannot be opened
  absl::StatusOr<FileDescriptor> ShareResults(GroupId group) const;

  // Returns the results of a round of all chunks on this server. Their slots are not written again
  // while the results are held.
  //
  // Errors:
  //   NotFound            there is no such group
  //   FailedPrecondition  another generation; or a chunk does not keep the round, or has not
  //                       closed it: the message names the round and the open one
  absl::StatusOr<std::vector<std::shared_ptr<const RoundResult>>> HoldRound(Generation generation,
                                                                            GroupId group,
                                                                            Round round) const;

  // The open rounds that pushes wait for, of one group or of all groups; within a group, oldest
  // first. ExplainBudget limits their number and the cost.
  std::vector<RoundWait> Explain(std::optional<GroupId> group) const;
  // What Explain returns for all groups, or has returned shortly before: if many members are
  // dropped one after the other, looking the rounds up takes at most a tenth of the time.
  std::shared_ptr<const std::vector<RoundWait>> ExplainDrop();
  // The open rounds that have waited for `threshold` or longer; as many as Explain. Chunks of
  // groups without a waiting push add nothing to the cost. One caller at a time.
  std::vector<RoundWait> Stalled(absl::Duration threshold) const;

  // The most bytes that the results of one round of all groups take while they wait to be sent to
  // one member.
  size_t result_bytes() const { return result_bytes_.load(std::memory_order_relaxed); }

  // Warnings about the gradients of this job.
  GradientAlerts& alerts() const { return *alerts_; }

  // For every group with a quorum and every member, the newest arrival on this server; see
  // Arrivals::Newest.
  std::vector<Arrival> NewestArrivals() const;
  // The chunks whose open rounds wait for norms.
  std::vector<ReducedChunk> Reduced() const;

  std::optional<Epoch> epoch() const;
  // The number of the oldest epoch that an open round may need; 0 before the first epoch.
  uint64_t oldest_epoch() const { return roster()->oldest_epoch(); }
  std::vector<GroupProgress> Progress() const;
  // The time at which the first round of any group has closed since this server started;
  // InfiniteFuture if none has.
  absl::Time FirstClosed() const;
  // Whether this round of a group has closed; see ServedGroup::HasClosed.
  bool HasClosed(Round round) const;
  // The most bytes that the job takes on this server; see ServedGroup::MemoryBytes.
  uint64_t MemoryBytes() const;
  // The newest open round of the group's chunks on this server; nullopt if there are none.
  std::optional<Round> NewestOpenRound(GroupId group) const;

 private:
  size_t MemberCount() const;
  void CountResultBytes();
  std::vector<RoundWait> ExplainWithin(ExplainBudget& budget, std::optional<GroupId> group) const;
  std::shared_ptr<ServedGroup> FindGroup(GroupId id) const;
  std::vector<std::shared_ptr<ServedGroup>> Groups() const;
  std::shared_ptr<const Roster> roster() const { return roster_->Get().roster; }
  // Passes a push to its group. If this returns an error, `sink` has not been called.
  //
  // Errors:
  //   FailedPrecondition  another generation
  //   InvalidArgument     there is no such group
  //   others              see ServedGroup::Push
  absl::Status Seat(const PushHeader& header, Payload payload,
                    const std::shared_ptr<AnswerSink>& sink) const;
  // Applies `change` to a copy of the roster, and replaces the roster with the copy.
  template <typename Change>
  void ChangeRoster(Change change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mutex_);
  // For each group, the oldest round whose epoch a chunk or the coordinator may still need.
  std::vector<GroupRound> OldestNeededRounds() const;

  const std::string name_;
  const std::string token_;
  const Generation generation_;
  const ServerIndex self_;
  const Clock& clock_;
  Closers* const closers_;
  const StateDirectory* const state_;
  const std::shared_ptr<GradientAlerts> alerts_ = std::make_shared<GradientAlerts>();
  const ToCoordinator* const to_coordinator_;
  std::atomic<size_t> result_bytes_{0};

  PresenceTable presences_;
  // Changed with `change_mutex_` held. Groups share it, and may outlive the job.
  const std::shared_ptr<CurrentRoster> roster_ =
      std::make_shared<CurrentRoster>(std::make_shared<Roster>());

  // What ExplainDrop returns.
  Paced<std::vector<RoundWait>> explained_drop_;

  mutable Mutex mutex_;
  // Held during a whole change of the roster, so that all groups receive changes in the same order.
  Mutex change_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  std::string held_for_ ABSL_GUARDED_BY(mutex_);
  std::map<GroupId, std::shared_ptr<ServedGroup>> groups_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_JOBS_JOB_H_
