#include "worker/trainer/server_optimizer.h"

#include <cstddef>
#include <cstring>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/group/layout.h"
#include "common/ids.h"
#include "common/optim/optimizer.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

// A parameter: its tensor in the group, and its slots' tensors in a snapshot.
struct Slotted {
  TensorId tensor;
  std::vector<TensorSpec> slots;
};

int ServerSlots(TrainingGroup& group) {
  return SlotCount(std::get<Optimizer>(group.group().spec().rule));
}

absl::Status AddTo(const std::vector<Slotted>& parameters, OptimizerSnapshot& held,
                   Snapshot& snapshot) {
  SYNCGRADS_ASSIGN_OR_RETURN(const OptimizerState state, held.Read());
  std::vector<int64_t> counters = {static_cast<int64_t>(snapshot.manifest.step)};
  for (const Slotted& parameter : parameters) {
    const OptimizerState::OfTensor& tensor = state.tensors[ToNumber(parameter.tensor)];
    counters.push_back(static_cast<int64_t>(tensor.updates));
    for (size_t slot = 0; slot < tensor.slots.size(); ++slot) {
      snapshot.training.push_back(CopyOf(parameter.slots[slot], tensor.slots[slot].data()));
    }
  }
  for (SavedTensor& tensor : snapshot.training) {
    if (tensor.spec.name == kCountersName) tensor = CopyOf(tensor.spec, counters.data());
  }
  return absl::OkStatus();
}

}  // namespace

std::function<absl::Status(Snapshot&)> AddServerOptimizer(const Replica& replica,
                                                          TrainingGroup& group,
                                                          std::shared_ptr<OptimizerSnapshot> held) {
  std::vector<Slotted> parameters;
  for (size_t i = 0; i < replica.parameters().size(); ++i) {
    Slotted& parameter = parameters.emplace_back();
    parameter.tensor = group.tensor(i);
    for (int slot = 0; slot < ServerSlots(group); ++slot) {
      parameter.slots.push_back(Replica::SlotSpec(replica.parameters()[i].spec, slot));
    }
  }
  return [parameters = std::move(parameters), held = std::move(held)](Snapshot& incomplete) {
    return AddTo(parameters, *held, incomplete);
  };
}

absl::StatusOr<OptimizerState> ServerOptimizerOf(const Snapshot& snapshot, const Replica& replica,
                                                 TrainingGroup& group,
                                                 absl::Span<const int64_t> updates) {
  const int slots = ServerSlots(group);
  OptimizerState state;
  for (const TensorSpec& spec : group.group().spec().tensors) {
    OptimizerState::OfTensor& tensor = state.tensors.emplace_back();
    tensor.slots.assign(static_cast<size_t>(slots), std::vector<std::byte>(spec.bytes()));
  }
  for (size_t i = 0; i < replica.parameters().size(); ++i) {
    OptimizerState::OfTensor& tensor = state.tensors[ToNumber(group.tensor(i))];
    tensor.updates = static_cast<uint64_t>(updates[i]);
    for (int slot = 0; slot < slots; ++slot) {
      SYNCGRADS_ASSIGN_OR_RETURN(
          const absl::string_view bytes,
          snapshot.Find(Replica::SlotSpec(replica.parameters()[i].spec, slot)));
      std::memcpy(tensor.slots[static_cast<size_t>(slot)].data(), bytes.data(), bytes.size());
    }
  }
  return state;
}

}  // namespace syncgrads
