#include "server/core/jobs/roster_pass.h"

#include <algorithm>

namespace syncgrads::server {

std::optional<size_t> RosterPass::Visit(absl::Span<const std::unique_ptr<ServedChunk>> chunks,
                                        size_t first,
                                        absl::FunctionRef<void(ServedChunk&, CloseWork)> finish) {
  if (first == 0) {
    // From here on, another change needs another pass.
    state_.exchange(State::kRunning);
    first_here_ = 0;
    while (first_here_ < chunks.size() && chunks[first_here_] == nullptr) ++first_here_;
  }
  const size_t end = std::min(chunks.size(), first + kChunksOfPart);
  for (size_t c = first; c < end; ++c) {
    if (chunks[c] == nullptr) continue;
    if (!chunks[c]->HasPushes() && c != first_here_) continue;
    finish(*chunks[c], chunks[c]->TakeRoster());
  }
  if (end < chunks.size()) return end;
  State running = State::kRunning;
  if (state_.compare_exchange_strong(running, State::kIdle)) return std::nullopt;
  return 0;
}

}  // namespace syncgrads::server
