// What stands between the processes of a run: nothing, a proxy before each server, or
// a relay.

#ifndef SYNCGRADS_TESTS_FAULT_NETWORK_H_
#define SYNCGRADS_TESTS_FAULT_NETWORK_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/fault/message_relay.h"
#include "tests/fault/schedule.h"
#include "tests/fault/tcp_proxy.h"

namespace syncgrads::fault {

// Thread-safe.
class FaultyNetwork {
 public:
  static absl::StatusOr<std::unique_ptr<FaultyNetwork>> Create(const Schedule& schedule);

  // Where others reach the server; 0: at its own port.
  uint16_t PortOf(int server) const;
  // The server listens on `port`.
  void SetUpstream(int server, uint16_t port);
  // From now on connections of `pid` are the process's.
  void SetProcess(ProcessId process, pid_t pid);

  // A fault of a link begins or ends; faults of one process may overlap.
  void Begin(const Fault& fault);
  void End(const Fault& fault);

 private:
  FaultyNetwork() = default;
  // Who has opened a connection to a server's proxy.
  int ClientOf(int server, uint16_t port) const;
  void Apply();

  mutable std::mutex mutex_;
  std::map<ProcessId, pid_t> processes_;  // guarded by mutex_
  std::vector<const Fault*> faults_;      // guarded by mutex_

  // Last: their threads look at the others.
  std::vector<std::unique_ptr<TcpProxy>> proxies_;
  std::vector<std::unique_ptr<MessageRelay>> relays_;
};

}  // namespace syncgrads::fault

#endif  // SYNCGRADS_TESTS_FAULT_NETWORK_H_
