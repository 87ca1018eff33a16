// The memory of all servers, and how much of it is reserved for the groups of all jobs.
//
// A group is admitted only if its largest possible need fits. Results are allocated at once,
// but contributions come later: memory that is free now may already be reserved. Reserved
// memory stays reserved until the job is closed.

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_MEMORY_BUDGET_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_MEMORY_BUDGET_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"

namespace syncgrads::server {

// The memory that a group needs on one server, in bytes.
struct MemoryNeed {
  // The most that it needs at any time.
  uint64_t total = 0;
  // The part that is allocated when the group is registered.
  uint64_t at_once = 0;
};

// Adds `needs` to `sum`. Both have one element per server. Sums saturate instead of overflowing.
void AddTo(std::vector<MemoryNeed>& sum, const std::vector<MemoryNeed>& needs);

// Not thread-safe; owned by the Coordinator and protected by Coordinator::mutex_.
class MemoryBudget {
 public:
  // Returns the free memory of a server in bytes; nullopt if not known.
  using Available = std::function<std::optional<uint64_t>(ServerIndex server)>;
  MemoryBudget(uint32_t servers, Available available)
      : available_(std::move(available)), servers_(servers) {}

  size_t servers() const { return servers_.size(); }

  // Whether a group with these needs, one per server, fits in the memory that is not reserved.
  // A server whose free memory is not known is not checked. `what` begins the error's message,
  // e.g. "group \"model\"".
  //
  // Errors:
  //   ResourceExhausted  names the server and the needed, available and reserved bytes
  absl::Status Check(const std::string& what, const std::vector<MemoryNeed>& needs);

  // The memory in bytes that is not reserved, on all servers together; nullopt if the free memory
  // of one is not known.
  std::optional<uint64_t> Left();

  void Reserve(const std::vector<MemoryNeed>& needs);
  // Releases the memory of a closed job, or of a group that was not registered. `needs`: the sum of
  // what was reserved for it.
  void Release(const std::vector<MemoryNeed>& needs);

 private:
  struct Server {
    MemoryNeed reserved;
    // The result of the last CapacityOf; nullopt before the first.
    std::optional<uint64_t> capacity;
  };

  // The memory in bytes that all jobs together can take on a server with `available` bytes free
  // now. Of the reserved bytes, between `at_once` and `total` are allocated already; the exact
  // number is not known. So the earlier capacity is kept if it is within these bounds, and
  // otherwise moved to the nearest bound.
  static uint64_t CapacityOf(const Server& server, uint64_t available);
  // Returns how much of `available` is not reserved.
  static uint64_t LeftOn(Server& server, uint64_t available);

  const Available available_;
  std::vector<Server> servers_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_MEMORY_BUDGET_H_
