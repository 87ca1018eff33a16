#include "worker/metrics/worker_metrics.h"

#include <memory>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TrainingPlan Plan() {
  return {.job = "iris", .workers = 3, .training_rows = 120, .batch_size = 8, .steps = 250};
}

StepTimes Times(absl::Duration read, absl::Duration wait) {
  return {.read = read,
          .compute = absl::Seconds(2),
          .push = absl::Milliseconds(125),
          .wait = wait,
          .apply = absl::Milliseconds(375)};
}

std::string TextOf(const WorkerMetrics& metrics) {
  MetricFamilies families;
  metrics.AddTo(families);
  return families.Text();
}

TEST(WorkerMetricsTest, CountsStepsRowsWaitsAndCheckpoints) {
  WorkerMetrics metrics;
  const std::unique_ptr<Progress> progress = metrics.ProgressOf("w0");
  progress->Started(Plan());
  progress->Used({8, Times(absl::Milliseconds(250), absl::Milliseconds(500)), 0.125});
  progress->Stepped(1, 0.75);
  progress->Used({4, Times(absl::Milliseconds(250), absl::Milliseconds(1000)), 0.0625});
  progress->Stepped(2, 0.5);
  progress->Checkpointed(true);
  progress->Checkpointed(false);
  progress->Checkpointed(true);
  const std::string text = TextOf(metrics);
  const std::string labels = "{training_job=\"iris\",worker=\"w0\"} ";
  EXPECT_THAT(text, HasSubstr("syncgrads_worker_steps_total" + labels + "2\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_worker_step" + labels + "2\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_worker_planned_steps" + labels + "250\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_worker_data_passes" + labels + "0.4\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_worker_samples_total" + labels + "12\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_worker_loss" + labels + "0.5\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_worker_learning_rate" + labels + "0.0625\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_worker_data_wait_seconds_total" + labels + "0.5\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_worker_results_wait_seconds_total" + labels + "1.5\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_worker_compute_seconds_total" + labels + "4\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_worker_push_seconds_total" + labels + "0.25\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_worker_apply_seconds_total" + labels + "0.75\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_worker_checkpoints_total{training_job=\"iris\","
                              "worker=\"w0\",result=\"written\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_worker_checkpoints_total{training_job=\"iris\","
                              "worker=\"w0\",result=\"failed\"} 1\n"));
}

TEST(WorkerMetricsTest, AStepWithoutABatchKeepsTheLastLoss) {
  WorkerMetrics metrics;
  const std::unique_ptr<Progress> progress = metrics.ProgressOf("w0");
  progress->Started(Plan());
  EXPECT_THAT(TextOf(metrics), Not(HasSubstr("syncgrads_worker_loss")));
  progress->Stepped(1, 0.75);
  progress->Stepped(2, std::nullopt);
  EXPECT_THAT(TextOf(metrics),
              HasSubstr("syncgrads_worker_loss{training_job=\"iris\",worker=\"w0\"} 0.75\n"));
}

TEST(WorkerMetricsTest, AWorkerThatJoinsAgainContinuesItsCounters) {
  WorkerMetrics metrics;
  std::unique_ptr<Progress> progress = metrics.ProgressOf("w0");
  progress->Started(Plan());
  progress->Stepped(7, 1.0);
  progress = nullptr;
  progress = metrics.ProgressOf("w0");
  progress->Started(Plan());
  progress->Stepped(5, 1.0);
  const std::string text = TextOf(metrics);
  const std::string labels = "{training_job=\"iris\",worker=\"w0\"} ";
  EXPECT_THAT(text, HasSubstr("syncgrads_worker_steps_total" + labels + "2\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_worker_step" + labels + "5\n"));
}

TEST(WorkerMetricsTest, TheProcessIsReadyWhileOneOfItsWorkersTrains) {
  WorkerMetrics metrics;
  const HttpPages pages = WorkerPages(metrics);
  EXPECT_EQ(pages.at("/livez")().status, 200);
  EXPECT_EQ(pages.at("/readyz")().status, 503);
  std::unique_ptr<Progress> one = metrics.ProgressOf("w0");
  const std::unique_ptr<Progress> two = metrics.ProgressOf("w1");
  EXPECT_EQ(pages.at("/readyz")().status, 503);
  one->Started(Plan());
  two->Started(Plan());
  EXPECT_EQ(pages.at("/readyz")().status, 200);
  one = nullptr;
  EXPECT_EQ(pages.at("/readyz")().status, 200);
  two->Finished();
  EXPECT_EQ(pages.at("/readyz")().status, 503);
  EXPECT_EQ(pages.at("/livez")().status, 200);
  EXPECT_THAT(pages.at("/metrics")().body, HasSubstr("worker=\"w1\""));
}

}  // namespace
}  // namespace syncgrads
