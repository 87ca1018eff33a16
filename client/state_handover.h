// How a worker's state gets to workers that join later: a group of its own beside
// the group that the state belongs to, whose round closes with the first
// contribution (the donor's) and whose result is for those who skip it.
//
// Who gives, in which round, and to whom, is in the epoch (Handover). The donor
// gives while its caller waits for the result of the newcomers' first step: then
// its state is what it is before that step, and stays so, since the step does not
// close without the newcomers.

#ifndef SYNCGRADS_CLIENT_STATE_HANDOVER_H_
#define SYNCGRADS_CLIENT_STATE_HANDOVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "client/group_rounds.h"
#include "client/timers.h"
#include "common/group.h"
#include "common/membership.h"
#include "common/mutex.h"

namespace syncgrads::client {

class Session;

// The group that carries the state of group `of`: the caller's tensors, and the
// step that they are before.
GroupSpec StateSpec(const GroupSpec& of, absl::Span<const NamedTensor> state);

// Always in a shared_ptr. Thread-safe.
class StateHandover : public std::enable_shared_from_this<StateHandover> {
 public:
  // `rounds` is of StateSpec(of, state). `timers` must outlive it; so must the
  // state's memory.
  StateHandover(GroupId of, std::shared_ptr<GroupRounds> rounds,
                absl::Span<const NamedTensor> state, MemberId self, Timers& timers);

  // The newest epoch, which may ask for the state.
  void OnEpoch(const Epoch& epoch);

  // From now on the state is what it is before the result of `step`.
  void Open(Round step);
  // It is no longer. Returns when nobody reads it.
  //
  // Errors:
  //   DeadlineExceeded  it is still being sent
  absl::Status Close(absl::Time deadline);

  // Fills the state with the donor's, as it is before `step`. If a donor dies, the
  // next epoch's is asked.
  //
  // Errors:
  //   DeadlineExceeded    says what was waited for
  //   FailedPrecondition  this worker is not among those who are to get it
  absl::Status Take(Round step, absl::Time deadline, Session& session);

 private:
  // Gives if it is asked for and can be given.
  void Give();
  // When an earlier give may be over.
  void GiveLater();

  const GroupId of_;
  const std::shared_ptr<GroupRounds> rounds_;
  const MemberId self_;
  Timers& timers_;
  std::vector<absl::Span<std::byte>> tensors_;
  int64_t step_ = 0;  // goes with the tensors

  // The round that the state was given in, and the epoch that asked for it: a newer
  // one may ask for the same round.
  struct Given {
    Round round{};
    uint64_t epoch = 0;
    friend bool operator==(const Given&, const Given&) = default;
  };

  // Held while a give is begun or ended.
  Mutex giving_mutex_;
  std::optional<Given> given_ ABSL_GUARDED_BY(giving_mutex_);
  Mutex mutex_ ABSL_ACQUIRED_AFTER(giving_mutex_);
  std::optional<Round> open_at_ ABSL_GUARDED_BY(mutex_);
  Epoch epoch_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_STATE_HANDOVER_H_
