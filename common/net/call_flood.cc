#include "common/net/call_flood.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncgrads {

CallFlood::CallFlood(CallsOfGrpc calls, OpenConnections& connections)
    : calls_(std::move(calls)), connections_(connections) {}

std::vector<std::string> CallFlood::Look() {
  const int64_t before = std::exchange(waiting_, calls_.open() - connections_.open_calls());
  if (!is_flooded()) {
    begun_.clear();
    return {};
  }
  const std::map<std::string, int64_t> earlier = std::exchange(begun_, calls_.begun());
  // After the flood, those that were begun before wait for a while.
  if (earlier.empty() || waiting_ <= before) return {};
  std::vector<std::pair<int64_t, std::string>> most;
  int64_t all = 0;
  for (const auto& [endpoint, begun] : begun_) {
    const auto found = earlier.find(endpoint);
    const int64_t since = begun - (found == earlier.end() ? 0 : found->second);
    most.emplace_back(since, endpoint);
    all += since;
  }
  std::sort(most.rbegin(), most.rend());
  const int64_t least = waiting_ > kManyWaiting ? kLeastBegunThen : kLeastBegun;
  std::vector<std::string> cut;
  int64_t of_cut = 0;
  for (const auto& [since, endpoint] : most) {
    if (since < least || 2 * of_cut >= all) break;
    if (!connections_.Reset(endpoint)) {
      all -= since;  // what gRPC has read of a connection that is reset already
      continue;
    }
    of_cut += since;
    cut.push_back(absl::StrCat(endpoint, " has begun ", since, " calls within moments, while ",
                               waiting_, " calls waited; at most ", kMostWaiting, " may"));
  }
  return cut;
}

}  // namespace syncgrads
