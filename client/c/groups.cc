// syncgrads.h: groups, elastic jobs, and optimizers on the servers.

#include <limits>
#include <variant>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "client/c/handles.h"
#include "client/c/texts.h"
#include "common/clock.h"
#include "common/group/layout.h"
#include "common/ids.h"
#include "common/optim/optimizer.h"
#include "common/status_macros.h"

using syncgrads::Contributors;
using syncgrads::Group;
using syncgrads::MonotonicNow;
using syncgrads::OptimizerState;
using syncgrads::TensorId;
using syncgrads::ToNumber;
using syncgrads::c::Answer;
using syncgrads::c::CallWithoutSignals;
using syncgrads::c::CheckNotNull;
using syncgrads::c::CheckUsable;
using syncgrads::c::CopyIn;
using syncgrads::c::SignalsBlocked;
using syncgrads::c::TimeoutOf;
using syncgrads::c::ValueOf;
using syncgrads::c::WaitWithoutSignals;

namespace {

size_t TensorsIn(const Group& group) { return group.spec().tensors.size(); }

absl::Status CheckTensor(const Group& group, uint32_t tensor) {
  if (tensor < TensorsIn(group)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor, " of group \"",
                                                 group.spec().name, "\", which has ",
                                                 TensorsIn(group), " tensors"));
}

// InvalidArgument unless the array `what` has one element for each tensor.
absl::Status CheckOneForEach(const Group& group, const char* what, const void* array,
                             size_t count) {
  SYNCGRADS_RETURN_IF_ERROR(CheckNotNull(array, what));
  if (count == TensorsIn(group)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`", what, "` has ", count,
                                                 " elements, but group \"", group.spec().name,
                                                 "\" has ", TensorsIn(group), " tensors"));
}

sg_contributors Converted(const Contributors& contributors) {
  return {contributors.least, contributors.most, contributors.left_out};
}

absl::Status Push(Group& group, uint32_t tensor, const void* values, size_t bytes, void* result) {
  if (result == SG_IN_PLACE) return group.Push(TensorId{tensor}, values, bytes, Group::InPlace());
  return group.Push(TensorId{tensor}, values, bytes, result);
}

absl::Status Skip(Group& group, uint32_t tensor, void* result) {
  if (result == SG_IN_PLACE) return group.Skip(TensorId{tensor}, Group::InPlace());
  return group.Skip(TensorId{tensor}, result);
}

absl::Status CopyAndPush(Group& group, uint32_t tensor, const void* values, size_t bytes,
                         void* memory) {
  return group.CopyAndPush(TensorId{tensor}, values, bytes, memory);
}

absl::Status CopyAndPushInPlace(Group& group, uint32_t tensor, const void* values, size_t bytes,
                                void* memory) {
  return group.CopyAndPush(TensorId{tensor}, values, bytes, memory, Group::InPlace());
}

// Calls `push` for each tensor that has values, and skips the others. `finished` counts the tensors
// for which this has succeeded.
absl::Status PushOrSkipMany(sg_group* group, const uint32_t* tensors, const void* const* values,
                            void* const* results, size_t count, size_t& finished,
                            absl::FunctionRef<decltype(Push)> push) {
  SYNCGRADS_RETURN_IF_ERROR(CheckUsable(group));
  if (count > 0) {
    SYNCGRADS_RETURN_IF_ERROR(CheckNotNull(tensors, "tensors"));
    SYNCGRADS_RETURN_IF_ERROR(CheckNotNull(values, "values"));
  }
  const SignalsBlocked blocked;
  for (; finished < count; ++finished) {
    const uint32_t tensor = tensors[finished];
    SYNCGRADS_RETURN_IF_ERROR(CheckTensor(group->group, tensor));
    void* const result = results == nullptr ? nullptr : results[finished];
    if (values[finished] == nullptr) {
      SYNCGRADS_RETURN_IF_ERROR(Skip(group->group, tensor, result));
    } else {
      const size_t bytes = group->group.layout().tensor(TensorId{tensor}).bytes();
      SYNCGRADS_RETURN_IF_ERROR(push(group->group, tensor, values[finished], bytes, result));
    }
  }
  return absl::OkStatus();
}

