#include "client/rounds/optimizer_state.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/optim/optimizer.h"
#include "common/status_macros.h"

namespace syncgrads::client {
namespace {

size_t SlotsOf(const GroupPlan& plan) {
  return static_cast<size_t>(SlotCount(std::get<Optimizer>(plan.spec.rule)));
}

class Held : public OptimizerSnapshot {
 public:
  Held(std::shared_ptr<const GroupPlan> plan, std::vector<std::unique_ptr<OptimizerReader>> readers)
      : plan_(std::move(plan)), readers_(std::move(readers)) {}

  absl::StatusOr<OptimizerState> Read() override {
    OptimizerState state;
    for (const TensorSpec& tensor : plan_->layout.tensors()) {
      OptimizerState::OfTensor& of_tensor = state.tensors.emplace_back();
      of_tensor.slots.assign(SlotsOf(*plan_), std::vector<std::byte>(tensor.bytes()));
    }
    std::vector<bool> taken(plan_->layout.chunks().size());
    // The readers take turns, because a server cuts a stream whose messages are not read. Each is
    // destroyed when it has been read, so that its server can release the state.
    for (size_t next = 0; !readers_.empty();) {
      next %= readers_.size();
      const absl::StatusOr<OptimizerChunk> chunk = readers_[next]->Next();
      if (absl::IsOutOfRange(chunk.status())) {
        readers_.erase(readers_.begin() + static_cast<ptrdiff_t>(next));
        continue;
      }
      SYNCGRADS_RETURN_IF_ERROR(chunk.status());
      SYNCGRADS_RETURN_IF_ERROR(Check(*chunk));
      Take(*chunk, state);
      taken[ToNumber(chunk->chunk)] = true;
      ++next;
    }
    const auto missing = std::find(taken.begin(), taken.end(), false);
    if (missing == taken.end()) return state;
    return Wrong(absl::StrCat("chunk ", missing - taken.begin(), " is missing"));
  }

 private:
  absl::Status Wrong(absl::string_view what) const {
    return absl::DataLossError(
        absl::StrCat("the optimizer's state of group \"", plan_->spec.name, "\": ", what));
  }

  absl::Status Check(const OptimizerChunk& received) const {
    const uint32_t c = ToNumber(received.chunk);
    if (c >= plan_->layout.chunks().size()) {
      return Wrong(absl::StrCat(
          "chunk ", c, " is out of range; number of chunks: ", plan_->layout.chunks().size()));
    }
    const Chunk& chunk = plan_->layout.chunk(received.chunk);
    if (received.updates.size() != chunk.spans.size() || received.slots.size() != SlotsOf(*plan_)) {
      return Wrong(absl::StrCat("chunk ", c, " has ", received.slots.size(), " slots and ",
                                received.updates.size(), " counts, but ", SlotsOf(*plan_), " and ",
                                chunk.spans.size(), " were expected"));
    }
    for (const std::string& slot : received.slots) {
      if (slot.size() == chunk.bytes()) continue;
      return Wrong(absl::StrCat("a slot of chunk ", c, " has ", slot.size(), " bytes, but ",
                                chunk.bytes(), " were expected"));
    }
    return absl::OkStatus();
  }

  void Take(const OptimizerChunk& received, OptimizerState& state) const {
    const Chunk& chunk = plan_->layout.chunk(received.chunk);
    const size_t element = SizeOf(chunk.dtype);
    for (size_t s = 0; s < chunk.spans.size(); ++s) {
      const Span& span = chunk.spans[s];
      OptimizerState::OfTensor& tensor = state.tensors[ToNumber(span.tensor)];
      tensor.updates = std::max(tensor.updates, received.updates[s]);
      for (size_t slot = 0; slot < received.slots.size(); ++slot) {
        std::memcpy(tensor.slots[slot].data() + span.tensor_offset * element,
                    received.slots[slot].data() + span.chunk_offset * element,
                    span.elements * element);
      }
    }
  }

  const std::shared_ptr<const GroupPlan> plan_;
  std::vector<std::unique_ptr<OptimizerReader>> readers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<OptimizerSnapshot>> Hold(
    std::shared_ptr<const GroupPlan> plan, std::vector<std::unique_ptr<OptimizerReader>> readers) {
  for (const std::unique_ptr<OptimizerReader>& reader : readers) {
    SYNCGRADS_RETURN_IF_ERROR(reader->AwaitHeld().status());
  }
  return std::make_unique<Held>(std::move(plan), std::move(readers));
}

absl::Status CheckState(const GroupPlan& plan, const OptimizerState& state) {
  const size_t tensors = plan.layout.tensors().size();
  if (state.tensors.size() != tensors) {
    return absl::InvalidArgumentError(
        absl::StrCat("an optimizer's state has ", state.tensors.size(),
                     " tensors, but is for group \"", plan.spec.name, "\", which has ", tensors));
  }
  for (size_t t = 0; t < tensors; ++t) {
    const TensorSpec& tensor = plan.layout.tensors()[t];
    const auto& slots = state.tensors[t].slots;
    if (slots.size() != SlotsOf(plan)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", tensor.name, "\" has ", slots.size(),
                       " slots, but its optimizer needs ", SlotsOf(plan)));
    }
    for (const std::vector<std::byte>& slot : slots) {
      if (slot.size() == tensor.bytes()) continue;
      return absl::InvalidArgumentError(absl::StrCat("a slot of tensor \"", tensor.name, "\" has ",
                                                     slot.size(), " bytes, but the tensor has ",
                                                     tensor.bytes()));
    }
  }
  return absl::OkStatus();
}

std::vector<absl::Span<const std::byte>> RestoredSpans(const Chunk& chunk,
                                                       const OptimizerState& state,
                                                       std::vector<uint64_t>& updates) {
  const size_t element = SizeOf(chunk.dtype);
  std::vector<absl::Span<const std::byte>> spans;
  const size_t slots = state.tensors[ToNumber(chunk.spans.front().tensor)].slots.size();
  for (size_t slot = 0; slot < slots; ++slot) {
    for (const Span& span : chunk.spans) {
      const std::vector<std::byte>& of_tensor = state.tensors[ToNumber(span.tensor)].slots[slot];
      spans.push_back(absl::MakeConstSpan(of_tensor).subspan(span.tensor_offset * element,
                                                             span.elements * element));
    }
  }
  updates.clear();
  for (const Span& span : chunk.spans) {
    updates.push_back(state.tensors[ToNumber(span.tensor)].updates);
  }
  spans.push_back(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(updates.data()),
                                      updates.size() * sizeof(uint64_t)));
  return spans;
}

}  // namespace syncgrads::client
