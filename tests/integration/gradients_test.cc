// Gradients with NaNs and infinities, with real servers and workers.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

// Writes a job with three shards of three rows that fits a line through the origin. The squares of
// the second shard's gradients exceed the float32 range: the gradients of worker 1 are infinite in
// each step.
std::string WriteLineJob(const std::string& name, v1::OnBad non_finite,
                         v1::OptimizerPlacement place) {
  const std::string table = WriteTemporaryFile("line.csv",
                                               "x,y\n1,2\n2,4\n3,6\n"
                                               "1e30,1\n1e30,1\n1e30,1\n"
                                               "1,2\n2,4\n3,6\n");
  return WriteIrisJob(name, [&](v1::JobFile& job) {
    v1::DataSpec& data = *job.mutable_data();
    data.mutable_table()->set_path(table);
    data.set_target("y");
    data.set_validation_every(0);
    job.mutable_model()->clear_layers();
    job.mutable_model()->add_layers()->mutable_dense()->set_outputs(1);
    job.mutable_loss()->mutable_squared_error();
    job.mutable_optimizer()->mutable_sgd()->set_learning_rate(0.01);
    job.set_batch_size(3);
    job.set_epochs(40);
    job.set_optimizer_placement(place);
    job.set_max_skips_in_a_row(1000);
    job.mutable_gradient_checks()->set_non_finite(non_finite);
  });
}

class GradientsTest : public ::testing::Test {
 protected:
  void Run(const std::string& job) {
    for (int rank = 0; rank < 3; ++rank) {
      outputs_.push_back(TemporaryPath(absl::StrCat("trained", rank, ".safetensors")));
      workers_.push_back(cluster_.StartWorker(
          job, rank, 3,
          {absl::StrCat("--name=worker-", rank), absl::StrCat("--output=", outputs_.back())}));
    }
    for (const auto& worker : workers_) exits_.push_back(WaitFor(*worker));
  }

  // Waits for the server's warning about a gradient, which may come a moment later, and returns it.
  std::string ServerWarning() {
    const auto line = cluster_.server(0).WaitForLine("gradient \"", kLongEnough);
    EXPECT_TRUE(line.ok()) << line.status();
    return line.value_or("");
  }

  Cluster cluster_{1};
  std::vector<std::unique_ptr<Process>> workers_;
  std::vector<std::string> outputs_;
  std::vector<Exit> exits_;
};

TEST_F(GradientsTest, OneThatIsNotFiniteCostsItsSenderAnErrorAndTheOthersNothing) {
  Run(WriteLineJob("rejected", v1::ON_BAD_UNSPECIFIED, v1::WORKERS));
  EXPECT_EQ(exits_[1], ExitCode(2)) << workers_[1]->output();
  EXPECT_THAT(
      workers_[1]->output(),
      AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("gradient \"dense1/kernel\""),
            HasSubstr("worker \"worker-1\""), HasSubstr("inf at index 0"), HasSubstr("step 1")));
  for (const int rank : {0, 2}) {
    EXPECT_EQ(exits_[rank], ExitCode(0)) << workers_[rank]->output();
  }
  EXPECT_THAT(workers_[0]->output(), HasSubstr("the 2 replicas are bit-identical"));
  EXPECT_THAT(ServerWarning(), AllOf(HasSubstr("worker \"worker-1\""), HasSubstr("refused")));
}

TEST_F(GradientsTest, OneThatIsSkippedIsCountedAndTheOthersGoOn) {
  for (const v1::OptimizerPlacement place : {v1::WORKERS, v1::SERVERS}) {
    workers_.clear();
    exits_.clear();
    Run(WriteLineJob(absl::StrCat("left_out_", place), v1::SKIP, place));
    for (const Exit& exit : exits_) EXPECT_EQ(exit, ExitCode(0));
    EXPECT_THAT(workers_[0]->output(),
                AllOf(HasSubstr("the 3 replicas are bit-identical"), Not(HasSubstr("skipped"))));
    EXPECT_THAT(workers_[1]->output(),
                AllOf(HasSubstr("warning: step 1 is skipped by this worker: its gradient"),
                      HasSubstr("40 steps: 40 not finite")));
    EXPECT_THAT(ServerWarning(), AllOf(HasSubstr("worker \"worker-1\""), HasSubstr("left out")));
  }
}

}  // namespace
}  // namespace syncgrads::testing