uint32_t SlotsOf(const Group& group) {
  const auto* optimizer = std::get_if<syncgrads::Optimizer>(&group.spec().rule);
  return optimizer == nullptr ? 0 : static_cast<uint32_t>(syncgrads::SlotCount(*optimizer));
}

// Checks that `state` has room for, or consists of, the state of the group's optimizer.
absl::StatusOr<sg_optimizer_state> CheckedState(const Group& group,
                                                const sg_optimizer_state* state) {
  SYNCGRADS_ASSIGN_OR_RETURN(const sg_optimizer_state checked, CopyIn(state));
  SYNCGRADS_RETURN_IF_ERROR(CheckOneForEach(group, "updates", checked.updates, checked.tensors));
  if (checked.slots != SlotsOf(group)) {
    return absl::InvalidArgumentError(absl::StrCat("the state has ", checked.slots,
                                                   " slots, but the optimizer of group \"",
                                                   group.spec().name, "\" has ", SlotsOf(group)));
  }
  if (checked.slots > 0) SYNCGRADS_RETURN_IF_ERROR(CheckNotNull(checked.values, "values"));
  for (size_t i = 0; i < size_t{checked.tensors} * checked.slots; ++i) {
    SYNCGRADS_RETURN_IF_ERROR(CheckNotNull(checked.values[i], "values[i]"));
  }
  return checked;
}

OptimizerState Copied(const Group& group, const sg_optimizer_state& state) {
  OptimizerState copy;
  for (uint32_t t = 0; t < state.tensors; ++t) {
    OptimizerState::OfTensor& tensor = copy.tensors.emplace_back();
    const size_t bytes = group.layout().tensor(TensorId{t}).bytes();
    for (uint32_t s = 0; s < state.slots; ++s) {
      const auto* slot = static_cast<const std::byte*>(state.values[size_t{t} * state.slots + s]);
      tensor.slots.emplace_back(slot, slot + bytes);
    }
    tensor.updates = state.updates[t];
  }
  return copy;
}

// Writes the names one after the other, each with a terminating 0, as many as fit.
void WriteNames(const std::vector<std::string>& names, char* to, size_t capacity) {
  size_t used = 0;
  for (const std::string& name : names) {
    if (to == nullptr || capacity - used < name.size() + 1) return;
    std::memcpy(to + used, name.c_str(), name.size() + 1);
    used += name.size() + 1;
  }
}

}  // namespace

int sg_register(sg_client* client, const char* spec, double timeout, sg_group** group,
                char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(client));
    SYNCGRADS_RETURN_IF_ERROR(CheckNotNull(group, "group"));
    SYNCGRADS_ASSIGN_OR_RETURN(const absl::Duration limit, TimeoutOf(timeout));
    SYNCGRADS_ASSIGN_OR_RETURN(const syncgrads::GroupSpec parsed, syncgrads::c::ParseGroup(spec));
    absl::StatusOr<Group*> registered = nullptr;
    CallWithoutSignals([&] { registered = client->client->Register(parsed, limit); });
    SYNCGRADS_RETURN_IF_ERROR(registered.status());
    *group = client->HandleOf(*registered);
    return absl::OkStatus();
  });
}

int sg_find_tensor(const sg_group* group, const char* name, uint32_t* tensor, char* message,
                   size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(group));
    SYNCGRADS_RETURN_IF_ERROR(CheckNotNull(name, "name"));
    SYNCGRADS_ASSIGN_OR_RETURN(const TensorId found, group->group.Find(name));
    if (tensor != nullptr) *tensor = ToNumber(found);
    return absl::OkStatus();
  });
}

uint64_t sg_step(const sg_group* group) {
  return ValueOf(uint64_t{0}, [&] { return CheckUsable(group).ok() ? group->group.step() : 0; });
}

