// Decides when an open round of a chunk may close, and whose contributions count: a group's policy
// as one server applies it. ChunkRounds consults it and contains no policy itself.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_ROUND_POLICY_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_ROUND_POLICY_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "common/group/group.h"
#include "common/ids.h"
#include "common/signals/membership.h"
#include "server/core/plan/roster.h"
#include "server/core/rounds/round_seats.h"

namespace syncgrads::server {

// The open round, as a policy sees it. Valid during one call.
struct OpenRound {
  GroupId group{};
  Round round{};
  const Epoch& epoch;
  const Roster& roster;
  const RoundSeats& seats;

  // The members of the epoch that have data for the round and no seat.
  std::vector<MemberId> Awaited() const;
  // Returns true if a member whose data has not ended has a seat.
  bool AnyData() const;
};

// Not thread-safe; the ChunkRounds that owns it holds the lock.
class RoundPolicy {
 public:
  virtual ~RoundPolicy() = default;

  // The members that keep the round open, to be shown to people.
  virtual std::vector<MemberId> Missing(const OpenRound& open) const = 0;
  // Returns true if the policy lets the round close.
  virtual bool MayClose(const OpenRound& open) const { return Missing(open).empty(); }
  // For a round that may close: returns false if there is no such round, because every member that
  // had data has ended or gone.
  virtual bool HasContributors(const OpenRound& open) const { return open.AnyData(); }
  // For a round that may close: returns true if this member's contribution counts.
  virtual bool Counts(Round, MemberId) const { return true; }

  // The coordinator has fixed the members that count in a round.
  virtual void Fix(Round, std::vector<MemberId>) {}
  // All rounds up to this one have closed.
  virtual void Closed(Round) {}

  // Returns true if the open round is abandoned when a member pushes to `later`, a later round of
  // the group. `roster` is the newest one.
  virtual bool GivesUpFor(Round /*later*/, GroupId, const Roster& /*roster*/) const {
    return false;
  }

  // The number of results that are kept for members that have not requested them yet. If it is 1, a
  // late member receives the newest result, whichever round it requests. Constant.
  virtual size_t kept() const { return 2; }
  // True if rounds may close without members that have data. Constant.
  virtual bool leaves_behind() const { return false; }
};

// Not for Staleness: ChunkVersions implements it without rounds.
std::unique_ptr<RoundPolicy> MakeRoundPolicy(const GroupSpec& spec);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_ROUND_POLICY_H_
