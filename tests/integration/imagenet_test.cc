// The digits as JPEG files in ImageNet's layout, from the tool that writes the files to a trained
// model.

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;

// Creates the folder of JPEG files and returns the path of the job file, which lies beside it.
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

// The job is trained once for all tests.
class ImageNetTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    job_ = MakeFolder();
    // One file of worker 0 is truncated and another one is missing.
    std::filesystem::resize_file(Images() + "train/n00000002/n00000002_2.JPEG", 700);
    std::filesystem::remove(Images() + "train/n00000003/n00000003_3.JPEG");
    const auto run = Launch(job_, {"--output=" + Model()});
    ASSERT_TRUE(run.ok()) << run.status();
    trained_ = *run;
  }
  void SetUp() override { ASSERT_EQ(trained_.exit, ExitCode(0)) << trained_.output; }

  static std::string Images() { return TemporaryPath("digits/ILSVRC/Data/CLS-LOC/"); }
  static std::string Model() { return TemporaryPath("digits.safetensors"); }
  // Writes the job with `more` in its source, and returns its path.
  static std::string JobWith(const std::string& more) {
    const std::string path = "path: \"digits\"";
    std::string text = ReadFileOrDie(job_);
    text.replace(text.find(path), path.size(), absl::StrCat(path, " ", more));
    return WriteTemporaryFile("changed.job", text);
  }

  static inline std::string job_;
  static inline Finished trained_;
};

TEST_F(ImageNetTest, ANetworkLearnsFromJpegFilesAndDamagedOnesAreCountedAndNamed) {
  // The job mirrors and shifts images in training. Most digits suffer from this, so the accuracy is
  // lower than usual.
  EXPECT_GE(HeldOutAccuracy(trained_.output), 0.85) << trained_.output;
  EXPECT_THAT(trained_.output, HasSubstr("the 2 replicas are bit-identical"));
  EXPECT_THAT(trained_.output, HasSubstr("n00000002_2.JPEG: "));
  EXPECT_THAT(trained_.output, HasSubstr("n00000003_3.JPEG"));
  EXPECT_THAT(trained_.output, HasSubstr("skipped images, counted each time they were read: "));

  // A job with `damaged: REFUSED` fails instead.
  const auto refused = Launch(JobWith("damaged: REFUSED"));
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_NE(refused->exit, ExitCode(0));
  EXPECT_THAT(refused->output, HasSubstr(".JPEG"));
}

TEST_F(ImageNetTest, TheTestPartIsPredictedWithAModelOfTheTrainingPart) {
  // The test part has two of the training images, and no classes.
  std::filesystem::create_directories(Images() + "test");
  std::string list = "ImageId,PredictionString\n";
  for (const char* name : {"n00000004_4", "n00000007_7"}) {
    std::filesystem::copy_file(
        absl::StrCat(Images(), "train/", std::string(name).substr(0, 9), "/", name, ".JPEG"),
        absl::StrCat(Images(), "test/", name, ".JPEG"),
        std::filesystem::copy_options::overwrite_existing);
    absl::StrAppend(&list, name, ",\n");
  }
  std::ofstream(TemporaryPath("digits/LOC_sample_submission.csv")) << list;
  const std::string job = JobWith("part: TEST");
  const std::string predictions = TemporaryPath("test_part.csv");
  const auto predicted = RunProgram({.program = "worker/ps-worker",
                                     .args = {"--job=" + job, "--predict=" + Model(),
                                              "--predictions=" + predictions, "--world_size=1"}},
                                    kLongEnough);
  ASSERT_TRUE(predicted.ok()) << predicted.status();
  ASSERT_EQ(predicted->exit, ExitCode(0)) << predicted->output;
  const std::vector<std::string> lines =
      absl::StrSplit(ReadFileOrDie(predictions), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 3u);
  for (size_t i = 1; i < 3; ++i) {
    EXPECT_EQ(std::vector<std::string>(absl::StrSplit(lines[i], ',')).size(), 11u) << lines[i];
  }
  // There is nothing to evaluate or to train on.
  const auto evaluated =
      RunProgram({.program = "worker/ps-worker", .args = {"--job=" + job, "--evaluate=" + Model()}},
                 kLongEnough);
  ASSERT_TRUE(evaluated.ok()) << evaluated.status();
  EXPECT_NE(evaluated->exit, ExitCode(0));
  EXPECT_THAT(evaluated->output, HasSubstr("part is TEST"));
}

