#include "server/service/serialized_plans.h"

#include <array>

#include "common/contract/contract.h"
#include "proto/control.pb.h"

namespace syncgrads::server {

// The parser merges the two parts: a submessage that occurs twice in a message gets the fields of
// both (protobuf's encoding guide, "Last One Wins").
grpc::ByteBuffer SerializedPlans::Answer(Generation generation, const Registered& registered) {
  v1::JobSignal head;
  head.set_generation(ToNumber(generation));
  head.mutable_registered()->set_request(registered.request);
  const std::array<grpc::Slice, 2> parts = {grpc::Slice(head.SerializeAsString()),
                                            BytesOf(registered.plan)};
  return {parts.data(), parts.size()};
}

void SerializedPlans::Prune() {
  MutexLock lock(mutex_);
  std::erase_if(entries_, [](const auto& entry) { return entry.second.plan.expired(); });
}

grpc::Slice SerializedPlans::BytesOf(const std::shared_ptr<const GroupPlan>& plan) {
  MutexLock lock(mutex_);
  Entry& entry = entries_[plan.get()];
  // A new plan may have the address of an earlier one.
  if (entry.plan.expired()) {
    v1::JobSignal signal;
    *signal.mutable_registered()->mutable_plan() = ToProto(*plan);
    entry = {plan, grpc::Slice(signal.SerializeAsString())};
  }
  return entry.bytes;
}

}  // namespace syncgrads::server
