#include "server/core/coordinator/memory_budget.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace syncgrads::server {
namespace {

constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

uint64_t Sum(uint64_t a, uint64_t b) { return a > kMost - b ? kMost : a + b; }
uint64_t Less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

}  // namespace

void AddTo(std::vector<MemoryNeed>& sum, const std::vector<MemoryNeed>& needs) {
  sum.resize(std::max(sum.size(), needs.size()));
  for (size_t i = 0; i < needs.size(); ++i) {
    sum[i].total = Sum(sum[i].total, needs[i].total);
    sum[i].at_once = Sum(sum[i].at_once, needs[i].at_once);
  }
}

uint64_t MemoryBudget::CapacityOf(const Server& server, uint64_t available) {
  const uint64_t least = Sum(available, server.reserved.at_once);
  const uint64_t most = Sum(available, server.reserved.total);
  return std::clamp(server.capacity.value_or(least), least, most);
}

uint64_t MemoryBudget::LeftOn(Server& server, uint64_t available) {
  server.capacity = CapacityOf(server, available);
  // Other processes may have taken memory that is reserved here, so `available` is a limit too.
  return std::min(available, Less(*server.capacity, server.reserved.total));
}

std::optional<uint64_t> MemoryBudget::Left() {
  uint64_t left = 0;
  for (uint32_t index = 0; index < servers_.size(); ++index) {
    const std::optional<uint64_t> available = available_(ServerIndex{index});
    if (!available.has_value()) return std::nullopt;
    left = Sum(left, LeftOn(servers_[index], *available));
  }
  return left;
}

absl::Status MemoryBudget::Check(const std::string& what, const std::vector<MemoryNeed>& needs) {
  for (uint32_t index = 0; index < needs.size(); ++index) {
    const std::optional<uint64_t> available = available_(ServerIndex{index});
    if (!available.has_value()) continue;
    Server& server = servers_[index];
    if (needs[index].total <= LeftOn(server, *available)) continue;
    return absl::ResourceExhaustedError(absl::StrCat(
        what, " needs ", needs[index].total, " bytes on server ", index, "; ", *available,
        " bytes are available there, and of the ", *server.capacity, " that jobs can take, ",
        server.reserved.total, " are reserved for groups that are registered or allocated now"));
  }
  return absl::OkStatus();
}

void MemoryBudget::Reserve(const std::vector<MemoryNeed>& needs) {
  for (size_t i = 0; i < needs.size(); ++i) {
    MemoryNeed& reserved = servers_[i].reserved;
    reserved.total = Sum(reserved.total, needs[i].total);
    reserved.at_once = Sum(reserved.at_once, needs[i].at_once);
  }
}

void MemoryBudget::Release(const std::vector<MemoryNeed>& needs) {
  for (size_t i = 0; i < needs.size(); ++i) {
    MemoryNeed& reserved = servers_[i].reserved;
    reserved.total = Less(reserved.total, needs[i].total);
    reserved.at_once = Less(reserved.at_once, needs[i].at_once);
  }
}

}  // namespace syncgrads::server
