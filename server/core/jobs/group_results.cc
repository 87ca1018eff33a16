#include "server/core/jobs/group_results.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/optim/optimizer.h"
#include "common/status_macros.h"
#include "server/core/closing/closing.h"
#include "server/state/arena.h"
#include "server/state/state_file.h"

namespace syncgrads::server {
namespace {

// Below this size, sending a result costs less than sharing it.
constexpr size_t kMinSharedBytes = 16 << 10;

// The number of contributors that every record has room for. Members may join while the job runs; a
// result whose record needs more room is stored in a file of its own.
constexpr size_t kUsualContributors = 16;

StateLayout LayoutOf(const GroupPlan& plan, ServerIndex self, Generation generation, uint64_t key,
                     size_t members) {
  StateLayout layout;
  layout.sequence = key;
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

// `is_kept`: the slots are in a file, which the next process of this server uses again.
bool WorthSharing(const GroupPlan& plan, const StateLayout& layout, bool is_kept) {
  // Two slots for each chunk are enough only if a round waits until the result before it has been
  // read. With these two policies, rounds do not wait for that.
  if (std::holds_alternative<First>(plan.spec.policy) ||
      std::holds_alternative<Staleness>(plan.spec.policy)) {
    return false;
  }
  // With a quorum, rounds do not wait for readers either. Only this process knows which results are
  // being read: after a restart, the server could overwrite a result that a worker reads.
  if (is_kept && std::holds_alternative<Quorum>(plan.spec.policy)) return false;
  size_t total = 0;
  for (const StateLayout::Chunk& chunk : layout.chunks) total += chunk.value_bytes;
  return total >= kMinSharedBytes;
}

}  // namespace

absl::StatusOr<GroupResults> MakeGroupResults(const GroupPlan& plan, ServerIndex self,
                                              Generation generation, uint64_t key, size_t members,
                                              const StateDirectory* state,
                                              const AllocationProgress& progress) {
  const StateLayout layout = LayoutOf(plan, self, generation, key, members);
  const bool shared = WorthSharing(plan, layout, state != nullptr);
  if (layout.chunks.empty()) return GroupResults();
  if (state != nullptr) {
    SYNCGRADS_ASSIGN_OR_RETURN(
        std::shared_ptr<StateFile> file,
        StateFile::Create(state->group_path(key), layout, state->room(), progress));
    return GroupResults{std::move(file), shared};
  }
  if (!shared) return GroupResults();
  std::vector<size_t> bytes;
  for (const StateLayout::Chunk& chunk : layout.chunks) bytes.push_back(chunk.value_bytes);
  absl::StatusOr<std::shared_ptr<Arena>> arena =
      Arena::Create("syncgrads-results", bytes, layout.optimizer_slots, progress);
  // If shared memory cannot be allocated (because of a memory limit; the size of /dev/shm has no
  // effect), results are in memory of the process and are sent.
  if (!arena.ok()) return GroupResults();
  return GroupResults{*std::move(arena), true};
}

uint64_t BytesOfResults(const GroupPlan& plan, ServerIndex self, size_t members) {
  const StateLayout layout = LayoutOf(plan, self, Generation{}, 0, members);
  return layout.chunks.empty() ? 0 : StateFile::BytesFor(layout);
}

absl::StatusOr<GroupResults> OpenGroupResults(const GroupPlan& plan, ServerIndex self,
                                              Generation generation, uint64_t key, size_t members,
                                              const StateDirectory& state) {
  const StateLayout layout = LayoutOf(plan, self, generation, key, members);
  if (layout.chunks.empty()) return GroupResults();
  SYNCGRADS_ASSIGN_OR_RETURN(std::shared_ptr<StateFile> file,
                             StateFile::Open(state.group_path(key), layout));
  return GroupResults{std::move(file), WorthSharing(plan, layout, true)};
}

}  // namespace syncgrads::server
