// Measures the throughput of shared memory on this host.

#ifndef SYNCGRADS_CLIENT_PSCTL_MEMORY_PROBE_H_
#define SYNCGRADS_CLIENT_PSCTL_MEMORY_PROBE_H_

#include <optional>

namespace syncgrads::client {

// Returns how fast one thread reads what another one has written to shared memory of the kind that
// payloads use, in bytes per second: the fastest of four passes over 16 MiB. nullopt if there is no
// memory for it.
std::optional<double> MeasureSharedMemory();

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_PSCTL_MEMORY_PROBE_H_
