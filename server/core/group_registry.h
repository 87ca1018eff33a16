// The groups of one job: each is planned once, for whoever asks first, and is the
// same for all who ask later.

#ifndef SYNCGRADS_SERVER_CORE_GROUP_REGISTRY_H_
#define SYNCGRADS_SERVER_CORE_GROUP_REGISTRY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/group.h"

namespace syncgrads::server {

// Not thread-safe.
class GroupRegistry {
 public:
  struct Registration {
    std::shared_ptr<const GroupPlan> plan;
    // The worker that asked for it.
    std::string by;
    // The change that told the servers of it.
    uint64_t sequence = 0;
  };

  // `available` is the bytes that a server may still take, if that is known.
  using Available = std::function<std::optional<uint64_t>(ServerIndex server)>;
  GroupRegistry(uint32_t servers, Available available)
      : available_(std::move(available)), bytes_per_server_(servers) {}

  size_t size() const { return by_name_.size(); }

  // Null if nobody has asked for this name.
  //
  // Errors:
  //   InvalidArgument  the group is registered differently; names both values
  absl::StatusOr<const Registration*> Find(const GroupSpec& spec) const;

  // The way of payloads.
  struct Path {
    // Through memory shared on one host.
    bool shares_memory = false;
    // Of the network, in bytes a second; 0: not known.
    double link_rate = 0;
  };

  // Plans a group that is not registered, for at most `members` workers. Unless the
  // spec does, the size of chunks is chosen for `path`; see docs/performance.md.
  //
  // Errors:
  //   InvalidArgument    it cannot be served
  //   ResourceExhausted  a server's share of it does not fit there: contributions of
  //                      all members, and two sets of results. Names the server and
  //                      both numbers
  absl::StatusOr<std::shared_ptr<const GroupPlan>> Plan(const GroupSpec& spec, uint32_t members,
                                                        const Path& path) const;

  // Takes a group in that Plan has just planned.
  void Add(Registration registration);

 private:
  absl::Status CheckMemory(const GroupPlan& plan, uint64_t members) const;

  const Available available_;
  std::map<std::string, Registration> by_name_;
  // Of all groups' layouts.
  std::vector<uint64_t> bytes_per_server_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_GROUP_REGISTRY_H_
