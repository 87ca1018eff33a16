// The network between the processes of a run: direct connections, or a proxy or a relay before each
// server.

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

// Thread-safe: the proxies' threads call it too.
class FaultyNetwork {
 public:
  static absl::StatusOr<std::unique_ptr<FaultyNetwork>> Create(const Schedule& schedule);

  // Returns the port at which other processes reach the server; 0: the server's own port.
  uint16_t PortOf(int server) const;
  // Sets the port on which the server listens.
  void SetUpstream(int server, uint16_t port);
  // From now on, connections of the operating system's process `pid` count as those of `process`.
  void SetProcess(ProcessId process, pid_t pid);

  // Begins or ends a fault of a link. Faults of one process may overlap. `fault` must stay valid
  // until End().
  void Begin(const Fault& fault);
  void End(const Fault& fault);

 private:
  FaultyNetwork() = default;
  // Returns the number of the process that has opened a connection to a server's proxy; -1 if it is
  // unknown.
  int ClientOf(int server, uint16_t port) const;
  void Apply();

  mutable std::mutex mutex_;
  std::map<ProcessId, pid_t> processes_;  // guarded by mutex_
  std::vector<const Fault*> faults_;      // guarded by mutex_

  // Declared last, so that their threads end before the other members are destroyed.
  std::vector<std::unique_ptr<TcpProxy>> proxies_;
  std::vector<std::unique_ptr<MessageRelay>> relays_;
};

}  // namespace syncgrads::fault

#endif  // SYNCGRADS_TESTS_FAULT_NETWORK_H_
