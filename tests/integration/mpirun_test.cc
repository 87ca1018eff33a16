// Workers that are started by mpirun read their rank and world size from its environment variables.

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;

ProcessOptions MpiRun(const std::vector<std::string>& args) {
  ProcessOptions options = {.program = "mpirun", .args = {"--oversubscribe", "-np", "3"}};
  options.args.insert(options.args.end(), args.begin(), args.end());
  // mpirun requires two confirmations before it runs as root. It creates its files in TMPDIR, whose
  // path must be short.
  options.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                         {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                         {"OMPI_MCA_plm_rsh_agent", "false"},
                         {"TMPDIR", "/tmp"}};
  return options;
}

TEST(MpirunTest, WorkersTakeRankAndWorldSizeFromIt) {
  Cluster cluster(1, {"--exit_when_done"});
  const std::string output = TemporaryPath("mpi.safetensors");
  const auto run = RunProgram(
      MpiRun({"worker/ps-worker", absl::StrCat("--job=", WriteIrisJob("mpi")),
              absl::StrCat("--server=", cluster.coordinator()), absl::StrCat("--output=", output)}),
      kLongEnough);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->exit, ExitCode(0)) << run->output;
  EXPECT_THAT(run->output, HasSubstr("the 3 replicas are bit-identical"));
  EXPECT_EQ(WaitFor(cluster.server(0)), ExitCode(0));
}

TEST(MpirunTest, ItsWorkersTrainAsThoseStartedByHand) {
  const std::string job = WriteIrisJob("mpi");
  Cluster cluster(1);
  const std::string by_hand = TrainOn(cluster, job, 3)[0];
  const std::string output = TemporaryPath("mpi.safetensors");
  const auto run = RunProgram(
      MpiRun({"worker/ps-worker", absl::StrCat("--job=", job),
              absl::StrCat("--server=", cluster.coordinator()), absl::StrCat("--output=", output)}),
      kLongEnough);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->exit, ExitCode(0)) << run->output;
  EXPECT_EQ(ReadFileOrDie(output), by_hand);
}

}  // namespace
}  // namespace syncgrads::testing