// Returns the lines of `output` that contain `text`, from there on.
std::vector<std::string> LinesWith(const std::string& output, const std::string& text) {
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(output, '\n')) {
    const size_t at = line.find(text);
    if (at != absl::string_view::npos) lines.emplace_back(line.substr(at));
  }
  return lines;
}

// A named pipe in the place of a file: a program that reads the file is blocked.
class BlockedFile {
 public:
  explicit BlockedFile(const std::string& path) : path_(path), contents_(ReadFileOrDie(path)) {
    std::filesystem::remove(path_);
    EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0) << path_;
  }
  // Puts the file back. Its readers have ended.
  ~BlockedFile() {
    if (pipe_ != -1) close(pipe_);
    std::filesystem::remove(path_);
    std::ofstream(path_) << contents_;
  }

  // Waits until a program reads the file.
  void AwaitReader() {
    ASSERT_TRUE(WaitUntil([&] {
      pipe_ = open(path_.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
      return pipe_ != -1;
    })) << "nothing reads "
        << path_;
  }

 private:
  const std::string path_;
  const std::string contents_;
  int pipe_ = -1;
};

// Returns the step after which a checkpoint was taken.
uint64_t StepOfCheckpoint(const std::string& directory) {
  const std::string manifest = ReadFileOrDie(directory + "/manifest.json");
  std::smatch step;
  if (!std::regex_search(manifest, step, std::regex("\"step\": *([0-9]+)"))) return 0;
  return std::stoull(step[1]);
}

// Returns the step of the first line of a validation's curve that has the highest accuracy.
uint64_t StepOfHighestTop1(const std::vector<std::string>& curve) {
  const std::regex pattern("validation after step ([0-9]+): .*top1 ([0-9.]+)");
  uint64_t best_step = 0;
  double best = -1;
  for (const std::string& line : curve) {
    std::smatch found;
    if (!std::regex_search(line, found, pattern)) {
      ADD_FAILURE() << line;
    } else if (std::stod(found[2]) > best) {
      best_step = std::stoull(found[1]);
      best = std::stod(found[2]);
    }
  }
  return best_step;
}

TEST(ImageNetRecipeTest, AStalledReaderIsNamedAndTheRunThatIsResumedEndsLikeAnUndisturbedOne) {
  MakeFolder();
  const auto job_in = [](const std::string& checkpoints, const std::string& timeout = "") {
    const std::string text =
        absl::StrReplaceAll(ReadFileOrDie("examples/imagenet/digits.job"),
                            {{"path: \"digits\"", absl::StrCat("path: \"digits\" ", timeout)},
                             {"workers: 2", "workers: 1"},
                             {"shards: 2", "shards: 1"},
                             {"order: SHUFFLED", "order: AS_IN_SOURCE partition: CONTIGUOUS"},
                             {"epochs: 6", "epochs: 1"}});
    return WriteTemporaryFile(
        checkpoints + ".job",
        absl::StrCat(text, "checkpoint { directory: \"", checkpoints, "\" every_steps: 5 }\n"));
  };
  const std::string whole = TemporaryPath("not_stalled.safetensors");
  const auto undisturbed = Launch(job_in("not_stalled"), {"--output=" + whole});
  ASSERT_TRUE(undisturbed.ok()) << undisturbed.status();
  ASSERT_EQ(undisturbed->exit, ExitCode(0)) << undisturbed->output;

  // Row 501 of the table. A fifth of the rows is held out, so it is in the thirteenth batch of 32.
  const std::vector<std::string> table =
      absl::StrSplit(ReadFileOrDie(TemporaryPath("digits/LOC_train_solution.csv")), '\n');
  const std::vector<std::string> row = absl::StrSplit(table[502], absl::ByAnyChar(", "));
  const std::string image = absl::StrCat(row[1], "/", row[0], ".JPEG");
  {
    const BlockedFile blocked(TemporaryPath("digits/ILSVRC/Data/CLS-LOC/train/" + image));
    const auto stalled = Launch(job_in("stalled", "timeout_s: 5"));
    ASSERT_TRUE(stalled.ok()) << stalled.status();
    EXPECT_NE(stalled->exit, ExitCode(0)) << stalled->output;
    EXPECT_THAT(stalled->output, HasSubstr(image + " was not read within 5s"));
  }
  const std::string model = TemporaryPath("stalled.safetensors");
  const auto resumed = Launch(job_in("stalled"), {"--resume", "--output=" + model});
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  ASSERT_EQ(resumed->exit, ExitCode(0)) << resumed->output;
  EXPECT_THAT(resumed->output, HasSubstr("resuming after step 10, from "));
  EXPECT_TRUE(ReadFileOrDie(model) == ReadFileOrDie(whole));
}

