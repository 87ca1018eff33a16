// Keeps large signals to workers in serialized form. All members of a job are sent the same plans
// of groups and the same epochs, and a plan of thousands of chunks takes about a millisecond to
// serialize, in which the coordinator's lock is held.

#ifndef SYNCGRADS_SERVER_SERVICE_CONTROL_SERIALIZED_SIGNALS_H_
#define SYNCGRADS_SERVER_SERVICE_CONTROL_SERIALIZED_SIGNALS_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <map>
#include <memory>

#include "common/group/group.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/signals/membership.h"
#include "common/signals/signals.h"
#include "proto/control.pb.h"

namespace syncgrads::server {

// Thread-safe. The ControlService owns it; its streams use it.
class SerializedSignals {
 public:
  // Returns the serialized v1::JobSignal of an answer to a registration. The plan's bytes are
  // shared by all answers that have the same plan object.
  grpc::ByteBuffer Answer(Generation generation, const Registered& registered);
  // Returns the serialized v1::JobSignal with an epoch, without the hashes of its members' secrets.
  // The epoch's bytes are shared by all signals that have the same epoch object.
  grpc::ByteBuffer Begin(Generation generation, const EpochBegun& begun);

  // Discards the bytes of plans and epochs that no longer exist. New ones do so too.
  void Prune();
  // The number of plans and epochs whose bytes are kept.
  size_t size() const;

 private:
  // The bytes of one v1::JobSignal that has nothing but the object.
  struct Entry {
    std::weak_ptr<const void> object;
    grpc::Slice bytes;
  };

  // Returns the kept bytes, or those of the signal that `make` returns.
  template <typename Object>
  grpc::Slice BytesOf(const std::shared_ptr<const Object>& object,
                      v1::JobSignal (*make)(const Object& object));

  void PruneLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::map<const void*, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CONTROL_SERIALIZED_SIGNALS_H_
