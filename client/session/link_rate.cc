#include "client/session/link_rate.h"

#include <algorithm>

namespace syncgrads::client {

double LinkRate::For(const GroupSpec& spec, const std::vector<std::string>& servers, uint32_t rank,
                     absl::Time deadline) {
  uint64_t bytes = 0;
  for (const TensorSpec& tensor : spec.tensors) bytes += tensor.bytes();
  if (spec.chunk_bytes > 0 || bytes < kWorthProbing) return 0;
  {
    MutexLock lock(mutex_);
    if (measured_.has_value()) return *measured_;
  }
  const absl::Duration timeout = std::min(deadline - timers_.Now(), kProbeTimeout);
  // The workers' probes are spread over the servers. A worker that runs on the host of the server
  // with its rank thus measures another server, if there is one.
  const std::string& server = servers[(rank + 1) % servers.size()];
  const double rate = transport_.MeasureLink(server, timeout).value_or(0);
  MutexLock lock(mutex_);
  measured_ = rate;
  return rate;
}

}  // namespace syncgrads::client
