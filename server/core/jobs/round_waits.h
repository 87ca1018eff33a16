// What the open rounds of a group wait for, from what its chunks wait for.

#ifndef SYNCGRADS_SERVER_CORE_JOBS_ROUND_WAITS_H_
#define SYNCGRADS_SERVER_CORE_JOBS_ROUND_WAITS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/group/group.h"
#include "common/signals/round_wait.h"
#include "server/core/jobs/presence_table.h"
#include "server/core/plan/roster.h"
#include "server/core/rounds/served_chunk.h"

namespace syncgrads::server {

// What one call of Job::Explain or Job::Stalled may still cost. Its groups share it. It is reduced
// by what is used, so the cost of a call does not depend on the product of chunks and members.
struct ExplainBudget {
  // The number of rounds that are still listed.
  size_t rounds = 64;
  // The number of seats that are still looked up: to list the missing members of a chunk, one seat
  // for each member is looked up. If none is left, one chunk of each round is looked up.
  size_t seats = 1 << 18;
};

// The most seats that are looked up for one round; at least one chunk is looked up.
inline constexpr size_t kMostSeatsOfRound = 1 << 14;

// Returns the open rounds that pushes wait for, oldest first; at most `budget.rounds`, the oldest
// ones. All chunks of these rounds count in the numbers of chunks and tensors, and in the time.
//
// The missing members are those of every chunk of the round if there are few chunks or members: if
// the chunks times the members of the newest epoch are at most kMostSeatsOfRound and
// `budget.seats`. Otherwise they are those of a part of the chunks, at equal distances.
//
// `chunks` is indexed by chunk; those of other servers are null. `roster` names the members,
// `presences` has their last messages, and `held_for` is the reason that the whole job waits, or
// empty. Takes the locks of chunks and of `presences`, one after the other.
std::vector<RoundWait> ExplainRounds(const GroupPlan& plan,
                                     absl::Span<const std::unique_ptr<ServedChunk>> chunks,
                                     const Roster& roster, const PresenceTable& presences,
                                     absl::string_view held_for, absl::Time now,
                                     ExplainBudget& budget);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_JOBS_ROUND_WAITS_H_
