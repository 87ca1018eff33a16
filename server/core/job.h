// One training run on one server: its groups' chunks, and who takes part.

#ifndef SYNCGRADS_SERVER_CORE_JOB_H_
#define SYNCGRADS_SERVER_CORE_JOB_H_

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/group.h"
#include "common/mutex.h"
#include "common/shm/region.h"
#include "common/wire/frame.h"
#include "server/core/arrivals.h"
#include "server/core/closers.h"
#include "server/core/gradient_alerts.h"
#include "server/core/group_results.h"
#include "server/core/plan_change.h"
#include "server/core/roster.h"
#include "server/core/round_wait.h"
#include "server/core/served_chunk.h"
#include "server/state/state_directory.h"

namespace syncgrads::server {

// When a member was last heard of here. Shared by its streams.
class Presence {
 public:
  void Heard(absl::Time now) {
    last_heard_.store(absl::ToUnixNanos(now), std::memory_order_relaxed);
  }
  absl::Time last_heard() const {
    return absl::FromUnixNanos(last_heard_.load(std::memory_order_relaxed));
  }

 private:
  std::atomic<int64_t> last_heard_{0};
};

// What a server has to tell its coordinator of contributions: who has arrived at
// rounds with a quorum, and parts of norms. Sinks are called without locks of the job,
// but perhaps in the coordinator's own methods: they must not call it.
struct ToCoordinator {
  ArrivalRelay arrivals;
  ReducedRelay reduced;
};

struct GroupProgress {
  GroupId group{};
  std::string name;
  uint32_t chunks = 0;  // on this server
  Round open{};         // all earlier rounds have closed on all of them
  // Contributions that came too late to count, of the chunk that has most of them.
  uint64_t late_contributions = 0;
};

// Thread-safe.
class Job {
 public:
  // `clock` must outlive this object. `closers` close large rounds; null: the
  // thread that brings the last contribution does. It must outlive the pushes.
  // Closed rounds are kept over a crash in `state`, which must outlive this object;
  // null: they are not. What the coordinator must know is told to `to_coordinator`,
  // which must outlive it too, and may be null.
  Job(std::string name, std::string token, Generation generation, ServerIndex self,
      const Clock& clock, Closers* closers = nullptr, const StateDirectory* state = nullptr,
      const ToCoordinator* to_coordinator = nullptr);

  const std::string& name() const { return name_; }
  const std::string& token() const { return token_; }
  Generation generation() const { return generation_; }

  // Makes room for a group's results: those that pushes to it will close, for a
  // group that change `sequence` has registered. Without room, every push to the
  // group is answered with the error.
  absl::StatusOr<GroupResults> MakeResults(const GroupPlan& plan, uint64_t sequence) const;
  // The same of what a server that died has left.
  absl::StatusOr<GroupResults> OpenResults(const GroupPlan& plan, uint64_t sequence) const;
  void AddGroup(std::shared_ptr<const GroupPlan> plan, uint64_t sequence = 0) {
    AddGroup(plan, sequence, MakeResults(*plan, sequence));
  }
  void AddGroup(std::shared_ptr<const GroupPlan> plan, uint64_t sequence,
                absl::StatusOr<GroupResults> results);
  // Deletes what is kept of the job, which is over.
  void RemoveState() const;
  // The files that the job's results are kept in.
  std::vector<std::string> StatePaths() const;
  // The first rounds of `epoch` are no earlier than what Hold returned.
  void AddEpoch(const Epoch& epoch);
  void End(const MemberEnded& ended);
  void Remove(const MemberGone& gone);
  void FixQuorum(const QuorumSet& set);
  void SetNorms(const StepNorms& norms);
  // Closes no round that nobody here has contributed to, until the next epoch.
  // Returns the oldest such round of each group. `held_for` is what the job waits
  // for, if it is more than a moment.
  std::vector<GroupRound> Hold(const std::string& held_for = "");

  // Whether a data stream may speak for this member. Unavailable while no epoch
  // here has it: the news may be on the way.
  absl::StatusOr<std::shared_ptr<Presence>> Admit(const DataHello& hello);
  // When a member was last heard of by other means than its pushes.
  void Heard(MemberId member, absl::Time now);

  // Takes a push, and answers it now or when its round has closed.
  void Push(const PushHeader& header, Payload payload, std::shared_ptr<AnswerSink> sink);

  // A descriptor of a group's results, for a worker on this host to map.
  //
  // Errors:
  //   NotFound  there is no such group, or its results are not shared
  absl::StatusOr<FileDescriptor> ShareResults(GroupId group) const;

  // The results of a round of all chunks that are here. What they lie in is not
  // written again while they are held.
  //
  // Errors:
  //   NotFound            there is no such group
  //   FailedPrecondition  another generation, or a chunk's round is not kept, or
  //                       not closed: names it and what is open
  absl::StatusOr<std::vector<std::shared_ptr<const RoundResult>>> HoldRound(Generation generation,
                                                                            GroupId group,
                                                                            Round round) const;

  // The open rounds that somebody waits for, of one group or all; oldest first
  // within a group.
  std::vector<RoundWait> Explain(std::optional<GroupId> group) const;

  // What was wrong with gradients.
  GradientAlerts& alerts() const { return *alerts_; }

  // Who has arrived at the newest round that is known of them here, of all groups with
  // a quorum.
  std::vector<Arrival> NewestArrivals() const;
  // The chunks whose open rounds wait for norms.
  std::vector<ReducedChunk> Reduced() const;

  std::shared_ptr<const Roster> roster() const;
  std::optional<Epoch> epoch() const;
  std::vector<GroupProgress> Progress() const;

 private:
  struct Group {
    std::shared_ptr<const GroupPlan> plan;
    // The change that registered it.
    uint64_t sequence = 0;
    absl::StatusOr<GroupResults> results;
    // Null unless the policy is a quorum. Outlives the chunks.
    std::unique_ptr<Arrivals> arrivals;
    // Null for chunks of other servers, and for all if there are no results.
    std::vector<std::unique_ptr<ServedChunk>> chunks;
  };

  size_t MemberCount() const;
  std::unique_ptr<ServedChunk> MakeChunk(const Group& group, ChunkId chunk, size_t position) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<const Group> FindGroup(GroupId id) const;
  std::vector<std::shared_ptr<const Group>> Groups() const;
  // The chunk that a push is for, or why there is none.
  absl::StatusOr<std::shared_ptr<ServedChunk>> Route(const PushHeader& header,
                                                     const Payload& payload) const;
  // Changes the roster and shows it to every chunk.
  template <typename Change>
  void ChangeRoster(Change change);
  std::shared_ptr<Presence> PresenceOf(MemberId member);
  // Closes a round that is large on another thread.
  void Close(const std::shared_ptr<const Group>& group, ServedChunk& chunk) const;

  const std::string name_;
  const std::string token_;
  const Generation generation_;
  const ServerIndex self_;
  const Clock& clock_;
  Closers* const closers_;
  const StateDirectory* const state_;
  const std::shared_ptr<GradientAlerts> alerts_ = std::make_shared<GradientAlerts>();
  const ToCoordinator* const to_coordinator_;

  mutable Mutex mutex_;
  // Held over a whole change, so that chunks see changes in order.
  Mutex change_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  std::shared_ptr<const Roster> roster_ ABSL_GUARDED_BY(mutex_);
  std::string held_for_ ABSL_GUARDED_BY(mutex_);
  std::map<GroupId, std::shared_ptr<const Group>> groups_ ABSL_GUARDED_BY(mutex_);
  std::map<MemberId, std::shared_ptr<Presence>> presence_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_JOB_H_
