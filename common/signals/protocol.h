// The version of the wire protocol, and bounds of what its messages say.

#ifndef SYNCGRADS_COMMON_SIGNALS_PROTOCOL_H_
#define SYNCGRADS_COMMON_SIGNALS_PROTOCOL_H_

#include <cstdint>

namespace syncgrads {

// Checked at admission. It is increased if a program that ignores a new field, or knows only the
// former meaning of a message, would compute something else without an error.
inline constexpr uint32_t kProtocolVersion = 2;

// The maximum number of servers of a cluster. Workers open streams to each of them.
inline constexpr uint32_t kMostServers = 1000;

// The shortest interval, in ms, at which a coordinator may want heartbeats.
inline constexpr uint32_t kShortestHeartbeatMs = 10;

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_SIGNALS_PROTOCOL_H_
