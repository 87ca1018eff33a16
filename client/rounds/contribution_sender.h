// Decides how a contribution is sent: encoded, by reference to shared memory, or raw.
//
//   encoded       the chunk's contributions are compressed
//   by reference  the server shares memory with this worker, and the payload is long enough; spans
//                 outside of shared memory are first copied to it (Staging)
//   raw           otherwise
//
// A contribution that can be sent by reference can also be sent raw: the link does so if the stream
// does not reach the shared memory.

#ifndef SYNCGRADS_CLIENT_ROUNDS_CONTRIBUTION_SENDER_H_
#define SYNCGRADS_CLIENT_ROUNDS_CONTRIBUTION_SENDER_H_

#include <functional>
#include <memory>
#include <optional>

#include "client/link/outbox.h"
#include "client/link/transport.h"
#include "client/memory/staging.h"
#include "client/rounds/compressor.h"
#include "client/rounds/contribution.h"
#include "common/group/group.h"

namespace syncgrads::client {

// Owned by GroupRounds. Thread-safe for different chunks. Calls the outbox, so no lock may be held.
class ContributionSender {
 public:
  // All arguments must outlive this object.
  ContributionSender(const GroupPlan& plan, Compressor& compressor, Outbox& outbox);

  // Sends a contribution to the server of its chunk. `released` is called when nobody reads the
  // memory of its spans any more (OutgoingMessage).
  void Send(Contribution contribution, std::function<void()> released);

 private:
  // Returns nullopt if the contribution is not to be encoded.
  std::optional<Compressor::Encoded> Encode(const Contribution& contribution);
  // Returns the message with the values as they are.
  std::shared_ptr<const OutgoingMessage> MakeRaw(Contribution contribution,
                                                 std::function<void()> released);

  const GroupPlan& plan_;
  Compressor& compressor_;
  Outbox& outbox_;
  Staging staging_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_ROUNDS_CONTRIBUTION_SENDER_H_
