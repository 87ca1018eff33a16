// CoordinatedJob: how the norms of a step are put together.

#include <utility>

#include "server/core/coordinated_job.h"

namespace syncgrads::server {

void CoordinatedJob::Reduced(ServerIndex server, const ReducedChunk& chunk) {
  if (closed() || chunk.generation != generation_) return;
  const auto found = norm_tallies_.find(chunk.group);
  if (found == norm_tallies_.end()) return;
  NormTally& tally = found->second;
  tally.Reduced(server, chunk);
  const std::shared_ptr<Job> here = with_.own.Find(name_);
  if (here == nullptr) return;
  const std::shared_ptr<const Roster> roster = here->roster();
  // Also while an epoch is proposed: a round that is reduced somewhere belongs to the
  // epoch before, and if it is reduced nowhere any more, the next does not use this.
  std::optional<StepNorms> norms = tally.Decide([&](Round round) {
    const Epoch* const epoch = roster->EpochOf(chunk.group, round);
    return epoch == nullptr ? uint64_t{0} : epoch->number;
  });
  if (!norms.has_value()) return;
  tally.Decided(*norms);
  Append(*std::move(norms));
}

void CoordinatedJob::ForgetReduced(ServerIndex server) {
  for (auto& [group, tally] : norm_tallies_) tally.Forget(server);
}

}  // namespace syncgrads::server
