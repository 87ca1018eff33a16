// Passes changes of a job's roster to the chunks of one group.

#ifndef SYNCGRADS_SERVER_CORE_JOBS_ROSTER_PASS_H_
#define SYNCGRADS_SERVER_CORE_JOBS_ROSTER_PASS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "server/core/rounds/served_chunk.h"

namespace syncgrads::server {

// A pass looks at every chunk once, and calls TakeRoster only for those with a push. It takes over
// the newest roster, whenever it comes to the chunk. So many changes in a row need one or two
// passes: one that is running when a change is made begins again, and one that has not begun does
// not need to.
//
//   idle ── Begin ──▶ due ── Visit(0) ──▶ running ── all chunks visited ──▶ idle
//                      ▲                     │
//                      └────── Begin ────────┘ the pass begins again at its end
//
// A pass is made in parts, so that nobody else waits for the whole of it.
//
// Thread-safe. There is one caller of Visit at a time: the one for whom Begin has returned true.
class RosterPass {
 public:
  // A part looks at so many chunks.
  static constexpr size_t kChunksOfPart = 1024;

  // The roster has been changed. If it returns true, the caller has Visit called with 0.
  [[nodiscard]] bool Begin() { return state_.exchange(State::kDue) == State::kIdle; }

  // Looks at a part of the chunks, from the one with index `first` on. Calls `finish` for each
  // chunk that the roster was passed to, with the work that is left. Returns the index with which
  // Visit is to be called next; nullopt if the pass has ended. Null chunks are passed over.
  //
  // The group's first chunk is always passed the roster, because it counts contributors for the
  // group.
  std::optional<size_t> Visit(absl::Span<const std::unique_ptr<ServedChunk>> chunks, size_t first,
                              absl::FunctionRef<void(ServedChunk&, CloseWork)> finish);

 private:
  enum class State : uint8_t { kIdle, kDue, kRunning };

  std::atomic<State> state_{State::kIdle};
  // The index of the first chunk that is not null. Used by Visit only.
  size_t first_here_ = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_JOBS_ROSTER_PASS_H_
