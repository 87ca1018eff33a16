// Bytes that were received, where the transport put them.

#ifndef SYNCGRADS_SERVER_CORE_PAYLOAD_H_
#define SYNCGRADS_SERVER_CORE_PAYLOAD_H_

#include <memory>

#include "common/wire/frame.h"

namespace syncgrads::server {

struct Payload {
  Pieces pieces;
  // Keeps the pieces' memory.
  std::shared_ptr<const void> owner;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_PAYLOAD_H_
