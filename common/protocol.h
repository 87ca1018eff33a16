// The version of the wire protocol.

#ifndef SYNCGRADS_COMMON_PROTOCOL_H_
#define SYNCGRADS_COMMON_PROTOCOL_H_

#include <cstdint>

namespace syncgrads {

// The version is checked at admission. It is increased when the meaning of a message changes.
inline constexpr uint32_t kProtocolVersion = 1;

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_PROTOCOL_H_
