// Workers that are started by mpirun read their rank and world size from its environment variables.

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;

class MpirunTest : public ::testing::Test {
 protected:
  MpirunTest() { EXPECT_NE(mkdtemp(directory_.data()), nullptr) << directory_; }
  ~MpirunTest() override { std::filesystem::remove_all(directory_); }

  ProcessOptions MpiRun(const std::vector<std::string>& args) const {
    ProcessOptions options = {.program = "mpirun", .args = {"--oversubscribe", "-np", "3"}};
    options.args.insert(options.args.end(), args.begin(), args.end());
    // mpirun requires two confirmations before it runs as root. It creates its files in TMPDIR, in
    // a directory that all runs of a user share. A run that ends removes this directory, also while
    // another run is about to use it, so each test has a TMPDIR of its own.
    options.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                           {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                           {"OMPI_MCA_plm_rsh_agent", "false"},
                           {"TMPDIR", directory_}};
    return options;
  }

 private:
  // The path must be short, so it is not in the test's temporary folder.
  std::string directory_ = "/tmp/mpi-XXXXXX";
};

TEST_F(MpirunTest, WorkersTakeRankAndWorldSizeFromIt) {
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

TEST_F(MpirunTest, ItsWorkersTrainAsThoseStartedByHand) {
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
