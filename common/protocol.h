// The version of the wire protocol.

#ifndef SYNCGRADS_COMMON_PROTOCOL_H_
#define SYNCGRADS_COMMON_PROTOCOL_H_

#include <cstdint>

namespace syncgrads {

// Checked at admission; grows when a message changes its meaning.
inline constexpr uint32_t kProtocolVersion = 1;

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_PROTOCOL_H_
