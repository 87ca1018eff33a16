// One registered group on one server: its results, and its chunks that are here.

#ifndef SYNCGRADS_SERVER_CORE_JOBS_SERVED_GROUP_H_
#define SYNCGRADS_SERVER_CORE_JOBS_SERVED_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/group/group.h"
#include "common/ids.h"
#include "common/signals/round_wait.h"
#include "common/wire/frame.h"
#include "server/core/closing/closers.h"
#include "server/core/closing/payload.h"
#include "server/core/jobs/group_results.h"
#include "server/core/jobs/paced.h"
#include "server/core/jobs/presence_table.h"
#include "server/core/jobs/roster_pass.h"
#include "server/core/jobs/round_waits.h"
#include "server/core/jobs/to_coordinator.h"
#include "server/core/plan/current_roster.h"
#include "server/core/plan/plan_change.h"
#include "server/core/plan/roster.h"
#include "server/core/plan/step_norms.h"
#include "server/core/rounds/arrivals.h"
#include "server/core/rounds/gradient_alerts.h"
#include "server/core/rounds/group_counts.h"
#include "server/core/rounds/group_waits.h"
#include "server/core/rounds/round_result.h"
#include "server/core/rounds/served_chunk.h"
#include "server/state/slot_source.h"

namespace syncgrads::server {

// The state of a group on one server, for status reports.
struct GroupProgress {
  GroupId group{};
  std::string name;
  uint32_t chunks = 0;  // on this server
  Round open{};         // all earlier rounds have closed on all these chunks
  // The number of late contributions to the chunk that has the most of them.
  uint64_t late_contributions = 0;
  // The chunks in which a round has contributions, and is neither closed nor being closed.
  uint32_t open_chunks = 0;
  // How long the oldest of these rounds has been open; zero if there is none.
  absl::Duration oldest_open = absl::ZeroDuration();
  // The number of rounds that have closed, summed over chunks.
  uint64_t rounds_closed = 0;
  // The time since a round has closed; zero if none has.
  absl::Duration since_last_round = absl::ZeroDuration();
  // The time from a round's first contribution until it closed, for rounds of the first chunk.
  DurationCounts round_duration;
  // The rounds of the first chunk that close in a second; see RoundRate. With bounded staleness and
  // async: the contributions in a second of one member, as a mean over those that have contributed.
  double rounds_per_second = 0;
  std::vector<ContributorCounts> contributors;
};

// Always owned by a shared_ptr. A Job makes it, and shares it with the closures that close its
// large rounds: it may outlive the Job.
//
// Its members, but for `pass_` and `chunks_progress_`, are not changed after construction; chunks,
// arrivals and waits have their own locks, and it takes no lock itself. Thread-safe. The Job calls
// it without its `mutex_`. The thread that applies changes (see job.h) constructs it and calls
// TakeRoster, EndHold and ForgetUnless, all with the job's `change_mutex_` held, and Fix, SetNorms
// and Hold. These methods and Push close the rounds that they complete: answers are sent, and sinks
// of ToCoordinator may be called.
class ServedGroup : public std::enable_shared_from_this<ServedGroup> {
 public:
  // What the groups of one job have in common. `clock`, `closers` and `to_coordinator` must outlive
  // the group; the last two may be null (see Job).
  struct Dependencies {
    std::string job;
    Generation generation{};
    ServerIndex self{};
    const Clock& clock;
    Closers* closers = nullptr;
    const ToCoordinator* to_coordinator = nullptr;
    std::shared_ptr<GradientAlerts> alerts;
  };

  // `results_key` is the key of the results, which names their file. If `results` is an error, the
  // group has no chunks, and every push to it is answered with the error. `roster` is the job's.
  ServedGroup(const Dependencies& dependencies, std::shared_ptr<const GroupPlan> plan,
              uint64_t results_key, absl::StatusOr<GroupResults> results,
              std::shared_ptr<const CurrentRoster> roster);

  const GroupPlan& plan() const { return *plan_; }
  uint64_t results_key() const { return results_key_; }
  // The memory of the results, for workers on this host to map; null if it is not shared.
  std::shared_ptr<SlotSource> shared_results() const;
  // The most bytes that the results of one round take while they wait to be sent to one of
  // `members` members.
  size_t UnreadBytes(size_t members) const;

  // Seats a push. The answer is sent at once, or when the round has closed. If this returns an
  // error, `sink` has not been called.
  //
  // Errors:
  //   InvalidArgument  there is no such chunk here; or see CheckPush
  //   others           the error of the group's results
  absl::Status Push(const PushHeader& header, Payload payload,
                    const std::shared_ptr<AnswerSink>& sink);

