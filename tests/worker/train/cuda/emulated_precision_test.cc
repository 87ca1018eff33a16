// Training in mixed precision on an emulated CUDA device: it must learn as well as in float32.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/worker/nn/cuda/emulation/emulation.h"
#include "tests/worker/testing/fake_team.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/training.h"
#include "worker/job/job_file.h"
#include "worker/nn/cuda/cuda_accelerators.h"
#include "worker/train/compute.h"

namespace syncgrads {
namespace {

// Trains one worker and returns the accuracy on the held-out rows, in per cent.
double AccuracyOf(const Job& job, const std::string& precision) {
  emulation::Configure({});
  FakeJob workers(1);
  Trained trained(1);
  workers.Run([&](Team& team) {
    const auto choice = ChooseDevice("cuda:0", precision, 0, CudaAccelerators());
    ASSERT_TRUE(choice.ok()) << choice.status();
    TrainOne(job, team, nullptr, trained, *choice);
  });
  SYNCGRADS_EXPECT_OK(trained.statuses[0]);
  const Evaluation& held_out = trained.held_out;
  EXPECT_TRUE(held_out.correct.has_value());
  return 100 * static_cast<double>(*held_out.correct) / static_cast<double>(held_out.rows);
}

// A row is worth about 0.3 points, and rounding changes which rows are wrong: on one machine bf16
// was 0.3 and 0.7 points better. So this finds only training that does not converge as in float32.
void ExpectLearnsAsWell(const Job& job) {
  const double exact = AccuracyOf(job, "f32");
  const double mixed = AccuracyOf(job, "bf16");
  testing::Test::RecordProperty("f32", absl::StrCat(exact));
  testing::Test::RecordProperty("bf16", absl::StrCat(mixed));
  EXPECT_GT(exact, 90);
  EXPECT_GT(mixed, exact - 1);
}

TEST(EmulatedPrecisionTest, DigitsAreLearntAsWellInBf16) {
  auto job = LoadJobFile("examples/digits/digits.job");
  SYNCGRADS_ASSERT_OK(job);
  job->file.set_epochs(4);
  ExpectLearnsAsWell(*job);
}

TEST(EmulatedPrecisionTest, AFolderOfImagesIsLearntAsWellInBf16) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "digits";
  std::filesystem::create_directories(folder);
  const std::string command = absl::StrCat(
      "examples/imagenet/digits_folder examples/digits/digits.csv.gz ", folder.string());
  ASSERT_EQ(std::system(command.c_str()), 0);
  auto job = LoadJobFile("examples/imagenet/digits.job");
  SYNCGRADS_ASSERT_OK(job);
  v1::ImageNetSource& source = *job->file.mutable_data()->mutable_imagenet();
  source.set_path(folder.string());
  // All epochs of the job file: when training has not converged, the two differ by two rows either
  // way, depending on the epoch.
  ExpectLearnsAsWell(*job);
}

}  // namespace
}  // namespace syncgrads
