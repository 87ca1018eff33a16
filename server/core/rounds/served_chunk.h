// One chunk on its server, whatever its group's policy. It receives pushes and answers each exactly
// once.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_SERVED_CHUNK_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_SERVED_CHUNK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/wire/frame.h"
#include "server/core/closing/payload.h"
#include "server/core/plan/roster.h"
#include "server/core/plan/step_norms.h"
#include "server/core/rounds/group_counts.h"
#include "server/core/rounds/group_waits.h"
#include "server/core/rounds/round_result.h"

namespace syncgrads::server {

// An open round, or a clock, that a push waits for.
struct ChunkWait {
  Round round{};
  // The time of the first contribution.
  absl::Time since;
  std::vector<MemberId> missing;
  // True: no member is missing. The round waits for norms, which need the contributions to all
  // chunks.
  bool reduced = false;
};

// What a change of a chunk leaves to its caller. A call of Close may leave another one: while it
// computed a result, pushes may have arrived that complete the next round.
enum class CloseWork {
  kNone,    // nothing
  kLittle,  // a call of Close, on any thread
  kMuch,    // a call of Close that takes longer than waking another thread for it
};

// A ServedGroup owns its chunks. ChunkRounds and ChunkVersions, which implement this interface,
// describe threads and locks.
//
// Thread-safe. No function but Close waits for the arithmetic of a result: while another thread
// computes one, a push is queued, and the thread seats it afterwards.
class ServedChunk {
 public:
  virtual ~ServedChunk() = default;

  // Seats a contribution, or answers it at once; closes the round if it is complete. The header has
  // passed CheckPush.
  void Push(const PushHeader& header, Payload payload, std::shared_ptr<AnswerSink> sink) {
    Finish(Seat(header, std::move(payload), std::move(sink)));
  }
  // Seats a contribution, answers it at once, or queues it. The header has passed CheckPush.
  [[nodiscard]] virtual CloseWork Seat(const PushHeader& header, Payload payload,
                                       std::shared_ptr<AnswerSink> sink) = 0;
  // Closes the open round if it is complete, and no other thread is closing it; otherwise does
  // nothing.
  [[nodiscard]] virtual CloseWork Close() = 0;
  // Does the work that another function has left, on this thread.
  void Finish(CloseWork work) {
    while (work != CloseWork::kNone) work = Close();
  }

  // The coordinator has fixed whose contributions to a round count.
  [[nodiscard]] virtual CloseWork Fix(Round, const std::vector<MemberId>&) {
    return CloseWork::kNone;
  }
  // The coordinator has sent the norms that a round closes with.
  [[nodiscard]] virtual CloseWork SetNorms(const StepNorms&) { return CloseWork::kNone; }
  // What was reported to the coordinator about the open round, without the job's name; nullopt if
  // the round does not wait for norms.
  virtual std::optional<ReducedChunk> Reduced() const { return std::nullopt; }
  // The job's roster has changed: takes it over, and refuses the pushes that it excludes. It is
  // only needed if HasPushes() returns true. The other functions take over the newest roster
  // themselves, before anything else; Close does so again once a result has been computed.
  [[nodiscard]] virtual CloseWork TakeRoster() = 0;
  // Returns false if no push waits and no round is reduced. Then a change of the roster neither
  // completes nor refuses anything. Takes no lock. If a push is seated by an earlier roster than
  // the newest one, HasPushes() has returned true since before that roster was replaced.
  bool HasPushes() const { return has_pushes_.load(std::memory_order_relaxed); }

  // Freezes the rounds without a contribution: until EndHold, none of them is closed. Returns the
  // oldest of them.
  virtual Round Hold() = 0;
  // Ends Hold, and takes over the newest roster.
  [[nodiscard]] virtual CloseWork EndHold() = 0;

  // What the oldest waiting push waits for; nullopt if no push waits.
  virtual std::optional<ChunkWait> Explain() const = 0;
  // Explain without `missing`. Looks at the pushes that wait, and at no other member.
  virtual std::optional<ChunkWait> ExplainBriefly() const = 0;
  // The time at which the oldest waiting push began to wait; InfiniteFuture if none waits. Takes no
  // lock. ChunkRounds also returns InfiniteFuture while it computes a result.
  absl::Time waiting_since() const {
    const int64_t since = waiting_since_.load(std::memory_order_relaxed);
    return since == kNobodyWaits ? absl::InfiniteFuture() : absl::FromUnixNanos(since);
  }
  // Reports every wait that begins to `waits`, which must outlive this object. Call it before the
  // first push, or not at all.
  void ReportWaits(GroupWaits* waits) { waits_ = waits; }
  // Counts rounds and contributions in `counts`, which must outlive this object. `is_first`: see
  // ChunkCounter. Call it before the first push, or not at all.
  void CountIn(GroupCounts* counts, bool is_first) { counter_.ReportTo(counts, is_first); }
  // Sets the job's number in recorded events; see TraceJob. Call it before the first push, or not
  // at all.
  void TraceAs(uint32_t job) { trace_job_ = job; }
  // The result of a closed round; null if it is not kept. The result's slot is not written again
  // while the result is held.
  virtual std::shared_ptr<const RoundResult> Kept(Round) const { return nullptr; }
  // All rounds before this one have closed.
  virtual Round open_round() const = 0;
  // The number of contributions that arrived too late to count. Takes no lock.
  virtual uint64_t late_contributions() const { return 0; }
  virtual size_t result_bytes() const = 0;

 protected:
  // Sets what waiting_since() returns. The caller holds the chunk's lock.
  void SetWaitingSince(absl::Time since) {
    const int64_t nanos = since == absl::InfiniteFuture() ? kNobodyWaits : absl::ToUnixNanos(since);
    if (nanos == waiting_since_.load(std::memory_order_relaxed)) return;
    waiting_since_.store(nanos, std::memory_order_relaxed);
    if (nanos != kNobodyWaits && waits_ != nullptr) waits_->Begun();
  }

  // Sets what HasPushes() returns. The caller holds the chunk's lock. A function that may seat a
  // push sets it to true before it reads the roster.
  void SetHasPushes(bool has_pushes) { has_pushes_.store(has_pushes, std::memory_order_relaxed); }

  // The work of a Close with this number of contributions.
  CloseWork WorkOf(size_t contributions) const;

  // The caller holds the chunk's lock.
  ChunkCounter& counter() { return counter_; }
  uint32_t trace_job() const { return trace_job_; }

 private:
  static constexpr int64_t kNobodyWaits = std::numeric_limits<int64_t>::max();

  std::atomic<int64_t> waiting_since_{kNobodyWaits};
  std::atomic<bool> has_pushes_{false};
  GroupWaits* waits_ = nullptr;
  ChunkCounter counter_;
  uint32_t trace_job_ = 0;
};

// Checks that the sender of a push is a member of the job.
//
// Errors:
//   FailedPrecondition  the sender is in no epoch, was dropped, has left, or has another
//                       incarnation
//   Aborted             the sender was evicted
absl::Status CheckSender(const Roster& roster, GroupId group, const PushHeader& header);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_SERVED_CHUNK_H_