  // The job's roster has been changed, and this may complete open rounds, or exclude their pushes.
  // This is checked on a thread of the closers, so that the caller does not wait for the chunks.
  // Pushes from now on are seated by the newest roster in any case.
  void TakeRoster();
  // Each passes a change of the plan to the chunks.
  void Fix(const QuorumSet& set);
  void SetNorms(const StepNorms& norms);
  // Freezes all rounds without a contribution on this server until EndHold. Returns the first
  // frozen round.
  Round Hold();
  // Also passes the newest roster to all chunks.
  void EndHold();
  // Removes what is kept of members that are not in `roster`.
  void ForgetUnless(const Roster& roster);

  // Returns the results of a round of all chunks. Their slots are not written again while the
  // results are held.
  //
  // Errors:
  //   FailedPrecondition  a chunk does not keep the round, or has not closed it: the message names
  //                       the round and the open one
  absl::StatusOr<std::vector<std::shared_ptr<const RoundResult>>> HoldRound(Round round) const;

  // The open rounds that pushes wait for, oldest first; see ExplainRounds.
  std::vector<RoundWait> Explain(const Roster& roster, const PresenceTable& presences,
                                 absl::string_view held_for, absl::Time now,
                                 ExplainBudget& budget) const;
  // The time at which the oldest waiting push began to wait; nullopt if none waits. Does not look
  // at the chunks if no push has begun to wait since it found none. One caller at a time.
  std::optional<absl::Time> OldestWait();

  // See Arrivals::Newest. Empty unless the policy is a quorum.
  std::vector<Arrival> NewestArrivals() const;
  // The chunks whose open rounds wait for norms.
  std::vector<ReducedChunk> Reduced() const;
  // With the policy Sync, or a quorum, takes no chunk's lock. Of a group with very many chunks,
  // what it returns of the chunks may be a few seconds old, so that looking at them takes at most a
  // tenth of the time.
  GroupProgress Progress() const;
  // The most bytes that the group takes on this server with `members` members: its results, and one
  // contribution of each member to each chunk.
  uint64_t MemoryBytes(size_t members) const;
  // The time at which the first round of any chunk has closed since this server started;
  // InfiniteFuture if none has.
  absl::Time first_closed() const { return counts_.first_closed(); }
  // Whether this round of the first chunk on this server has closed. False if there are no chunks.
  bool HasClosed(Round round) const;
  // The newest open round of the chunks; nullopt if there are none.
  std::optional<Round> NewestOpenRound() const;
  // The oldest round whose epoch a chunk or the coordinator may still need; nullopt if there is
  // none.
  std::optional<Round> OldestNeededRound() const;

 private:
  std::unique_ptr<ServedChunk> MakeChunk(ChunkId chunk, size_t position) const;
  // Returns the chunk that a push is for. Errors: see Push.
  absl::StatusOr<ServedChunk*> Route(const PushHeader& header, const Payload& payload) const;
  // What all chunks on this server have done together.
  struct ChunksProgress {
    uint32_t chunks = 0;
    Round open{~uint64_t{0}};
    uint64_t late_contributions = 0;
    uint32_t open_chunks = 0;
    // The time at which the oldest open round began.
    absl::Time oldest_since = absl::InfiniteFuture();
  };
  ChunksProgress LookAtChunks() const;
  // Does the work that a function of the chunk has left; on a thread of the closers if it is much.
  void Finish(ServedChunk& chunk, CloseWork work);
  // Passes the roster to the chunks from index `first` on, on a thread of the closers.
  void PassRoster(size_t first);

  const Dependencies dependencies_;
  const std::shared_ptr<const GroupPlan> plan_;
  const uint64_t results_key_;
  const absl::StatusOr<GroupResults> results_;
  // Outlives the chunks, which read it.
  const std::shared_ptr<const CurrentRoster> roster_;
  RosterPass pass_;
  // The memory that was allocated for the results, and the size of the chunks that are here.
  uint64_t bytes_of_results_ = 0;
  uint64_t bytes_of_chunks_ = 0;
  // Null unless the policy is a quorum. Outlives the chunks, which report to it.
  std::unique_ptr<Arrivals> arrivals_;
  // Outlives the chunks, which report to it.
  GroupWaits waits_;
  GroupCounts counts_;
  // Used if there are very many chunks.
  mutable Paced<ChunksProgress> chunks_progress_;
  // Indexed by chunk. Null for the chunks of other servers; all are null if `results_` is an error.
  std::vector<std::unique_ptr<ServedChunk>> chunks_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_JOBS_SERVED_GROUP_H_
