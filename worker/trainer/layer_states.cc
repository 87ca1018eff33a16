#include "worker/trainer/layer_states.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/status_macros.h"
#include "worker/batches/data_set.h"

namespace syncgrads {
namespace {

// Returns the number that Gather adds behind a worker's states.
uint64_t RecencyOf(const std::string& states) {
  uint64_t recency;
  std::memcpy(&recency, &states[states.size() - sizeof(recency)], sizeof(recency));
  return recency;
}

// Sets `mean` to the mean of the `count` numbers at `offset` of the workers' states, over those
// with this recency. The sums are in double.
template <typename T>
void FindMean(const std::vector<std::string>& states, uint64_t recency, size_t offset, size_t count,
              void* mean) {
  std::vector<double> sum(count);
  uint32_t workers = 0;
  for (const std::string& of_worker : states) {
    if (RecencyOf(of_worker) != recency) continue;
    ++workers;
    for (size_t i = 0; i < count; ++i) {
      T value;
      std::memcpy(&value, &of_worker[offset + i * sizeof(T)], sizeof(T));
      sum[i] += static_cast<double>(value);
    }
  }
  for (size_t i = 0; i < count; ++i) static_cast<T*>(mean)[i] = static_cast<T>(sum[i] / workers);
}

}  // namespace

std::string LayerStates::Own() const {
  std::string own;
  for (const NamedTensor& state : replica_.states()) {
    own.append(static_cast<const char*>(state.data), state.spec.bytes());
  }
  return own;
}

absl::StatusOr<std::vector<std::string>> LayerStates::Gather() {
  std::vector<std::string> states;
  if (run_.job.has_elastic() || replica_.states().empty()) return states;
  const bool rows =
      run_.data.stream != nullptr ||
      !RowsOf(run_.data.data, run_.job.data().validation_every(), /*held_out=*/false).empty();
  std::string own = Own();
  // 0: the states are the initial ones. Layers that use the batches of all workers have the same
  // states on all workers, but for those whose rows ended earlier.
  const uint64_t recency = !rows ? 0 : engine_.joins_batches() ? 1 + engine_.last_batch() : 1;
  own.append(reinterpret_cast<const char*>(&recency), sizeof(recency));
  SYNCGRADS_ASSIGN_OR_RETURN(states, run_.team.Gather("layer_states", own));
  for (const std::string& of_worker : states) {
    if (of_worker.size() == own.size()) continue;
    return absl::DataLossError(absl::StrCat("another worker's layer states have ", of_worker.size(),
                                            " bytes, must have ", own.size()));
  }
  return states;
}

void LayerStates::UseMean(const std::vector<std::string>& states) {
  if (states.empty()) return;
  uint64_t newest = 0;
  for (const std::string& of_worker : states) newest = std::max(newest, RecencyOf(of_worker));
  size_t offset = 0;  // in the states of each worker
  for (const NamedTensor& state : replica_.states()) {
    const size_t bytes = state.spec.bytes();
    if (state.spec.dtype == DType::kF64) {
      FindMean<double>(states, newest, offset, bytes / sizeof(double), state.data);
    } else {
      FindMean<float>(states, newest, offset, bytes / sizeof(float), state.data);
    }
    offset += bytes;
  }
  replica_.UploadStates();
}

absl::Status LayerStates::Use(const std::string& own) {
  // The device may still read the host's values that are replaced here.
  SYNCGRADS_RETURN_IF_ERROR(replica_.Finish());
  size_t offset = 0;
  for (const NamedTensor& state : replica_.states()) {
    std::memcpy(state.data, &own[offset], state.spec.bytes());
    offset += state.spec.bytes();
  }
  replica_.UploadStates();
  return absl::OkStatus();
}

absl::Status LayerStates::UseMeanForGood() {
  SYNCGRADS_RETURN_IF_ERROR(replica_.Fetch(ReplicaPart::kStates));
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> states, Gather());
  SYNCGRADS_RETURN_IF_ERROR(replica_.Finish());
  UseMean(states);
  return absl::OkStatus();
}

}  // namespace syncgrads
