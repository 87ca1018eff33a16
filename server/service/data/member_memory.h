// The memory that one member and this server share: the regions of the worker that pushes are
// read from, and the results that the worker reads in place.

#ifndef SYNCGRADS_SERVER_SERVICE_DATA_MEMBER_MEMORY_H_
#define SYNCGRADS_SERVER_SERVICE_DATA_MEMBER_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/shm/region.h"
#include "common/wire/frame.h"
#include "server/core/closing/payload.h"
#include "server/core/rounds/round_result.h"

namespace syncgrads::server {

// Made by MemoryExchange for one connection of a member; shared with the member's data streams.
// Thread-safe.
class MemberMemory {
 public:
  // The maximum number of regions of one member. By default Linux allows a process 65,530
  // mappings.
  static constexpr size_t kMaxRegions = 128;

  // Adds a region of the worker under the worker's number for it. Replaces an earlier region of
  // the same number. Does nothing after Close.
  //
  // Errors:
  //   ResourceExhausted  the worker already shares kMaxRegions regions
  absl::Status Add(uint32_t number, std::shared_ptr<const PeerRegion> region);
  // The size of all regions together.
  uint64_t region_bytes() const;
  // Records that the worker can map a group's results.
  void SetMapped(GroupId group);
  bool IsMapped(GroupId group) const;

  // Returns the payload that lies in the worker's regions at `pieces`. The payload keeps the
  // regions mapped. Its contents can change at any time.
  //
  // Errors:
  //   Unavailable      a region was not handed over yet, or the memory was closed
  //   InvalidArgument  a piece reaches beyond its region; has the sizes of both
  absl::StatusOr<Payload> Find(const std::vector<SharedPiece>& pieces) const;

  // Holds a reference to `result`, so that its slot is not written again while the worker reads
  // it in place; one reference, however often it is called. Returns false after Close.
  bool Lend(std::shared_ptr<const RoundResult> result);
  // Drops the references to the chunk's results of rounds before `pushed`. To be called when the
  // worker pushes round `pushed`: it does not read earlier results any more.
  void TakeBack(GroupId group, ChunkId chunk, Round pushed);

  // Drops all references, when the worker has disconnected. Regions are unmapped when the rounds
  // that read them have closed.
  void Close();
  bool closed() const { return closed_.load(std::memory_order_relaxed); }

 private:
  mutable Mutex mutex_;
  // Written with the mutex held.
  std::atomic<bool> closed_{false};
  std::map<uint32_t, std::shared_ptr<const PeerRegion>> regions_ ABSL_GUARDED_BY(mutex_);
  std::set<GroupId> mapped_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<GroupId, ChunkId>, std::vector<std::shared_ptr<const RoundResult>>> lent_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_DATA_MEMBER_MEMORY_H_