// A worker is killed in a validation. The run that is resumed ends like an undisturbed one, and the
// figures that it prints are those of the file that it writes.
TEST(ImageNetRecipeTest, TheUsualRecipeIsValidatedKilledInAValidationAndResumed) {
  MakeFolder();
  const std::string text = ReadFileOrDie("examples/imagenet/recipe.job");
  const auto job_in = [&](const std::string& checkpoints) {
    return WriteTemporaryFile(
        checkpoints + ".job",
        absl::StrReplaceAll(text, {{"\"checkpoints\"", "\"" + checkpoints + "\""}}));
  };
  const std::string whole = TemporaryPath("whole.safetensors");
  const auto undisturbed = Launch(job_in("whole"), {"--output=" + whole});
  ASSERT_TRUE(undisturbed.ok()) << undisturbed.status();
  ASSERT_EQ(undisturbed->exit, ExitCode(0)) << undisturbed->output;
  const std::vector<std::string> curve = LinesWith(undisturbed->output, "validation after step ");
  ASSERT_EQ(curve.size(), 5u) << undisturbed->output;
  EXPECT_THAT(curve, Each(ContainsRegex("val_loss .*top1 .*top3 ")));
  const std::vector<std::string> at_end = LinesWith(undisturbed->output, "validation: loss ");
  ASSERT_EQ(at_end.size(), 1u) << undisturbed->output;
  EXPECT_EQ(StepOfCheckpoint(TemporaryPath("whole/best")), StepOfHighestTop1(curve))
      << undisturbed->output;

  // 1,437 images for training: 23 steps of 2 x 32 in an epoch. The last image is rank 1's.
  const std::string job = job_in("broken");
  {
    BlockedFile image(TemporaryPath("digits/ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_00001795.JPEG"));
    Cluster cluster(1, {"--stream_grace=1s"});
    const auto survivor = cluster.StartWorker(job, 0, 2);
    const auto victim = cluster.StartWorker(job, 1, 2);
    image.AwaitReader();
    victim->Kill(SIGKILL);
    EXPECT_EQ(WaitFor(*victim), KilledBy(SIGKILL));
    EXPECT_NE(WaitFor(*survivor), ExitCode(0)) << survivor->output();
    EXPECT_THAT(survivor->output(),
                HasSubstr("a worker was lost in the validation after step 23: 1 of 2 workers"));
  }
  const std::string resumed_model = TemporaryPath("resumed.safetensors");
  const auto resumed = Launch(job, {"--resume", "--output=" + resumed_model});
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  ASSERT_EQ(resumed->exit, ExitCode(0)) << resumed->output;
  EXPECT_THAT(resumed->output, HasSubstr("resuming after step 15, from "));
  EXPECT_EQ(LinesWith(resumed->output, "validation after step "), curve);
  EXPECT_TRUE(ReadFileOrDie(resumed_model) == ReadFileOrDie(whole));

  const auto evaluated =
      RunProgram({.program = "worker/ps-worker",
                  .args = {absl::StrCat("--job=", job), "--evaluate=" + resumed_model}},
                 kLongEnough);
  ASSERT_TRUE(evaluated.ok()) << evaluated.status();
  ASSERT_EQ(evaluated->exit, ExitCode(0)) << evaluated->output;
  const std::vector<std::string> again = LinesWith(evaluated->output, "validation: loss ");
  ASSERT_EQ(again.size(), 1u) << evaluated->output;
  EXPECT_EQ(again[0].substr(again[0].find(", accuracy ")),
            at_end[0].substr(at_end[0].find(", accuracy ")));
  // Sums over other batches are rounded otherwise.
  const size_t number = std::string("validation: loss ").size();
  EXPECT_NEAR(std::stod(again[0].substr(number)), std::stod(at_end[0].substr(number)), 1e-4);
}

}  // namespace
}  // namespace syncgrads::testing
