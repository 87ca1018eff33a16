// The version of the wire protocol.

#ifndef SYNCGRADS_COMMON_PROTOCOL_H_
#define SYNCGRADS_COMMON_PROTOCOL_H_

#include <cstdint>

namespace syncgrads {

// Checked at admission. It is increased if a program that ignores a new field, or knows only the
// former meaning of a message, would compute something else without an error.
inline constexpr uint32_t kProtocolVersion = 2;

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_PROTOCOL_H_
