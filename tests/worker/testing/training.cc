#include "tests/worker/testing/training.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "worker/trainer/trainer.h"

namespace syncgrads {
namespace {

// Adds the numbers of an array of `dtype`.
void Append(DType dtype, const void* data, size_t count, std::vector<double>& to) {
  if (dtype == DType::kF64) {
    const auto* const numbers = static_cast<const double*>(data);
    to.insert(to.end(), numbers, numbers + count);
  } else {
    const auto* const numbers = static_cast<const float*>(data);
    to.insert(to.end(), numbers, numbers + count);
  }
}

absl::Status Train(const Job& job, Team& team, const std::function<bool(uint64_t)>& should_stop,
                   Trained& trained, const DeviceChoice& device) {
  const auto data = LoadDataSet(job, DataSetOptions(), team);
  if (!data.ok()) return data.status();
  NoProgress progress;
  TrainerOptions options;
  options.progress = &progress;
  options.device = device;
  Trainer* running = nullptr;
  options.should_stop = [&] { return should_stop && should_stop(running->steps()); };
  const auto trainer = Trainer::Create(job, *data, team, options);
  if (!trainer.ok()) return trainer.status();
  running = trainer->get();
  const absl::Status status = (*trainer)->Train();
  if (!status.ok()) return status;
  trained.steps[team.rank()] = (*trainer)->steps();
  trained.out_of_memory[team.rank()] = (*trainer)->skipped().out_of_memory;
  Replica& replica = (*trainer)->replica();
  std::vector<double>& all = trained.parameters[team.rank()];
  for (const NamedTensor& frozen : replica.frozen()) {
    Append(frozen.spec.dtype, frozen.data, frozen.spec.elements(), all);
  }
  for (const HostParameter& parameter : replica.parameters()) {
    Append(parameter.spec.dtype, parameter.values, parameter.gradient.elements, all);
  }
  const auto replicas = replica.Compare(team);
  if (!replicas.ok()) return replicas.status();
  const v1::DataSpec& spec = job.file.data();
  const auto held_out = replica.Evaluate(
      "held_out", spec, *data, RowsOf(data->data, spec.validation_every(), /*held_out=*/true), team,
      EvaluationOptions());
  if (!held_out.ok()) return held_out.status();
  if (team.is_master()) {
    trained.replicas = *replicas;
    const absl::Status fetched = replica.Fetch(ReplicaPart::kAll);
    if (!fetched.ok()) return fetched;
    for (const NamedTensor& slot : replica.slots()) {
      Append(slot.spec.dtype, slot.data, slot.spec.elements(), trained.slots);
    }
    for (const NamedTensor& state : replica.states()) {
      Append(state.spec.dtype, state.data, state.spec.bytes() / SizeOf(state.spec.dtype),
             trained.states);
    }
    trained.held_out = *held_out;
  }
  return absl::OkStatus();
}

}  // namespace

void TrainOne(const Job& job, Team& team, const std::function<bool(uint64_t)>& should_stop,
              Trained& trained, const DeviceChoice& device) {
  trained.statuses[team.rank()] = Train(job, team, should_stop, trained, device);
}

double LargestDifference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
  return largest;
}

}  // namespace syncgrads
