#include "server/core/group_results.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/optim/optimizer.h"
#include "common/status_macros.h"
#include "server/core/closing.h"
#include "server/state/arena.h"
#include "server/state/state_file.h"

namespace syncgrads::server {
namespace {

// Below this, a result costs less to send than to share.
constexpr size_t kMinSharedBytes = 16 << 10;

// Contributors that every record has room for: members may come while the job
// runs, and one that has no room goes into a file of its own.
constexpr size_t kUsualContributors = 16;

StateLayout LayoutOf(const GroupPlan& plan, ServerIndex self, Generation generation,
                     uint64_t sequence, size_t members) {
  StateLayout layout;
  layout.sequence = sequence;
  layout.generation = generation;
  layout.group = plan.id;
  layout.contributors = std::max(members, kUsualContributors);
  if (const auto* optimizer = std::get_if<Optimizer>(&plan.spec.rule)) {
    layout.optimizer_slots = SlotCount(*optimizer);
  }
  for (uint32_t c = 0; c < plan.servers.size(); ++c) {
    if (plan.servers[c] != self) continue;
    const Chunk& chunk = plan.layout.chunk(ChunkId{c});
    layout.chunks.push_back({ChunkId{c}, ResultBytes(chunk, plan.spec.rule, members),
                             chunk.spans.size(),
                             chunk.compression.result.is_raw() ? 0 : chunk.bytes()});
  }
  return layout;
}

bool WorthSharing(const GroupPlan& plan, const StateLayout& layout) {
  // Its rounds do not wait until the result of the one before has been read, which
  // is what makes two slots of a chunk enough.
  if (std::holds_alternative<First>(plan.spec.policy) ||
      std::holds_alternative<Staleness>(plan.spec.policy)) {
    return false;
  }
  size_t total = 0;
  for (const StateLayout::Chunk& chunk : layout.chunks) total += chunk.value_bytes;
  return total >= kMinSharedBytes;
}

}  // namespace

absl::StatusOr<GroupResults> MakeGroupResults(const GroupPlan& plan, ServerIndex self,
                                              Generation generation, uint64_t sequence,
                                              size_t members, const StateDirectory* state) {
  const StateLayout layout = LayoutOf(plan, self, generation, sequence, members);
  const bool shared = WorthSharing(plan, layout);
  if (layout.chunks.empty()) return GroupResults();
  if (state != nullptr) {
    SYNCGRADS_ASSIGN_OR_RETURN(
        std::shared_ptr<StateFile> file,
        StateFile::Create(state->group_path(sequence), layout, state->room()));
    return GroupResults{std::move(file), shared};
  }
  if (!shared) return GroupResults();
  std::vector<size_t> bytes;
  for (const StateLayout::Chunk& chunk : layout.chunks) bytes.push_back(chunk.value_bytes);
  absl::StatusOr<std::shared_ptr<Arena>> arena =
      Arena::Create("syncgrads-results", bytes, layout.optimizer_slots);
  // Without shared memory (a small /dev/shm has no part in this, a memory limit
  // has), results lie in the server's own and are sent.
  if (!arena.ok()) return GroupResults();
  return GroupResults{*std::move(arena), true};
}

absl::StatusOr<GroupResults> OpenGroupResults(const GroupPlan& plan, ServerIndex self,
                                              Generation generation, uint64_t sequence,
                                              size_t members, const StateDirectory& state) {
  const StateLayout layout = LayoutOf(plan, self, generation, sequence, members);
  if (layout.chunks.empty()) return GroupResults();
  SYNCGRADS_ASSIGN_OR_RETURN(std::shared_ptr<StateFile> file,
                             StateFile::Open(state.group_path(sequence), layout));
  return GroupResults{std::move(file), WorthSharing(plan, layout)};
}

}  // namespace syncgrads::server
