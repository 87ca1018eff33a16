// Which process a connection is of.

#ifndef SYNCGRADS_TESTS_FAULT_PORT_OWNER_H_
#define SYNCGRADS_TESTS_FAULT_PORT_OWNER_H_

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace syncgrads::fault {

// The position in `processes` of the one that has a TCP connection from its port
// `port` to the port `remote`; -1 if none of them has.
int FindOwner(uint16_t port, uint16_t remote, const std::vector<pid_t>& processes);

}  // namespace syncgrads::fault

#endif  // SYNCGRADS_TESTS_FAULT_PORT_OWNER_H_
