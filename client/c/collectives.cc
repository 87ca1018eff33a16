// syncgrads.h: collectives.

#include "absl/strings/str_cat.h"
#include "client/c/handles.h"
#include "common/status_macros.h"

using syncgrads::Array;
using syncgrads::Client;
using syncgrads::ConstArray;
using syncgrads::Pending;
using syncgrads::c::Answer;
using syncgrads::c::CheckNotNull;
using syncgrads::c::CheckUsable;
using syncgrads::c::SignalsBlocked;
using syncgrads::c::TimeoutOf;
using syncgrads::c::ValueOf;
using syncgrads::c::WaitWithoutSignals;

namespace {

absl::StatusOr<Pending> Start(sg_client& handle, const sg_collective* collective) {
  SYNCGRADS_ASSIGN_OR_RETURN(const sg_collective call, syncgrads::c::CopyIn(collective));
  SYNCGRADS_RETURN_IF_ERROR(CheckNotNull(call.name, "name"));
  Client& client = *handle.client;
  const SignalsBlocked blocked;
  if (call.operation == SG_BARRIER) return client.BarrierAsync(call.name);
  SYNCGRADS_ASSIGN_OR_RETURN(const syncgrads::DType dtype, syncgrads::c::DTypeOfNumber(call.dtype));
  const ConstArray input = {dtype, call.input, call.elements};
  Array output = {dtype, call.output, call.elements};
  switch (call.operation) {
    case SG_ALL_REDUCE: {
      SYNCGRADS_ASSIGN_OR_RETURN(const auto reduction, syncgrads::c::ReductionOf(call.reduction));
      if (call.input == nullptr) return client.AllReduceSkipAsync(call.name, output, reduction);
      return client.AllReduceAsync(call.name, input, output, reduction);
    }
    case SG_REDUCE: {
      SYNCGRADS_ASSIGN_OR_RETURN(const auto reduction, syncgrads::c::ReductionOf(call.reduction));
      return client.ReduceAsync(call.name, input, output, reduction, call.root);
    }
    case SG_BROADCAST:
      return client.BroadcastAsync(call.name, output, call.root);
    case SG_ALL_GATHER:
      output.elements =
          call.output_elements > 0 ? call.output_elements : call.elements * client.world_size();
      return client.AllGatherAsync(call.name, input, output);
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "collective \"", call.name, "\" has the unknown operation ", call.operation));
  }
}

absl::StatusOr<uint32_t> Finish(Pending& pending, absl::Duration limit) {
  uint32_t contributors = 0;
  SYNCGRADS_RETURN_IF_ERROR(WaitWithoutSignals(limit, [&](absl::Duration timeout) -> absl::Status {
    SYNCGRADS_ASSIGN_OR_RETURN(contributors, pending.Wait(timeout));
    return absl::OkStatus();
  }));
  return contributors;
}

absl::StatusOr<Pending> StartBroadcastAll(sg_client* client, const char* name,
                                          const sg_tensor* tensors, size_t count, uint32_t root) {
  SYNCGRADS_RETURN_IF_ERROR(CheckUsable(client));
  SYNCGRADS_RETURN_IF_ERROR(CheckNotNull(name, "name"));
  if (count > 0) SYNCGRADS_RETURN_IF_ERROR(CheckNotNull(tensors, "tensors"));
  SYNCGRADS_ASSIGN_OR_RETURN(const auto converted, syncgrads::c::TensorsOf(tensors, count));
  const SignalsBlocked blocked;
  return client->client->BroadcastAllAsync(name, converted, root);
}

}  // namespace

int sg_start(sg_client* client, const sg_collective* collective, sg_pending** pending,
             char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(client));
    SYNCGRADS_RETURN_IF_ERROR(CheckNotNull(pending, "pending"));
    SYNCGRADS_ASSIGN_OR_RETURN(Pending started, Start(*client, collective));
    *pending = new sg_pending{*client, std::move(started)};
    return absl::OkStatus();
  });
}

int sg_is_ready(const sg_pending* pending) {
  return ValueOf(0, [&] { return CheckUsable(pending).ok() && pending->pending.Ready() ? 1 : 0; });
}

int sg_finish(sg_pending* pending, double timeout, uint32_t* contributors, char* message,
              size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(pending));
    SYNCGRADS_ASSIGN_OR_RETURN(const absl::Duration limit, TimeoutOf(timeout));
    SYNCGRADS_ASSIGN_OR_RETURN(const uint32_t count, Finish(pending->pending, limit));
    if (contributors != nullptr) *contributors = count;
    return absl::OkStatus();
  });
}

void sg_free_pending(sg_pending* pending) {
  Answer(nullptr, 0, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(pending));
    const SignalsBlocked blocked;
    delete pending;
    return absl::OkStatus();
  });
}

int sg_run(sg_client* client, const sg_collective* collective, double timeout,
           uint32_t* contributors, char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(client));
    SYNCGRADS_ASSIGN_OR_RETURN(const absl::Duration limit, TimeoutOf(timeout));
    SYNCGRADS_ASSIGN_OR_RETURN(Pending started, Start(*client, collective));
    SYNCGRADS_ASSIGN_OR_RETURN(const uint32_t count, Finish(started, limit));
    if (contributors != nullptr) *contributors = count;
    return absl::OkStatus();
  });
}

int sg_start_broadcast_all(sg_client* client, const char* name, const sg_tensor* tensors,
                           size_t count, uint32_t root, sg_pending** pending, char* message,
                           size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckNotNull(pending, "pending"));
    SYNCGRADS_ASSIGN_OR_RETURN(Pending started,
                               StartBroadcastAll(client, name, tensors, count, root));
    *pending = new sg_pending{*client, std::move(started)};
    return absl::OkStatus();
  });
}

int sg_broadcast_all(sg_client* client, const char* name, const sg_tensor* tensors, size_t count,
                     uint32_t root, double timeout, char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_ASSIGN_OR_RETURN(const absl::Duration limit, TimeoutOf(timeout));
    SYNCGRADS_ASSIGN_OR_RETURN(Pending started,
                               StartBroadcastAll(client, name, tensors, count, root));
    return Finish(started, limit).status();
  });
}
