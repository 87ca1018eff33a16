#include "tests/worker/testing/training.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "worker/train/trainer.h"

namespace syncgrads {
namespace {

template <typename T>
absl::Status TrainAs(const Job& job, Team& team, const std::function<bool(uint64_t)>& should_stop,
                     Trained& trained, const DeviceChoice& device) {
  const auto data = LoadDataSet(job, DataSetOptions(), team);
  if (!data.ok()) return data.status();
  NoProgress progress;
  TrainerOptions options;
  options.progress = &progress;
  options.device = device;
  Trainer<T>* running = nullptr;
  options.should_stop = [&] { return should_stop && should_stop(running->steps()); };
  const auto trainer = Trainer<T>::Create(job, *data, team, options);
  if (!trainer.ok()) return trainer.status();
  running = trainer->get();
  const absl::Status status = (*trainer)->Train();
  if (!status.ok()) return status;
  trained.steps[team.rank()] = (*trainer)->steps();
  for (const Parameter<T>* parameter : (*trainer)->model().parameters()) {
    for (Eigen::Index i = 0; i < parameter->values.size(); ++i) {
      trained.parameters[team.rank()].push_back(parameter->values.data()[i]);
    }
  }
  const auto replicas = CompareReplicas((*trainer)->model().parameters(), team);
  if (!replicas.ok()) return replicas.status();
  EvaluationSource<T> source =
      MakeEvaluationSource<T>(job.file, job.file.data(), *data, team.world_size(), device);
  const auto held_out =
      Evaluate("held_out", (*trainer)->model(), (*trainer)->loss(), source,
               RowsOf(data->data, job.file.data().validation_every(), /*held_out=*/true), team);
  if (!held_out.ok()) return held_out.status();
  if (team.is_master()) {
    trained.replicas = *replicas;
    const absl::Status fetched = (*trainer)->model().FetchStates();
    if (!fetched.ok()) return fetched;
    for (const Parameter<T>* state : (*trainer)->model().states()) {
      trained.states.insert(trained.states.end(), state->values.data(),
                            state->values.data() + state->values.size());
    }
    trained.held_out = *held_out;
  }
  return absl::OkStatus();
}

}  // namespace

void TrainOne(const Job& job, Team& team, const std::function<bool(uint64_t)>& should_stop,
              Trained& trained, const DeviceChoice& device) {
  trained.statuses[team.rank()] = job.file.dtype() == v1::F64
                                      ? TrainAs<double>(job, team, should_stop, trained, device)
                                      : TrainAs<float>(job, team, should_stop, trained, device);
}

double LargestDifference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
  return largest;
}

}  // namespace syncgrads
