// The groups of one job. A group is planned for the first worker that requests it; later
// requests for the same name get the same plan.

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_GROUP_REGISTRY_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_GROUP_REGISTRY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/group/group.h"
#include "server/core/coordinator/group_limits.h"
#include "server/core/coordinator/memory_budget.h"

namespace syncgrads::server {

// Not thread-safe; owned by a job's GroupRegistrations and protected by Coordinator::mutex_.
class GroupRegistry {
 public:
  struct Registration {
    std::shared_ptr<const GroupPlan> plan;
    // The name of the worker that requested it first.
    std::string by;
    // The number of the change that registered it on the servers.
    uint64_t sequence = 0;
  };

  // `members`: the largest number of workers of the job. `budget` must outlive this object.
  GroupRegistry(uint32_t members, const GroupLimits& limits, MemoryBudget& budget)
      : members_(members),
        limits_(limits),
        budget_(budget),
        bytes_per_server_(budget.servers()),
        reserved_(budget.servers()) {}
  ~GroupRegistry() { Release(); }
  GroupRegistry(const GroupRegistry&) = delete;
  GroupRegistry& operator=(const GroupRegistry&) = delete;

  size_t size() const { return by_name_.size(); }

  // The groups that the job's learning rate factor applies to, in the order of their ids.
  std::vector<std::shared_ptr<const GroupPlan>> WithLearningRate() const;

  bool Has(const std::string& name) const { return by_name_.contains(name); }
  // The group of this name, which may have another spec; null if none is registered. The pointer is
  // valid as long as this object.
  const Registration* Named(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : &found->second;
  }

  // The transport of payloads between workers and servers.
  struct Path {
    // Whether payloads go through shared memory.
    bool shares_memory = false;
    // Throughput of the network in bytes per second; unknown if it is not a positive number.
    double link_rate = 0;

    friend bool operator==(const Path&, const Path&) = default;
  };

  // The part of a plan that depends on no other group. Making it takes long for a group of many
  // tensors.
  struct Draft {
    Path path;
    size_t servers = 0;
    // Without an id and the servers of its chunks.
    std::shared_ptr<GroupPlan> plan;
  };

  // Drafts the plan of a group that has passed Validate, on this number of servers. If the spec
  // does not set the chunk size, it is chosen for `path`; see docs/performance.md. Needs no lock.
  //
  // Errors: those of Layout::CreateChecked
  static absl::StatusOr<Draft> MakeDraft(const GroupSpec& spec, size_t servers, const Path& path);

  size_t servers() const { return bytes_per_server_.size(); }

  // Whether a group of so many bytes may fit at all. To be called before a plan is drafted, which
  // takes long for a group of many chunks; groups of few chunks pass. `chunk_bytes` as in the spec.
  //
  // Errors:
  //   ResourceExhausted  the job would have too many chunks, or all servers together have not
  //                      enough memory for it. Names both numbers
  absl::Status CheckSize(const std::string& name, uint64_t bytes, uint32_t chunk_bytes) const;

  // Plans a group that is not registered: its layout, the servers of its chunks, and its id. The
  // result is the plan in `draft`. Only one plan at a time may be waiting for Add, because ids are
  // assigned in order.
  //
  // Errors:
  //   ResourceExhausted  the job has reached its limit of groups or chunks, or a server has not
  //                      enough memory for its share: the contributions of all members, the
  //                      sets of results, and bookkeeping of chunks and tensors. Names the
  //                      limit or the server, and both numbers
  absl::StatusOr<std::shared_ptr<const GroupPlan>> Plan(const Draft& draft) const;
  // Drafts it first.
  absl::StatusOr<std::shared_ptr<const GroupPlan>> Plan(const GroupSpec& spec,
                                                        const Path& path) const;

  // Reserves the memory of a group that Plan has returned in the budget, while the servers allocate
  // it: until Add or GiveUp.
  void Reserve(const GroupPlan& plan);
  // Releases the memory of that group, because it is not added. Idempotent.
  void GiveUp();

  // Registers a group that Plan has returned, or one that was registered before a restart. Its
  // memory stays reserved.
  void Add(Registration registration);

  // Releases the memory of all groups in the budget, because the job is closed. Idempotent.
  void Release();

 private:
  absl::Status CheckLimits(const GroupPlan& plan) const;
  // The number of arrays of a chunk's size that the group needs for results: all sets, with
  // optimizer slots and compression residuals.
  uint64_t ArraysOfResults(const GroupPlan& plan) const;
  // How many members' contributions a server holds at once, at most.
  uint64_t Contributors(const GroupPlan& plan) const;
  // The memory that the group needs on each server.
  std::vector<MemoryNeed> NeedsOf(const GroupPlan& plan) const;

  const uint64_t members_;
  const GroupLimits limits_;
  MemoryBudget& budget_;
  std::map<std::string, Registration> by_name_;
  // The bytes of all groups' layouts on each server; PlaceChunks balances these.
  std::vector<uint64_t> bytes_per_server_;
  // The number of chunks of all groups.
  uint64_t chunks_ = 0;
  // The memory that this job has reserved in the budget: for its groups, and for the group that
  // waits for Add.
  std::vector<MemoryNeed> reserved_, waiting_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_GROUP_REGISTRY_H_
