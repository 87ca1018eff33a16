// One chunk as its server keeps it, whatever its group's policy: it takes pushes, and
// answers each exactly once.

#ifndef SYNCGRADS_SERVER_CORE_SERVED_CHUNK_H_
#define SYNCGRADS_SERVER_CORE_SERVED_CHUNK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/wire/frame.h"
#include "server/core/payload.h"
#include "server/core/roster.h"
#include "server/core/round_result.h"
#include "server/core/step_norms.h"

namespace syncgrads::server {

// An open round that somebody waits for.
struct ChunkWait {
  Round round{};
  // When the first contribution came.
  absl::Time since;
  std::vector<MemberId> missing;
  // Nobody is missing: norms are, for which all chunks' contributions must be complete.
  bool reduced = false;
};

// Thread-safe.
class ServedChunk {
 public:
  virtual ~ServedChunk() = default;

  // Takes a contribution, or answers it. The header has passed CheckPush.
  void Push(const PushHeader& header, Payload payload, std::shared_ptr<AnswerSink> sink) {
    if (Seat(header, std::move(payload), std::move(sink))) Close();
  }
  // The same, but leaves it to the caller to call Close, on any thread, if it
  // returns true.
  [[nodiscard]] virtual bool Seat(const PushHeader& header, Payload payload,
                                  std::shared_ptr<AnswerSink> sink) = 0;
  // Does what nothing stands in the way of.
  virtual void Close() = 0;

  // The coordinator has fixed whose contributions to a round count. True: call Close.
  [[nodiscard]] virtual bool Fix(Round, const std::vector<MemberId>&) { return false; }
  // The coordinator has given what a round closes with. True: call Close.
  [[nodiscard]] virtual bool SetNorms(const StepNorms&) { return false; }
  // What the coordinator has been told of a round that waits for norms, but for the
  // job's name.
  virtual std::optional<ReducedChunk> Reduced() const { return std::nullopt; }
  // Takes note of a change of membership, which may let something be closed.
  virtual void SetRoster(std::shared_ptr<const Roster> roster) = 0;

  // Neither the round that is returned, the oldest without a contribution, nor a
  // later one is closed until Release.
  virtual Round Hold() = 0;
  virtual void Release() = 0;

  // What is waited for, if anybody waits.
  virtual std::optional<ChunkWait> Explain() const = 0;
  // The result of a round that has closed; null if it is not kept any more, or never
  // is. Its slot is not written again while the result is held.
  virtual std::shared_ptr<const RoundResult> Kept(Round) const { return nullptr; }
  // All rounds before this one have closed.
  virtual Round open_round() const = 0;
  // Contributions that came too late to count.
  virtual uint64_t late_contributions() const { return 0; }
  virtual size_t result_bytes() const = 0;
};

// Whether a push may come from where it says.
//
// Errors:
//   FailedPrecondition  the sender is in no epoch, gone, or of another incarnation
absl::Status CheckSender(const Roster& roster, GroupId group, const PushHeader& header);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_SERVED_CHUNK_H_
