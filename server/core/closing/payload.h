// A payload that was received. It stays where the transport put it.

#ifndef SYNCGRADS_SERVER_CORE_CLOSING_PAYLOAD_H_
#define SYNCGRADS_SERVER_CORE_CLOSING_PAYLOAD_H_

#include <memory>

#include "common/wire/frame.h"

namespace syncgrads::server {

struct Payload {
  Pieces pieces;
  // Owns the memory that the pieces point to.
  std::shared_ptr<const void> owner;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_CLOSING_PAYLOAD_H_
