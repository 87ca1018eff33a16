// Bugs that `./dev sim --mutants` plants, one at a time, to check that the simulation finds them.
//
// Only a program that is compiled with SYNCGRADS_PLANTED_BUGS (--config=planted) has them, and
// it has none until Plant is called. In all others IsPlanted is a constant, and costs nothing.

#ifndef SYNCGRADS_COMMON_PLANTED_BUG_H_
#define SYNCGRADS_COMMON_PLANTED_BUG_H_

#include <array>
#include <cstddef>
#include <optional>

#include "absl/strings/string_view.h"

namespace syncgrads {

enum class PlantedBug {
  // With bounded staleness, a push that is one step beyond the bound is answered.
  kBoundExceeded,
  // A restarted server counts every contribution as a new one.
  kClockForgotten,
  // An epoch may begin with a step whose contributors are fixed.
  kDecidedStepOfNewcomers,
  // A contribution that arrives twice counts twice.
  kDuplicateCounted,
  // The end of a member's data applies to rounds before it too.
  kEndOvertakesItsPushes,
  // A round belongs to the epoch that is newest when the round closes.
  kEpochAppliedByArrival,
  // A contribution that arrives after the set was fixed counts.
  kLateContributionCounted,
  // Followers receive the end of all data, although a newcomer still contributes to a step.
  kNewcomersAfterTheEnd,
  // The norms of a step are sent to the servers before they are stored.
  kNormsNotStored,
  // Contributions of a member that was dropped are counted.
  kOldIncarnationNotFenced,
  // A round with a wrong checksum is skipped, and the round before it is used.
  kOlderSlotAfterBadChecksum,
  // A set of contributors is sent to the servers before it is stored.
  kQuorumNotStored,
  // A worker uses the learning rate factor of the newest epoch, not of the epoch of the step.
  kRateByArrival,
  // A restarted coordinator forgets a learning rate factor that no epoch has yet.
  kRateForgotten,
  // A contribution is encoded again before it is sent again.
  kResendEncodedAgain,
  // The results of odd rounds are sent and not published.
  kResultNotPublished,
  // A round for which no member has data is never decided.
  kRoundLeftUndecided,
  // A message in flight does not hold the slot that it is read from.
  kSlotReusedUnderAReader,
  // A newcomer accepts the state that a donor sent for an older epoch.
  kStateOfAnOlderEpoch,
  // A worker that comes back is admitted beside its earlier incarnation.
  kTwoIncarnationsInOneRound,
};

// In the order of the enumerators.
inline constexpr auto kPlantedBugNames = std::to_array<absl::string_view>({
    "bound_exceeded",
    "clock_forgotten",
    "decided_step_of_newcomers",
    "duplicate_counted",
    "end_overtakes_its_pushes",
    "epoch_applied_by_arrival",
    "late_contribution_counted",
    "newcomers_after_the_end",
    "norms_not_stored",
    "old_incarnation_not_fenced",
    "older_slot_after_bad_checksum",
    "quorum_not_stored",
    "rate_by_arrival",
    "rate_forgotten",
    "resend_encoded_again",
    "result_not_published",
    "round_left_undecided",
    "slot_reused_under_a_reader",
    "state_of_an_older_epoch",
    "two_incarnations_in_one_round",
});

#ifdef SYNCGRADS_PLANTED_BUGS
inline constexpr bool kHasPlantedBugs = true;
// The bug that is planted; nullopt: none. Plant sets it before any thread is started.
inline std::optional<PlantedBug> planted_bug;
inline bool IsPlanted(PlantedBug bug) { return planted_bug == bug; }
#else
inline constexpr bool kHasPlantedBugs = false;
constexpr bool IsPlanted(PlantedBug) { return false; }
#endif

// Plants the bug of this name. False if there is no such bug, or the program has none.
inline bool Plant(absl::string_view name) {
#ifdef SYNCGRADS_PLANTED_BUGS
  for (size_t i = 0; i < kPlantedBugNames.size(); ++i) {
    if (kPlantedBugNames[i] != name) continue;
    planted_bug = static_cast<PlantedBug>(i);
    return true;
  }
#else
  static_cast<void>(name);
#endif
  return false;
}

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_PLANTED_BUG_H_
