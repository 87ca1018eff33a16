#include "server/service/control/serialized_signals.h"

#include <array>
#include <utility>

#include "common/contract/contract.h"

namespace syncgrads::server {
namespace {

v1::JobSignal SignalOf(const GroupPlan& plan) {
  v1::JobSignal signal;
  *signal.mutable_registered()->mutable_plan() = ToProto(plan);
  return signal;
}

v1::JobSignal SignalOf(const Epoch& epoch) {
  v1::JobSignal signal;
  *signal.mutable_epoch() = ToProto(epoch);
  for (v1::Member& member : *signal.mutable_epoch()->mutable_members()) member.clear_secret_hash();
  return signal;
}

// The parser merges the two parts: a submessage that occurs twice in a message gets the fields of
// both (protobuf's encoding guide, "Last One Wins").
grpc::ByteBuffer Merged(const v1::JobSignal& head, grpc::Slice rest) {
  const std::array<grpc::Slice, 2> parts = {grpc::Slice(head.SerializeAsString()), std::move(rest)};
  return {parts.data(), parts.size()};
}

}  // namespace

grpc::ByteBuffer SerializedSignals::Answer(Generation generation, const Registered& registered) {
  v1::JobSignal head;
  head.set_generation(ToNumber(generation));
  head.mutable_registered()->set_request(registered.request);
  return Merged(head, BytesOf<GroupPlan>(registered.plan, SignalOf));
}

grpc::ByteBuffer SerializedSignals::Begin(Generation generation, const EpochBegun& begun) {
  v1::JobSignal head;
  head.set_generation(ToNumber(generation));
  return Merged(head, BytesOf<Epoch>(begun.epoch, SignalOf));
}

void SerializedSignals::Prune() {
  MutexLock lock(mutex_);
  PruneLocked();
}

size_t SerializedSignals::size() const {
  MutexLock lock(mutex_);
  return entries_.size();
}

void SerializedSignals::PruneLocked() {
  std::erase_if(entries_, [](const auto& entry) { return entry.second.object.expired(); });
}

template <typename Object>
grpc::Slice SerializedSignals::BytesOf(const std::shared_ptr<const Object>& object,
                                       v1::JobSignal (*make)(const Object&)) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(object.get());
  // A new object may have the address of an earlier one.
  if (found != entries_.end() && !found->second.object.expired()) return found->second.bytes;
  PruneLocked();
  Entry entry{object, grpc::Slice(make(*object).SerializeAsString())};
  return entries_.emplace(object.get(), std::move(entry)).first->second.bytes;
}

}  // namespace syncgrads::server
