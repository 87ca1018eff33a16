// Keeps the plans of groups in serialized form. All members of a job are sent the same plan, and a
// plan of thousands of chunks takes about a millisecond to serialize, in which the coordinator's
// lock is held.

#ifndef SYNCGRADS_SERVER_SERVICE_SERIALIZED_PLANS_H_
#define SYNCGRADS_SERVER_SERVICE_SERIALIZED_PLANS_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <map>
#include <memory>

#include "common/group.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/signals.h"

namespace syncgrads::server {

// Thread-safe. The ControlService owns it; its streams use it.
class SerializedPlans {
 public:
  // Returns the serialized v1::JobSignal of an answer to a registration. The plan's bytes are
  // shared by all answers that have the same plan object.
  grpc::ByteBuffer Answer(Generation generation, const Registered& registered);

  // Discards the bytes of plans that no longer exist.
  void Prune();

 private:
  struct Entry {
    std::weak_ptr<const GroupPlan> plan;
    grpc::Slice bytes;
  };

  // Returns a serialized v1::JobSignal that has nothing but the plan.
  grpc::Slice BytesOf(const std::shared_ptr<const GroupPlan>& plan);

  Mutex mutex_;
  std::map<const GroupPlan*, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_SERIALIZED_PLANS_H_
