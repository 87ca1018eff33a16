// A data set on a real S3 server, from the job file to a trained model.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"
#include "tests/worker/storage/s3_fixture.h"

namespace syncgrads {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class S3JobTest : public S3Test {
 protected:
  // Uploads every file below `folder` to the bucket, under `prefix`.
  void PutFolder(const std::string& folder, const std::string& prefix) {
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (!entry.is_regular_file()) continue;
      Put(absl::StrCat(prefix, "/", fs::relative(entry.path(), folder).string()),
          testing::ReadFileOrDie(entry.path().string()));
    }
  }

  absl::StatusOr<testing::Finished> Launch(const std::string& job, const std::string& secret) {
    return testing::RunProgram(
        {.program = "worker/launch/ps-launch",
         .args = {absl::StrCat("--job=", job), "--server_program=server/ps-server",
                  "--worker_program=worker/ps-worker"},
         .environment = {{"AWS_ACCESS_KEY_ID", kAccount},
                         {"AWS_SECRET_ACCESS_KEY", secret},
                         {"AWS_ENDPOINT_URL_S3", endpoint()}}},
        testing::kLongEnough);
  }
};

TEST_F(S3JobTest, ANetworkLearnsFromImagesInABucketThatIsOftenBusy) {
  const std::string folder = directory_.path() + "/digits";
  fs::create_directories(folder);
  const auto made = testing::RunProgram({.program = "examples/imagenet/digits_folder",
                                         .args = {"examples/digits/digits.csv.gz", folder}},
                                        testing::kLongEnough);
  ASSERT_TRUE(made.ok() && made->exit == testing::ExitCode(0)) << made->output;
  PutFolder(folder, "sets/digits");

  // The job of the example, with the image folder in the bucket.
  const std::string job = testing::WriteTemporaryFile(
      "digits.job",
      absl::StrCat(absl::StrReplaceAll(testing::ReadFileOrDie("examples/imagenet/digits.job"),
                                       {{"path: \"digits\"", "path: \".\""},
                                        {"epochs: 6", "epochs: 1"},
                                        {"data {", "data { set: \"digits\""}}),
                   "data_sets { name: \"digits\" s3 { bucket: \"", kBucket,
                   "\" prefix: \"sets/digits\" cache: \"cache\" } }\n"));
  // No request is refused more than once: the workers read in parallel, and one request that met
  // six refusals in a row would rightly end its worker.
  std::deque<Fault> faults;
  for (size_t i = 0; i < 20; ++i) {
    faults.push_back({Fault::kBusyOnce});
    faults.push_back({Fault::kCut, 3'000 + 4'000 * i});
  }
  proxy_->Inject(faults);
  const auto run = Launch(job, kAccount);
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_EQ(run->exit, testing::ExitCode(0)) << run->output;
  EXPECT_THAT(run->output, HasSubstr("the 2 replicas are bit-identical"));
  EXPECT_THAT(run->output, Not(HasSubstr("skipped")));

  const auto refused = Launch(job, "wrong secret");
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_NE(refused->exit, testing::ExitCode(0));
  EXPECT_THAT(refused->output, HasSubstr("s3://data-sets/sets/digits/"));
  EXPECT_THAT(refused->output, HasSubstr("SignatureDoesNotMatch"));
  EXPECT_THAT(refused->output, Not(HasSubstr("wrong secret")));
}

}  // namespace
}  // namespace syncgrads
