// What the servers that follow have reported about their load.

#ifndef SYNCGRADS_SERVER_SERVICE_CONTROL_SERVER_LOADS_H_
#define SYNCGRADS_SERVER_SERVICE_CONTROL_SERVER_LOADS_H_

#include <map>
#include <optional>

#include "common/ids.h"
#include "common/mutex.h"
#include "proto/figures.pb.h"

namespace syncgrads::server {

// Thread-safe.
class ServerLoads {
 public:
  void Set(ServerIndex server, const v1::ServerLoad& load) {
    MutexLock lock(mutex_);
    newest_[server] = load;
  }
  // The newest report of the server; nullopt if there is none.
  std::optional<v1::ServerLoad> of(ServerIndex server) const {
    MutexLock lock(mutex_);
    const auto found = newest_.find(server);
    if (found == newest_.end()) return std::nullopt;
    return found->second;
  }

 private:
  mutable Mutex mutex_;
  std::map<ServerIndex, v1::ServerLoad> newest_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CONTROL_SERVER_LOADS_H_
