// The parts of a trainer for one worker of a small job, without a Trainer.

#ifndef SYNCGRADS_TESTS_WORKER_TRAINER_IRIS_RUN_H_
#define SYNCGRADS_TESTS_WORKER_TRAINER_IRIS_RUN_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/worker/testing/status.h"
#include "worker/batches/data_set.h"
#include "worker/job/job_file.h"
#include "worker/team/team.h"
#include "worker/trainer/model_parts.h"
#include "worker/trainer/plan.h"
#include "worker/trainer/trainer_options.h"
#include "worker/trainer/training_run.h"

namespace syncgrads {

// Parses an Iris job with float64 numbers. `model` has the layers, `more` the other fields.
inline Job IrisJob(const std::string& model, const std::string& more = "") {
  auto job = ParseJobFile(absl::StrCat(R"(
          name: "iris" seed: 1 dtype: F64 batch_size: 12 epochs: 2 threads: 1
          data { table { path: "iris.csv" } target: "class" shards: 3 validation_every: 5 }
          model { )",
                                       model, R"( layers { dense { outputs: 3 } } }
          loss { logit_cross_entropy {} } optimizer { sgd { learning_rate: 0.1 } } )",
                                       more),
                          "examples/iris/x.job");
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

// A run with its model. The constructor is a collective of `team`.
struct IrisRun {
  IrisRun(Job the_job, Team& team, TrainerOptions the_options = TrainerOptions())
      : job(std::move(the_job)), options(std::move(the_options)) {
    if (options.progress == nullptr) options.progress = &progress;
    auto loaded = LoadDataSet(job, DataSetOptions(), team);
    SYNCGRADS_EXPECT_OK(loaded);
    data = *std::move(loaded);
    auto batches = MakeBatches(job.file, data, OwnersOf(job.file, team, options));
    SYNCGRADS_EXPECT_OK(batches);
    run = std::make_unique<TrainingRun>(job.file, data, team, options, *std::move(batches));
    auto made = MakeModelParts(*run);
    SYNCGRADS_EXPECT_OK(made);
    parts = *std::move(made);
    SYNCGRADS_EXPECT_OK(MakePlan(*run, team));
    SYNCGRADS_EXPECT_OK(parts.replica->UploadAll());
  }

  Replica& replica() { return *parts.replica; }
  GradientEngine& engine() { return *parts.engine; }

  // The gradients on the host, one after the other.
  std::vector<double> Gradients() {
    std::vector<double> all;
    for (const HostParameter& parameter : replica().parameters()) {
      const auto* const values = reinterpret_cast<const double*>(parameter.gradient.data);
      all.insert(all.end(), values, values + parameter.gradient.elements);
    }
    return all;
  }

  const Job job;
  NoProgress progress;
  TrainerOptions options;
  DataSet data;
  std::unique_ptr<TrainingRun> run;
  ModelParts parts;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_TRAINER_IRIS_RUN_H_
