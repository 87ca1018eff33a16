// The interface through which the rounds of a group send contributions to the servers.

#ifndef SYNCGRADS_CLIENT_LINK_OUTBOX_H_
#define SYNCGRADS_CLIENT_LINK_OUTBOX_H_

#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include "client/link/transport.h"
#include "client/memory/shared_buffers.h"
#include "common/ids.h"

namespace syncgrads::client {

struct ChunkKey {
  GroupId group{};
  ChunkId chunk{};
  Round round{};

  friend auto operator<=>(const ChunkKey&, const ChunkKey&) = default;
};

// Sends contributions to the servers. Implemented by DataPlane. Thread-safe.
class Outbox {
 public:
  virtual ~Outbox() = default;
  // Sends `message`, which was made in epoch `made_in`, and retries it until it has been answered
  // or Forget is called.
  virtual void Send(ServerIndex server, const ChunkKey& key, uint64_t made_in,
                    std::shared_ptr<const OutgoingMessage> message) = 0;
  // Drops the message. A later answer to it is ignored.
  virtual void Forget(ServerIndex server, const ChunkKey& key) = 0;
  // Returns memory that the server can map; null if the server does not share memory with this
  // worker.
  virtual SharedBuffers* SharedWith(ServerIndex) { return nullptr; }
  // Called, with a text for people to read, when a codec has been replaced by a milder one.
  virtual void OnCodecReplaced(const std::string&) {}
};

// A worker's identity on the wire.
struct Identity {
  Generation generation{};
  MemberId member{};
  Incarnation incarnation{};
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_LINK_OUTBOX_H_