uint64_t sg_steps_behind(const sg_group* group) {
  return ValueOf(uint64_t{0},
                 [&] { return CheckUsable(group).ok() ? group->group.steps_behind() : 0; });
}

double sg_learning_rate_factor(const sg_group* group) {
  return ValueOf(1.0,
                 [&] { return CheckUsable(group).ok() ? group->group.learning_rate_factor() : 1; });
}

int sg_set_weight(sg_group* group, double weight, char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(group));
    return group->group.SetWeight(weight);
  });
}

int sg_send_uncompressed(sg_group* group, char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(group));
    group->group.SendUncompressed();
    return absl::OkStatus();
  });
}

int sg_push(sg_group* group, uint32_t tensor, const void* values, size_t bytes, void* result,
            char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(group));
    const SignalsBlocked blocked;
    return Push(group->group, tensor, values, bytes, result);
  });
}

int sg_skip(sg_group* group, uint32_t tensor, void* result, char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(group));
    const SignalsBlocked blocked;
    return Skip(group->group, tensor, result);
  });
}

int sg_push_many(sg_group* group, const uint32_t* tensors, const void* const* values,
                 void* const* results, size_t count, size_t* done, char* message,
                 size_t message_size) {
  size_t finished = 0;
  const int code = Answer(message, message_size, [&] {
    return PushOrSkipMany(group, tensors, values, results, count, finished, Push);
  });
  if (done != nullptr) *done = finished;
  return code;
}

int sg_copy_and_push_many(sg_group* group, const uint32_t* tensors, const void* const* values,
                          void* const* memory, int in_place, size_t count, size_t* done,
                          char* message, size_t message_size) {
  size_t finished = 0;
  const int code = Answer(message, message_size, [&]() -> absl::Status {
    if (count > 0) SYNCGRADS_RETURN_IF_ERROR(CheckNotNull(memory, "memory"));
    return PushOrSkipMany(group, tensors, values, memory, count, finished,
                          in_place != 0 ? CopyAndPushInPlace : CopyAndPush);
  });
  if (done != nullptr) *done = finished;
  return code;
}

int sg_wait(sg_group* group, uint32_t tensor, double timeout, sg_contributors* contributors,
            char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(group));
    SYNCGRADS_ASSIGN_OR_RETURN(const absl::Duration limit, TimeoutOf(timeout));
    Contributors counted;
    SYNCGRADS_RETURN_IF_ERROR(WaitWithoutSignals(limit, [&](absl::Duration most) -> absl::Status {
      SYNCGRADS_ASSIGN_OR_RETURN(counted, group->group.Wait(TensorId{tensor}, most));
      return absl::OkStatus();
    }));
    if (contributors != nullptr) *contributors = Converted(counted);
    return absl::OkStatus();
  });
}

int sg_next_completion(sg_group* group, double timeout, uint32_t* tensor,
                       sg_contributors* contributors, char* message, size_t message_size) {
  uint32_t next = std::numeric_limits<uint32_t>::max();
  const int code = Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(group));
    SYNCGRADS_ASSIGN_OR_RETURN(const absl::Duration limit, TimeoutOf(timeout));
    const absl::Time deadline = MonotonicNow() + limit;
    // Waits only: nothing is sent that could start a thread.
    SYNCGRADS_ASSIGN_OR_RETURN(const TensorId completed, group->group.NextCompletion(limit));
    next = ToNumber(completed);
    // The result may have arrived before the epoch that it belongs to.
    Contributors counted;
    SYNCGRADS_RETURN_IF_ERROR(
        WaitWithoutSignals(deadline - MonotonicNow(), [&](absl::Duration most) -> absl::Status {
          SYNCGRADS_ASSIGN_OR_RETURN(counted, group->group.Wait(completed, most));
          return absl::OkStatus();
        }));
    if (contributors != nullptr) *contributors = Converted(counted);
    return absl::OkStatus();
  });
  if (tensor != nullptr) *tensor = next;
  return code;
}

