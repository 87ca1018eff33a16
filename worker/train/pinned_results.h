// Results of a group in memory of servers on this host, which a device reads directly.

#ifndef SYNCGRADS_WORKER_TRAIN_PINNED_RESULTS_H_
#define SYNCGRADS_WORKER_TRAIN_PINNED_RESULTS_H_

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "client/client.h"
#include "worker/nn/device_memory.h"

namespace syncgrads {

// Pins the memory of a server when it is first used, and unpins it when no result of the group lies
// in it any more: a server that restarts has other memory. Not thread-safe.
class PinnedResults {
 public:
  // `device` outlives the object, and `group` all calls of Has.
  PinnedResults(DeviceMemory& device, const Group& group) : device_(device), group_(group) {}
  ~PinnedResults();
  PinnedResults(const PinnedResults&) = delete;
  PinnedResults& operator=(const PinnedResults&) = delete;

  // Whether a piece of a result in place lies in memory that is pinned.
  bool Has(absl::Span<const std::byte> piece);

 private:
  struct Memory {
    Group::SharedResults results;
    bool is_pinned;  // false if it cannot be pinned
  };

  // Returns the memory in which a piece lies; null if it is in none of memory_.
  const Memory* Find(absl::Span<const std::byte> piece) const;
  // Sets memory_ to the memory that the group uses now.
  void Refresh();

  DeviceMemory& device_;
  const Group& group_;
  std::vector<Memory> memory_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_PINNED_RESULTS_H_
