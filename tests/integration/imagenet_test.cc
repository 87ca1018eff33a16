// The digits as JPEG files in ImageNet's layout, from the tool that makes them to a
// trained model.

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;

// The folder, and beside it the example's job.
std::string MakeFolder() {
  const std::string job =
      WriteTemporaryFile("digits.job", ReadFileOrDie("examples/imagenet/digits.job"));
  const std::string folder = TemporaryPath("digits");
  std::filesystem::create_directories(folder);
  const auto made = RunProgram({.program = "examples/imagenet/digits_folder",
                                .args = {"examples/digits/digits.csv.gz", folder}},
                               kLongEnough);
  EXPECT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->exit, ExitCode(0)) << made->output;
  return job;
}

absl::StatusOr<Finished> Launch(const std::string& job,
                                const std::vector<std::string>& flags = {}) {
  std::vector<std::string> args = {absl::StrCat("--job=", job), "--server_program=server/ps-server",
                                   "--worker_program=worker/ps-worker", "--"};
  args.insert(args.end(), flags.begin(), flags.end());
  return RunProgram({.program = "worker/launch/ps-launch", .args = args}, kLongEnough);
}

double HeldOutAccuracy(const std::string& output) {
  const size_t begin = output.find("accuracy ", output.find("held out: "));
  double accuracy = -1;
  if (begin == std::string::npos) return accuracy;
  return absl::SimpleAtod(output.substr(begin + 9, 6), &accuracy) ? accuracy : -1;
}

TEST(ImageNetTest, ANetworkLearnsFromJpegFilesAndDamagedOnesAreCountedAndNamed) {
  const std::string job = MakeFolder();
  const std::string images = TemporaryPath("digits/ILSVRC/Data/CLS-LOC/train/");
  // One of worker 0's is cut short, another one is gone.
  std::filesystem::resize_file(images + "n00000002/n00000002_2.JPEG", 700);
  std::filesystem::remove(images + "n00000003/n00000003_3.JPEG");
  const auto run = Launch(job);
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_EQ(run->exit, ExitCode(0)) << run->output;
  // Digits are mirrored and moved in training, which most of them do not take well.
  EXPECT_GE(HeldOutAccuracy(run->output), 0.85) << run->output;
  EXPECT_THAT(run->output, HasSubstr("the 2 replicas are bit-identical"));
  EXPECT_THAT(run->output, HasSubstr("n00000002_2.JPEG: "));
  EXPECT_THAT(run->output, HasSubstr("n00000003_3.JPEG"));
  EXPECT_THAT(run->output, HasSubstr("images skipped, each time that they were due: "));

  // Or the job says that it wants none of them.
  std::string text = ReadFileOrDie(job);
  const std::string path = "path: \"digits\"";
  text.replace(text.find(path), path.size(), path + " damaged: REFUSED");
  const auto refused = Launch(WriteTemporaryFile("refused.job", text));
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_NE(refused->exit, ExitCode(0));
  EXPECT_THAT(refused->output, HasSubstr(".JPEG"));
}

}  // namespace
}  // namespace syncgrads::testing
