// Finds the process to which a TCP connection belongs.

#ifndef SYNCGRADS_TESTS_FAULT_PORT_OWNER_H_
#define SYNCGRADS_TESTS_FAULT_PORT_OWNER_H_

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace syncgrads::fault {

// Returns the position in `processes` of the process that has a TCP connection from its port `port`
// to the port `remote`; -1 if no process has.
int FindOwner(uint16_t port, uint16_t remote, const std::vector<pid_t>& processes);

}  // namespace syncgrads::fault

#endif  // SYNCGRADS_TESTS_FAULT_PORT_OWNER_H_