int sg_wait_step(sg_group* group, double timeout, sg_contributors* contributors, size_t count,
                 char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(group));
    if (contributors != nullptr) {
      SYNCGRADS_RETURN_IF_ERROR(CheckOneForEach(group->group, "contributors", contributors, count));
    }
    SYNCGRADS_ASSIGN_OR_RETURN(const absl::Duration limit, TimeoutOf(timeout));
    std::vector<Contributors> counted;
    SYNCGRADS_RETURN_IF_ERROR(WaitWithoutSignals(limit, [&](absl::Duration most) -> absl::Status {
      SYNCGRADS_ASSIGN_OR_RETURN(counted, group->group.WaitStep(most));
      return absl::OkStatus();
    }));
    for (size_t t = 0; contributors != nullptr && t < count; ++t) {
      contributors[t] = Converted(counted[t]);
    }
    return absl::OkStatus();
  });
}

int sg_is_step_answered(const sg_group* group) {
  return ValueOf(0,
                 [&] { return CheckUsable(group).ok() && group->group.IsStepAnswered() ? 1 : 0; });
}

int sg_get_result(const sg_group* group, uint32_t tensor, sg_piece* pieces, size_t capacity,
                  size_t* count, char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(group));
    SYNCGRADS_RETURN_IF_ERROR(CheckNotNull(count, "count"));
    SYNCGRADS_ASSIGN_OR_RETURN(const auto result, group->group.InPlaceResult(TensorId{tensor}));
    for (size_t p = 0; pieces != nullptr && p < std::min(capacity, result.size()); ++p) {
      pieces[p] = {result[p].data(), result[p].size()};
    }
    *count = result.size();
    return absl::OkStatus();
  });
}

int sg_use_results(sg_group* group, const uint32_t* tensors, void** places, size_t count,
                   char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(group));
    if (count == 0) return absl::OkStatus();
    SYNCGRADS_RETURN_IF_ERROR(CheckNotNull(tensors, "tensors"));
    SYNCGRADS_RETURN_IF_ERROR(CheckNotNull(places, "places"));
    std::vector<TensorId> ids(count);
    for (size_t i = 0; i < count; ++i) ids[i] = TensorId{tensors[i]};
    return group->group.UseResults(ids, absl::MakeSpan(places, count));
  });
}

int sg_end(sg_group* group, double timeout, char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(group));
    SYNCGRADS_ASSIGN_OR_RETURN(const absl::Duration limit, TimeoutOf(timeout));
    absl::Status ended;
    CallWithoutSignals([&] { ended = group->group.End(limit); });
    return ended;
  });
}

int sg_register_state(sg_group* group, const sg_tensor* state, size_t count, double timeout,
                      int* received, char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(group));
    if (count > 0) SYNCGRADS_RETURN_IF_ERROR(CheckNotNull(state, "state"));
    SYNCGRADS_ASSIGN_OR_RETURN(const absl::Duration limit, TimeoutOf(timeout));
    SYNCGRADS_ASSIGN_OR_RETURN(const auto tensors, syncgrads::c::TensorsOf(state, count));
    absl::StatusOr<bool> newcomer = false;
    CallWithoutSignals([&] { newcomer = group->group.RegisterState(tensors, limit); });
    SYNCGRADS_RETURN_IF_ERROR(newcomer.status());
    if (received != nullptr) *received = *newcomer ? 1 : 0;
    return absl::OkStatus();
  });
}

int sg_begin_step(sg_group* group, sg_step_members* members, char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(group));
    SYNCGRADS_ASSIGN_OR_RETURN(const syncgrads::StepMembers step, group->group.BeginStep());
    if (members != nullptr) *members = {step.epoch, step.rank, step.world_size};
    return absl::OkStatus();
  });
}

int sg_restart_step(sg_group* group, double timeout, char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(group));
    SYNCGRADS_ASSIGN_OR_RETURN(const absl::Duration limit, TimeoutOf(timeout));
    absl::Status restarted;
    CallWithoutSignals([&] { restarted = group->group.RestartStep(limit); });
    return restarted;
  });
}

