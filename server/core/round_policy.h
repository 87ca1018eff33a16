// When an open round of a chunk may close, and whose contributions count: what a
// group's policy comes to on one server. ChunkRounds asks; it knows of no policy
// itself.

#ifndef SYNCGRADS_SERVER_CORE_ROUND_POLICY_H_
#define SYNCGRADS_SERVER_CORE_ROUND_POLICY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/group.h"
#include "common/ids.h"
#include "common/membership.h"
#include "server/core/roster.h"

namespace syncgrads::server {

// A round as a policy sees it.
struct OpenRound {
  GroupId group{};
  Round round{};
  const Epoch& epoch;
  const Roster& roster;
  // Whether a member has contributed, or skipped.
  absl::FunctionRef<bool(MemberId)> has_seat;
  // Somebody has contributed something.
  bool any_values = false;

  // The members of the epoch that have data and no seat.
  std::vector<MemberId> Awaited() const;
  // Whether a member that has data for the round has a seat.
  bool AnyData() const;
};

// Not thread-safe.
class RoundPolicy {
 public:
  virtual ~RoundPolicy() = default;

  // Who keeps the round open, for people to read.
  virtual std::vector<MemberId> Missing(const OpenRound& open) const = 0;
  // Whether nothing keeps the round open that the policy knows of.
  virtual bool MayClose(const OpenRound& open) const { return Missing(open).empty(); }
  // Of a round that may close: whether there is such a round at all. There is none
  // once everybody who had data has ended or gone.
  virtual bool HasContributors(const OpenRound& open) const { return open.AnyData(); }
  // Of a round that may close: whether what this member contributed counts.
  virtual bool Counts(Round, MemberId) const { return true; }

  // The coordinator has fixed who counts in a round.
  virtual void Fix(Round, std::vector<MemberId>) {}
  // Rounds up to this one have closed.
  virtual void Closed(Round) {}

  // How many results are kept for members that have not asked for them yet.
  virtual size_t kept() const { return 2; }
  // Whether rounds close without members that have data.
  virtual bool leaves_behind() const { return false; }
  // Whether a member that is late gets the newest result, whichever it asks for.
  virtual bool answers_with_newest() const { return false; }
  // Whether a push to a later round than the open one gives the open one up.
  virtual bool gives_up_for_later() const { return false; }
};

std::unique_ptr<RoundPolicy> MakeRoundPolicy(const GroupSpec& spec);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUND_POLICY_H_
