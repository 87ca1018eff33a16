// The memory that one member and this server share.

#ifndef SYNCGRADS_SERVER_SERVICE_MEMBER_MEMORY_H_
#define SYNCGRADS_SERVER_SERVICE_MEMBER_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/shm/region.h"
#include "common/wire/frame.h"
#include "server/core/payload.h"
#include "server/core/round_result.h"

namespace syncgrads::server {

// Thread-safe.
class MemberMemory {
 public:
  // The worker's region, by the number that it gave it.
  void Add(uint32_t number, std::shared_ptr<const PeerRegion> region);
  // The worker has mapped a group's results.
  void SetMapped(GroupId group);
  bool IsMapped(GroupId group) const;

  // What a push says lies in the worker's regions.
  //
  // Errors:
  //   Unavailable      a region was not handed over yet, or has been given up
  //   InvalidArgument  a piece reaches beyond its region; both are named
  absl::StatusOr<Payload> Find(const std::vector<SharedPiece>& pieces) const;

  // The worker reads `result` where it lies, until it pushes a later round of the
  // chunk. False after Close.
  bool Lend(std::shared_ptr<const RoundResult> result);
  void TakeBack(GroupId group, ChunkId chunk, Round pushed);

  // The worker has gone: it reads nothing any more, and its regions are unmapped
  // when the rounds that read them have closed.
  void Close();
  bool closed() const { return closed_.load(std::memory_order_relaxed); }

 private:
  mutable Mutex mutex_;
  // Set under the mutex.
  std::atomic<bool> closed_{false};
  std::map<uint32_t, std::shared_ptr<const PeerRegion>> regions_ ABSL_GUARDED_BY(mutex_);
  std::set<GroupId> mapped_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<GroupId, ChunkId>, std::vector<std::shared_ptr<const RoundResult>>> lent_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_MEMBER_MEMORY_H_
