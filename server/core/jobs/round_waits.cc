#include "server/core/jobs/round_waits.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace syncgrads::server {
namespace {

constexpr size_t kMaxNamedTensors = 10;

constexpr char kCompleteHere[] =
    "all contributions have arrived, but the coordinator has not confirmed that all servers have "
    "theirs";
constexpr char kReducedHere[] =
    "all contributions have arrived, but the coordinator has not sent the norms, which need the "
    "sums of every server";

// A chunk in which a round is open.
struct OpenChunk {
  ChunkId id;
  ChunkWait wait;
};

using OpenChunks = std::map<Round, std::vector<OpenChunk>>;

OpenChunks FindOpen(absl::Span<const std::unique_ptr<ServedChunk>> chunks) {
  OpenChunks open;
  for (uint32_t c = 0; c < chunks.size(); ++c) {
    if (chunks[c] == nullptr) continue;
    if (chunks[c]->waiting_since() == absl::InfiniteFuture()) continue;
    std::optional<ChunkWait> wait = chunks[c]->ExplainBriefly();
    if (!wait.has_value()) continue;
    const Round round = wait->round;
    open[round].push_back({ChunkId{c}, *std::move(wait)});
  }
  return open;
}

// Returns k: for every k-th of the chunks, the missing members are looked up.
size_t Stride(size_t chunks, size_t members, const ExplainBudget& budget) {
  const size_t seats = std::min(kMostSeatsOfRound, budget.seats);
  const size_t looked_up = std::max<size_t>(1, seats / members);
  return (chunks + looked_up - 1) / looked_up;
}

}  // namespace

std::vector<RoundWait> ExplainRounds(const GroupPlan& plan,
                                     absl::Span<const std::unique_ptr<ServedChunk>> chunks,
                                     const Roster& roster, const PresenceTable& presences,
                                     absl::string_view held_for, absl::Time now,
                                     ExplainBudget& budget) {
  const Epoch* const epoch = roster.newest_epoch();
  const size_t members = epoch == nullptr ? 1 : std::max<size_t>(1, epoch->members.size());
  std::vector<RoundWait> waits;
  for (const auto& [round, open] : FindOpen(chunks)) {
    if (budget.rounds == 0) break;
    RoundWait wait{.group = plan.id,
                   .group_name = plan.spec.name,
                   .round = round,
                   .held_for = std::string(held_for)};
    std::vector<TensorId> tensors;
    std::set<MemberId> listed;
    bool reduced = false;
    const size_t stride = Stride(open.size(), members, budget);
    size_t next = 0;  // index of the next chunk whose missing members are looked up
    for (size_t i = 0; i < open.size(); ++i) {
      const OpenChunk& chunk = open[i];
      std::optional<ChunkWait> found = chunk.wait;
      if (i >= next) {
        budget.seats -= std::min(budget.seats, members);
        found = chunks[ToNumber(chunk.id)]->Explain();
        // The round has closed meanwhile.
        if (!found.has_value() || found->round != round) continue;
        next = i + stride;
      }
      ++wait.open_chunks;
      reduced = reduced || found->reduced;
      wait.open_for = std::max(wait.open_for, now - found->since);
      for (const Span& span : plan.layout.chunk(chunk.id).spans) {
        if (tensors.empty() || tensors.back() != span.tensor) tensors.push_back(span.tensor);
      }
      for (MemberId id : found->missing) {
        if (!listed.insert(id).second) continue;
        const std::shared_ptr<const Presence> presence = presences.Find(id);
        // The chunk may have a newer roster than this copy, which then has no name for the member.
        wait.missing.push_back(
            {id, roster.NameOf(id),
             presence == nullptr ? wait.open_for : now - presence->last_message()});
      }
    }
    if (wait.open_chunks == 0) continue;
    if (wait.missing.empty() && wait.held_for.empty()) {
      wait.held_for = reduced ? kReducedHere : kCompleteHere;
    }
    wait.tensor_count = tensors.size();
    for (size_t t = 0; t < std::min(tensors.size(), kMaxNamedTensors); ++t) {
      wait.tensors.push_back(plan.layout.tensor(tensors[t]).name);
    }
    waits.push_back(std::move(wait));
    --budget.rounds;
  }
  return waits;
}

}  // namespace syncgrads::server