int sg_last_step(const sg_group* group, double timeout, sg_outcome* outcome, char* message,
                 size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(group));
    SYNCGRADS_ASSIGN_OR_RETURN(sg_outcome out, CopyIn(outcome));
    SYNCGRADS_ASSIGN_OR_RETURN(const absl::Duration limit, TimeoutOf(timeout));
    SYNCGRADS_ASSIGN_OR_RETURN(const syncgrads::StepOutcome last, group->group.LastStep(limit));
    out.step = last.step;
    out.epoch = last.epoch;
    out.world_size = static_cast<uint32_t>(last.members.size());
    out.contributors = static_cast<uint32_t>(last.contributors.size());
    out.whole = last.whole;
    for (size_t c = 0;
         out.ranks != nullptr && c < std::min<size_t>(out.ranks_capacity, out.contributors); ++c) {
      out.ranks[c] = last.contributors[c];
    }
    WriteNames(last.members, out.names, out.names_capacity);
    return syncgrads::c::CopyOut(out, outcome);
  });
}

uint32_t sg_optimizer_slots(const sg_group* group) {
  return ValueOf(uint32_t{0}, [&] { return CheckUsable(group).ok() ? SlotsOf(group->group) : 0; });
}

int sg_take_snapshot(sg_group* group, double timeout, sg_snapshot** snapshot, char* message,
                     size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(group));
    SYNCGRADS_RETURN_IF_ERROR(CheckNotNull(snapshot, "snapshot"));
    SYNCGRADS_ASSIGN_OR_RETURN(const absl::Duration limit, TimeoutOf(timeout));
    absl::StatusOr<std::unique_ptr<syncgrads::OptimizerSnapshot>> taken;
    CallWithoutSignals([&] { taken = group->group.SnapshotOptimizer(limit); });
    SYNCGRADS_RETURN_IF_ERROR(taken.status());
    *snapshot = new sg_snapshot{group->owner, group->group, *std::move(taken)};
    return absl::OkStatus();
  });
}

int sg_read_snapshot(sg_snapshot* snapshot, const sg_optimizer_state* state, char* message,
                     size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(snapshot));
    SYNCGRADS_ASSIGN_OR_RETURN(const sg_optimizer_state to, CheckedState(snapshot->group, state));
    SYNCGRADS_ASSIGN_OR_RETURN(const OptimizerState read, snapshot->snapshot->Read());
    for (uint32_t t = 0; t < to.tensors; ++t) {
      for (uint32_t s = 0; s < to.slots; ++s) {
        const std::vector<std::byte>& slot = read.tensors[t].slots[s];
        std::memcpy(to.values[size_t{t} * to.slots + s], slot.data(), slot.size());
      }
      to.updates[t] = read.tensors[t].updates;
    }
    return absl::OkStatus();
  });
}

void sg_free_snapshot(sg_snapshot* snapshot) {
  Answer(nullptr, 0, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(snapshot));
    const SignalsBlocked blocked;
    delete snapshot;
    return absl::OkStatus();
  });
}

int sg_broadcast_parameters(sg_group* group, uint32_t root, void* const* tensors, size_t count,
                            const sg_optimizer_state* state, double timeout, char* message,
                            size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(group));
    SYNCGRADS_RETURN_IF_ERROR(CheckOneForEach(group->group, "tensors", tensors, count));
    SYNCGRADS_ASSIGN_OR_RETURN(const absl::Duration limit, TimeoutOf(timeout));
    const auto parameters = absl::MakeConstSpan(tensors, count);
    // A call that is repeated after a timeout continues with the state of the first one.
    if (state != nullptr && group->restored.tensors.empty()) {
      SYNCGRADS_ASSIGN_OR_RETURN(const sg_optimizer_state checked,
                                 CheckedState(group->group, state));
      group->restored = Copied(group->group, checked);
    }
    absl::Status sent;
    CallWithoutSignals([&] {
      sent = group->restored.tensors.empty()
                 ? group->group.Broadcast(root, parameters, limit)
                 : group->group.Restore(root, parameters, group->restored, limit);
    });
    return sent;
  });
}
