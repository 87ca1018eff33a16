#include "worker/run/operations.h"

#include <gtest/gtest.h>
#include <turbojpeg.h>

#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/worker/testing/fake_team.h"
#include "tests/worker/testing/forwarding_team.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/base/file.h"
#include "worker/io/safetensors.h"

namespace syncgrads {
namespace {

Job Iris() {
  auto job = LoadJobFile("examples/iris/iris.job");
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

TrainingResult TrainTo(const Job& job, uint32_t world_size, const std::string& output) {
  FakeJob workers(world_size);
  TrainingResult result;
  workers.Run([&](Team& team) {
    NoProgress progress;
    TrainerOptions options;
    options.progress = &progress;
    const auto trained = RunTraining(job, team, options, team.is_master() ? output : "");
    SYNCGRADS_ASSERT_OK(trained);
    if (team.is_master()) result = *trained;
  });
  return result;
}

class CountedSteps : public NoProgress {
 public:
  void Stepped(uint64_t step, std::optional<double>) override { steps = step; }
  uint64_t steps = 0;
};

std::vector<std::string> LinesOf(const std::string& path) {
  const auto contents = ReadFile(path, 1 << 20);
  EXPECT_TRUE(contents.ok()) << contents.status();
  return absl::StrSplit(*contents, '\n', absl::SkipEmpty());
}

TEST(RunTest, AModelThatIsWrittenEvaluatesAsItDidWhenTrained) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/iris.safetensors";
  const TrainingResult trained = TrainTo(Iris(), 3, path);
  ASSERT_TRUE(trained.held_out.has_value());
  SoleWorker alone;
  Job job = Iris();
  const auto evaluated = RunEvaluation(job, alone, path);
  SYNCGRADS_ASSERT_OK(evaluated);
  EXPECT_EQ(evaluated->held_out->correct, trained.held_out->correct);
  EXPECT_NEAR(evaluated->held_out->loss, trained.held_out->loss, 1e-6);
  EXPECT_EQ(evaluated->all->rows, 150u);
  EXPECT_EQ(evaluated->all->correct, *trained.held_out->correct + *trained.trained_on.correct);
}

// A grey JPEG image of 8 x 8 pixels.
std::string MakeJpeg() {
  const std::vector<unsigned char> pixels(8 * 8, 100);
  const tjhandle encoder = tjInitCompress();
  unsigned char* bytes = nullptr;
  unsigned long size = 0;  // NOLINT(google-runtime-int): the library's type
  EXPECT_EQ(
      tjCompress2(encoder, pixels.data(), 8, 0, 8, TJPF_GRAY, &bytes, &size, TJSAMP_GRAY, 90, 0),
      0);
  std::string jpeg(reinterpret_cast<const char*>(bytes), size);
  tjFree(bytes);
  tjDestroy(encoder);
  return jpeg;
}

// Writes the folders of ImageNet with these images, a_1.JPEG, a_2.JPEG, and so on, of one class.
void WriteImages(const TemporaryDirectory& directory, const std::vector<std::string>& images) {
  directory.Write("LOC_synset_mapping.txt", "n00000001 one\n");
  std::string list = "ImageId,PredictionString\n";
  for (size_t i = 0; i < images.size(); ++i) {
    const std::string name = absl::StrCat("a_", i + 1);
    absl::StrAppend(&list, name, ",n00000001 1 2 3 4\n");
    directory.Write(absl::StrCat("ILSVRC/Data/CLS-LOC/train/n00000001/", name, ".JPEG"), images[i]);
  }
  directory.Write("LOC_train_solution.csv", list);
}

TEST(RunTest, TrainingOnImagesOfWhichNoneCanBeReadIsAnError) {
  const TemporaryDirectory directory;
  WriteImages(directory, {"no image", "no image", "no image", "no image"});
  for (const bool validates : {false, true}) {
    auto job = ParseJobFile(absl::StrCat(R"(
        name: "damaged"
        data { imagenet { path: ")",
                                         directory.path(), R"(" smallest_side: 8 size: 8 }
               shards: 1 validation_every: 2 }
        model { layers { flatten {} } layers { dense { outputs: 1 } } }
        loss { sigmoid_cross_entropy {} }
        optimizer { sgd {} }
        batch_size: 2
        epochs: 2 )",
                                         validates ? "validation { every_epochs: 1 }" : ""),
                            "damaged.job");
    SYNCGRADS_ASSERT_OK(job);
    FakeJob workers(1);
    workers.Run([&](Team& team) {
      NoProgress progress;
      TrainerOptions options;
      options.progress = &progress;
      ExpectError(RunTraining(*job, team, options, ""), absl::StatusCode::kDataLoss,
                  {"none of the rows could be read", "a_1.JPEG"});
    });
  }
}

TEST(RunTest, DamagedImagesAreSkippedInStatisticsAndWhenAModelIsEvaluated) {
  const TemporaryDirectory directory;
  WriteImages(directory, {MakeJpeg(), MakeJpeg(), MakeJpeg(), "no image"});
  auto job = ParseJobFile(R"(
      name: "damaged"
      data { imagenet { path: "." smallest_side: 8 size: 8 } shards: 1 validation_every: 2 }
      model { layers { standard_scaling {} } layers { flatten {} } layers { dense { outputs: 1 } } }
      loss { sigmoid_cross_entropy {} }
      optimizer { sgd {} }
      batch_size: 2
      epochs: 1)",
                          directory.path() + "/damaged.job");
  SYNCGRADS_ASSERT_OK(job);
  const std::string path = directory.path() + "/m.safetensors";
  const TrainingResult trained = TrainTo(*job, 1, path);
  EXPECT_GT(trained.damaged.count(), 0u);
  SoleWorker alone;
  const auto evaluated = RunEvaluation(*job, alone, path);
  SYNCGRADS_ASSERT_OK(evaluated);
  EXPECT_EQ(evaluated->all->rows, 3u);
  EXPECT_EQ(evaluated->held_out->rows, 2u);
  EXPECT_EQ(evaluated->damaged.count(), 1u);
  job->file.mutable_validation()->set_every_epochs(1);
  const auto validated = RunEvaluation(*job, alone, path);
  SYNCGRADS_ASSERT_OK(validated);
  EXPECT_EQ(validated->validation->rows, 2u);
  job->file.mutable_data()->mutable_imagenet()->set_damaged(v1::ImageNetSource::REFUSED);
  job->file.clear_validation();
  ExpectError(RunEvaluation(*job, alone, path), absl::StatusCode::kDataLoss, {"a_4.JPEG"});
}

TEST(RunTest, TheRowsThatWereHeldOutAreEvaluatedWhateverTheSeedAndHoweverManyWorkersThereAre) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/iris.safetensors";
  Job job = Iris();
  job.file.mutable_data()->set_partition(v1::DataSpec::PERMUTED);
  job.file.mutable_data()->clear_shards();
  const TrainingResult trained = TrainTo(job, 3, path);
  ASSERT_TRUE(trained.held_out.has_value());
  job.file.set_seed(job.file.seed() + 1);
  for (const uint32_t world_size : {1u, 2u, 5u}) {
    FakeJob workers(world_size);
    workers.Run([&](Team& team) {
      const auto evaluated = RunEvaluation(job, team, path);
      SYNCGRADS_ASSERT_OK(evaluated);
      EXPECT_EQ(evaluated->all->rows, 150u);
      EXPECT_EQ(evaluated->held_out->rows, trained.held_out->rows);
      EXPECT_NEAR(evaluated->held_out->loss, trained.held_out->loss, 1e-6) << world_size;
    });
  }
  job.file.mutable_data()->set_shards(4);
  SoleWorker alone;
  ExpectError(RunEvaluation(job, alone, path), absl::StatusCode::kInvalidArgument,
              {path, "3 shards", "is in 4", "data.validation_every"});
  job.file.mutable_data()->set_validation_every(0);
  SYNCGRADS_EXPECT_OK(RunEvaluation(job, alone, path));
}

// A team that loses its server before the first evaluation.
class LostAtTheEnd : public ForwardingTeam {
 public:
  using ForwardingTeam::ForwardingTeam;
  absl::StatusOr<uint32_t> AllReduce(absl::string_view name, absl::Span<double> values,
                                     Reduction reduction, bool contribute) override {
    if (absl::StartsWith(name, "evaluation/")) return absl::UnavailableError("no server");
    return ForwardingTeam::AllReduce(name, values, reduction, contribute);
  }
};

TEST(RunTest, TheModelIsWrittenEvenIfItCannotBeEvaluated) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/iris.safetensors";
  FakeJob workers(1);
  workers.Run([&](Team& team) {
    LostAtTheEnd lost(team);
    NoProgress progress;
    TrainerOptions options;
    options.progress = &progress;
    ExpectError(RunTraining(Iris(), lost, options, path), absl::StatusCode::kUnavailable,
                {"no server"});
  });
  SoleWorker alone;
  const auto evaluated = RunEvaluation(Iris(), alone, path);
  SYNCGRADS_ASSERT_OK(evaluated);
  EXPECT_EQ(evaluated->all->rows, 150u);
  EXPECT_GT(*evaluated->all->correct, 75u);  // of three classes
}

TEST(RunTest, AnOutputThatCannotBeWrittenIsAnErrorBeforeTheFirstStep) {
  const TemporaryDirectory directory;
  const auto train_to = [](const std::string& output) {
    absl::StatusOr<TrainingResult> trained;
    uint64_t steps = 0;
    FakeJob workers(1);
    workers.Run([&](Team& team) {
      CountedSteps progress;
      TrainerOptions options;
      options.progress = &progress;
      trained = RunTraining(Iris(), team, options, output);
      steps = progress.steps;
    });
    EXPECT_EQ(steps, 0u);
    return trained.status();
  };
  ExpectError(train_to(directory.path() + "/none/m.safetensors"), absl::StatusCode::kNotFound,
              {"/none/m.safetensors"});
  ExpectError(train_to(directory.path()), absl::StatusCode::kInvalidArgument, {directory.path()});
}

TEST(RunTest, PredictionsThatCannotBeWrittenAreNotMade) {
  const TemporaryDirectory directory;
  SoleWorker alone;
  const std::string output = directory.path() + "/none/p.csv";
  // The model, which is read next, does not exist either.
  ExpectError(RunPrediction(Iris(), alone, directory.path() + "/m.safetensors", output),
              absl::StatusCode::kNotFound, {"/none/p.csv"});
}

TEST(RunTest, PredictionsAreInTheOrderOfTheRowsHoweverManyWorkersThereAre) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/iris.safetensors";
  const TrainingResult trained = TrainTo(Iris(), 3, path);
  SoleWorker alone;
  SYNCGRADS_ASSERT_OK(RunPrediction(Iris(), alone, path, directory.path() + "/one.csv"));
  FakeJob workers(2);
  workers.Run([&](Team& team) {
    Job job = Iris();
    job.file.mutable_data()->set_partition(v1::DataSpec::PERMUTED);
    SYNCGRADS_EXPECT_OK(RunPrediction(job, team, path, directory.path() + "/two.csv"));
  });
  const auto lines = LinesOf(directory.path() + "/one.csv");
  EXPECT_EQ(LinesOf(directory.path() + "/two.csv"), lines);
  ASSERT_EQ(lines.size(), 151u);
  Job dropping = Iris();
  dropping.file.mutable_data()->set_shards(4);
  dropping.file.mutable_data()->set_split(v1::DataSpec::DROP_REMAINDER);
  SYNCGRADS_ASSERT_OK(RunPrediction(dropping, alone, path, directory.path() + "/four.csv"));
  EXPECT_EQ(LinesOf(directory.path() + "/four.csv").size(), lines.size());
  EXPECT_EQ(lines[0], "class,Iris-setosa,Iris-versicolor,Iris-virginica");
  const auto rows = LinesOf("examples/iris/iris.csv");
  uint64_t correct = 0;
  for (size_t i = 1; i < rows.size(); ++i) {
    const std::vector<std::string> cells = absl::StrSplit(rows[i], ',');
    if (absl::StartsWith(lines[i], cells.back() + ",")) ++correct;
  }
  EXPECT_EQ(correct, *trained.held_out->correct + *trained.trained_on.correct);

  // The class is that of the highest probability, which is below its name in the header.
  const std::vector<std::string> header = absl::StrSplit(lines[0], ',');
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> cells = absl::StrSplit(lines[i], ',');
    ASSERT_EQ(cells.size(), 4u);
    size_t highest = 1;
    double sum = 0;
    for (size_t column = 1; column < cells.size(); ++column) {
      const double probability = std::stod(cells[column]);
      EXPECT_GE(probability, 0) << lines[i];
      sum += probability;
      if (probability > std::stod(cells[highest])) highest = column;
    }
    EXPECT_NEAR(sum, 1, 1e-6) << lines[i];
    EXPECT_EQ(cells[0], header[highest]) << lines[i];
  }
}

TEST(RunTest, PredictionNeedsNoTarget) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/iris.safetensors";
  Job job = Iris();
  job.file.set_epochs(1);
  TrainTo(job, 1, path);
  directory.Write("new.csv", "petal_w,sepal_l,sepal_w,petal_l\n0.2,5.1,3.5,1.4\n");
  Job job_of_new = job;
  job_of_new.directory = directory.path();
  job_of_new.file.mutable_data()->mutable_table()->set_path("new.csv");
  for (const char* feature : {"sepal_l", "sepal_w", "petal_l", "petal_w"}) {
    job_of_new.file.mutable_data()->add_features(feature);
  }
  SoleWorker alone;
  SYNCGRADS_ASSERT_OK(RunPrediction(job_of_new, alone, path, directory.path() + "/out.csv"));
  EXPECT_EQ(LinesOf(directory.path() + "/out.csv").size(), 2u);
}

TEST(RunTest, WindowRangesAreThoseOfAllWorkersAndAreWritten) {
  const TemporaryDirectory directory;
  Job job = Iris();
  job.file.set_epochs(1);
  job.file.mutable_data()->set_validation_every(0);
  v1::ModelSpec model = job.file.model();
  job.file.mutable_model()->clear_layers();
  v1::LayerSpec& scaling = *job.file.mutable_model()->add_layers();
  scaling.mutable_min_max_scaling();
  scaling.set_name("ranges");
  for (const v1::LayerSpec& layer : model.layers()) *job.file.mutable_model()->add_layers() = layer;
  const std::string path = directory.path() + "/w.safetensors";
  TrainTo(job, 3, path);
  const auto file = Safetensors::Read(path);
  SYNCGRADS_ASSERT_OK(file);
  const auto four = [&](const std::string& name) {
    const auto bytes = file->Find({name, DType::kF32, {4}});
    SYNCGRADS_EXPECT_OK(bytes);
    const auto* numbers = reinterpret_cast<const float*>(bytes->data());
    return std::vector<float>(numbers, numbers + 4);
  };
  EXPECT_EQ(four("ranges/minimum"), (std::vector<float>{4.3f, 2.0f, 1.0f, 0.1f}));
  EXPECT_EQ(four("ranges/maximum"), (std::vector<float>{7.9f, 4.4f, 6.9f, 2.5f}));
}

// Trains for an epoch from the standardised features, and returns their means minus and plus the
// standard deviations.
std::vector<float> StandardScalingOf(uint32_t workers, uint32_t validation_every) {
  const TemporaryDirectory directory;
  Job job = Iris();
  job.file.set_epochs(1);
  job.file.mutable_data()->set_validation_every(validation_every);
  const v1::ModelSpec model = job.file.model();
  job.file.mutable_model()->clear_layers();
  v1::LayerSpec& scaling = *job.file.mutable_model()->add_layers();
  scaling.mutable_standard_scaling();
  scaling.set_name("standard_scaling");
  for (const v1::LayerSpec& layer : model.layers()) *job.file.mutable_model()->add_layers() = layer;
  const std::string path = directory.path() + "/s.safetensors";
  TrainTo(job, workers, path);
  const auto file = Safetensors::Read(path);
  SYNCGRADS_EXPECT_OK(file);
  std::vector<float> ranges;
  for (const char* name : {"standard_scaling/minimum", "standard_scaling/maximum"}) {
    const auto bytes = file->Find({name, DType::kF32, {4}});
    SYNCGRADS_EXPECT_OK(bytes);
    const auto* numbers = reinterpret_cast<const float*>(bytes->data());
    ranges.insert(ranges.end(), numbers, numbers + 4);
  }
  return ranges;
}

// The job has three shards of 50 rows. Of each, every fifth row from the first on can be held out.
TEST(RunTest, MeansAndDeviationsAreThoseOfAllTrainingRowsHoweverManyWorkersThereAre) {
  const auto rows = LinesOf("examples/iris/iris.csv");
  for (const uint32_t validation_every : {0, 5}) {
    std::vector<double> sum(4), squares(4);
    double count = 0;
    const auto of_rows = [&](auto use) {
      for (size_t i = 1; i < rows.size(); ++i) {
        if (validation_every != 0 && (i - 1) % validation_every == 0) continue;
        const std::vector<std::string> cells = absl::StrSplit(rows[i], ',');
        for (size_t c = 0; c < 4; ++c) use(c, std::stod(cells[c]));
      }
    };
    of_rows([&](size_t c, double x) {
      sum[c] += x;
      count += 0.25;
    });
    of_rows([&](size_t c, double x) { squares[c] += (x - sum[c] / count) * (x - sum[c] / count); });
    const std::vector<float> of_three = StandardScalingOf(3, validation_every);
    ASSERT_EQ(of_three.size(), 8u);
    for (size_t c = 0; c < 4; ++c) {
      const double deviation = std::sqrt(squares[c] / count);
      EXPECT_NEAR(of_three[c], sum[c] / count - deviation, 1e-5) << validation_every;
      EXPECT_NEAR(of_three[4 + c], sum[c] / count + deviation, 1e-5) << validation_every;
    }
    // The shards are combined in the same order.
    EXPECT_EQ(StandardScalingOf(1, validation_every), of_three);
  }
}

TEST(RunTest, ImagesOfImageNetWithoutMeanAndDeviationAreNoted) {
  const TemporaryDirectory directory;
  directory.Write("LOC_synset_mapping.txt", "n00000001 one\nn00000002 two\n");
  // The image does not exist: training ends before the first step.
  for (const char* part : {"train", "val"}) {
    directory.Write(absl::StrCat("LOC_", part, "_solution.csv"),
                    "ImageId,PredictionString\na_1,n00000001 1 2 3 4\n");
  }
  const std::string source = "imagenet { path: \".\" size: 8 smallest_side: 8 damaged: REFUSED ";
  const auto notes_of = [&](const std::string& image, const std::string& validation_image) {
    const auto job = ParseJobFile(
        absl::StrCat("name: \"images\" batch_size: 1 steps: 1 data { ", source, "} ", image,
                     "} validation { data { ", source, "part: VALIDATION } ", validation_image,
                     "} } model { layers { flatten {} } layers { dense { outputs: 2 } } } "
                     "loss { logit_cross_entropy {} } optimizer { sgd {} }"),
        directory.path() + "/images.job");
    SYNCGRADS_EXPECT_OK(job);
    std::string notes;
    FakeJob workers(1);
    workers.Run([&](Team& team) {
      NoProgress progress;
      TrainerOptions options;
      options.progress = &progress;
      options.note = [&](const std::string& line) { notes += line + "\n"; };
      ExpectError(RunTraining(*job, team, options, ""), absl::StatusCode::kNotFound, {"a_1.JPEG"});
    });
    return notes;
  };
  const std::string usual =
      ".image has no mean and no std: pixels are from 0 to 1; those of ImageNet usually have mean: "
      "0.485 mean: 0.456 mean: 0.406 std: 0.229 std: 0.224 std: 0.225\n";
  EXPECT_EQ(notes_of("", ""), "data" + usual + "validation.data" + usual);
  EXPECT_EQ(notes_of("image { mean: 0.5 }", "image { augmentation {} }"),
            "validation.data" + usual);
  EXPECT_EQ(notes_of("image { std: 0.5 }", "image { mean: 0 }"), "");
}

// y = 2 x + 1, z = 3 - x.
TEST(RunTest, SeveralColumnsArePredicted) {
  const TemporaryDirectory directory;
  std::string rows = "x,y,z\n";
  for (int i = 0; i < 20; ++i) {
    const double x = i / 10.0;
    absl::StrAppend(&rows, x, ",", 2 * x + 1, ",", 3 - x, "\n");
  }
  directory.Write("rows.csv", rows);
  const auto job = ParseJobFile(R"(
      name: "two" seed: 1 batch_size: 5 epochs: 300
      data { table { path: "rows.csv" } target: "y" more_targets: "z" validation_every: 5 }
      model { layers { dense { outputs: 2 } } }
      loss { squared_error {} }
      optimizer { sgd { learning_rate: 0.1 } })",
                                directory.path() + "/two.job");
  SYNCGRADS_ASSERT_OK(job);
  const std::string path = directory.path() + "/two.safetensors";
  const TrainingResult trained = TrainTo(*job, 2, path);
  EXPECT_EQ(trained.trained_on.rows, 16u);
  EXPECT_LT(trained.held_out->loss, 1e-6);
  SoleWorker alone;
  SYNCGRADS_ASSERT_OK(RunPrediction(*job, alone, path, directory.path() + "/out.csv"));
  const auto lines = LinesOf(directory.path() + "/out.csv");
  ASSERT_EQ(lines.size(), 21u);
  EXPECT_EQ(lines[0], "prediction1,prediction2");
  const std::vector<std::string> last = absl::StrSplit(lines[20], ',');
  ASSERT_EQ(last.size(), 2u);
  EXPECT_NEAR(std::stod(last[0]), 2 * 1.9 + 1, 1e-3);
  EXPECT_NEAR(std::stod(last[1]), 3 - 1.9, 1e-3);
  const auto shown = RunShow(*job, alone, path, {.rows = 1});
  SYNCGRADS_ASSERT_OK(shown);
  EXPECT_TRUE(absl::EndsWith(*shown, ", is 1 3\n")) << *shown;
  // A model with another number of outputs is refused.
  ExpectError(
      ParseJobFile(absl::StrReplaceAll(job->file.DebugString(), {{"outputs: 2", "outputs: 3"}}),
                   "three.job"),
      absl::StatusCode::kInvalidArgument, {"is 3 in the last layer", "needs 2"});
}

// Each class is in a shard directory of its own, so no worker sees all names.
TEST(RunTest, ClassesOfShardDirectoriesAreNumberedOverTheWholeTable) {
  const TemporaryDirectory directory;
  const auto rows = LinesOf("examples/iris/iris.csv");
  for (int shard = 0; shard < 3; ++shard) {
    std::string text = rows[0] + "\n";
    // The shards are not in the order of the names.
    for (int i = 0; i < 50; ++i) absl::StrAppend(&text, rows[1 + 50 * (2 - shard) + i], "\n");
    directory.Write(absl::StrCat("shard", shard, "/iris.csv"), text);
  }
  Job job = Iris();
  job.directory = directory.path();
  job.file.mutable_data()->mutable_table()->set_path(".");
  job.file.mutable_data()->mutable_table()->set_file("iris.csv");
  const std::string path = directory.path() + "/iris.safetensors";
  const TrainingResult trained = TrainTo(job, 3, path);
  EXPECT_GE(*trained.held_out->correct, 24u);
  SoleWorker alone;
  const auto evaluated = RunEvaluation(Iris(), alone, path);
  SYNCGRADS_ASSERT_OK(evaluated);
  EXPECT_GE(*evaluated->all->correct, 120u);
}

TEST(RunTest, ShardsWithOtherColumnsAreRefusedWithBoth) {
  const TemporaryDirectory directory;
  directory.Write("shard0/t.csv", "a,b,class\n1,2,0\n");
  directory.Write("shard1/t.csv", "a,c,class\n1,2,0\n");
  Job job = Iris();
  job.directory = directory.path();
  job.file.mutable_data()->clear_shards();
  job.file.mutable_data()->mutable_table()->set_path(".");
  job.file.mutable_data()->mutable_table()->set_file("t.csv");
  FakeJob workers(2);
  workers.Run([&](Team& team) {
    ExpectError(LoadDataSet(job, DataSetOptions(), team), absl::StatusCode::kInvalidArgument,
                {"a, b", "a, c"});
  });
  SoleWorker alone;
  ExpectError(LoadDataSet(job, DataSetOptions(), alone), absl::StatusCode::kInvalidArgument,
              {"shard 0 are a, b", "shard 1 are a, c"});
}

TEST(RunTest, AModelOfAnotherShapeIsRefusedWithBoth) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/iris.safetensors";
  Job job = Iris();
  job.file.set_epochs(1);
  TrainTo(job, 1, path);
  job.file.mutable_model()->mutable_layers(0)->mutable_dense()->set_outputs(9);
  SoleWorker alone;
  ExpectError(RunEvaluation(job, alone, path), absl::StatusCode::kInvalidArgument,
              {"dense1/kernel", "f32[4,8]", "f32[4,9]"});
  Job wider = Iris();
  wider.file.set_dtype(v1::F64);
  ExpectError(RunEvaluation(wider, alone, path), absl::StatusCode::kInvalidArgument,
              {"f32[4,8]", "f64[4,8]"});
  ExpectError(RunEvaluation(job, alone, directory.path() + "/none"), absl::StatusCode::kNotFound,
              {"/none"});
}

TEST(RunTest, TrainingCanBeginWithTheParametersOfAFile) {
  const TemporaryDirectory directory;
  const std::string first = directory.path() + "/first.safetensors";
  const std::string again = directory.path() + "/again.safetensors";
  Job job = Iris();
  job.file.set_epochs(2);
  TrainTo(job, 3, first);
  // The learning rate is 0, so the parameters stay those of the file, with any seed.
  job.file.mutable_optimizer()->mutable_adam()->set_learning_rate(0);
  job.file.set_seed(99);
  job.file.mutable_model()->set_init_from(first);
  TrainTo(job, 3, again);
  EXPECT_EQ(ReadFile(first, 1 << 20).value(), ReadFile(again, 1 << 20).value());
  // A relative path starts at the job file's directory. The shapes must match.
  job.directory = directory.path();
  job.file.mutable_model()->set_init_from("first.safetensors");
  job.file.mutable_model()->mutable_layers(0)->mutable_dense()->set_outputs(9);
  job.file.mutable_data()->mutable_table()->set_path(
      std::filesystem::absolute("examples/iris/iris.csv"));
  FakeJob workers(1);
  workers.Run([&](Team& team) {
    NoProgress progress;
    TrainerOptions options;
    options.progress = &progress;
    ExpectError(RunTraining(job, team, options, ""), absl::StatusCode::kInvalidArgument,
                {"first.safetensors", "dense1/kernel", "f32[4,8]", "f32[4,9]"});
  });
}

// Fine-tuning: the last layer is new, because the number of classes is another.
TEST(RunTest, APartOfAModelCanBeTakenFromAFile) {
  const TemporaryDirectory directory;
  const std::string first = directory.path() + "/first.safetensors";
  const std::string fresh = directory.path() + "/fresh.safetensors";
  const std::string tuned = directory.path() + "/tuned.safetensors";
  Job job = Iris();
  job.file.set_epochs(1);
  TrainTo(job, 3, first);
  job.file.mutable_optimizer()->mutable_adam()->set_learning_rate(0);
  const int last = job.file.model().layers_size() - 1;
  const std::string name = job.file.model().layers(last).name();
  job.file.mutable_model()->mutable_layers(last)->mutable_dense()->set_outputs(4);
  TrainTo(job, 3, fresh);
  job.file.mutable_model()->set_init_from(first);
  job.file.mutable_model()->add_init_skip(name + "/*");
  TrainTo(job, 3, tuned);
  const auto from_first = Safetensors::Read(first);
  const auto from_fresh = Safetensors::Read(fresh);
  const auto result = Safetensors::Read(tuned);
  SYNCGRADS_ASSERT_OK(from_first);
  SYNCGRADS_ASSERT_OK(from_fresh);
  SYNCGRADS_ASSERT_OK(result);
  const TensorSpec kept = {"dense1/kernel", DType::kF32, {4, 8}};
  EXPECT_EQ(*result->Find(kept), *from_first->Find(kept));
  const int64_t inputs = job.file.model().layers(last - 1).dense().outputs();
  const TensorSpec skipped = {name + "/kernel", DType::kF32, {inputs, 4}};
  EXPECT_EQ(*result->Find(skipped), *from_fresh->Find(skipped));

  std::string notes;
  const auto run = [&](const Job& other) {
    absl::Status status;
    FakeJob workers(1);
    workers.Run([&](Team& team) {
      NoProgress progress;
      TrainerOptions options;
      options.progress = &progress;
      options.note = [&](const std::string& line) { notes += line; };
      status = RunTraining(other, team, options, "").status();
    });
    return status;
  };
  // A layer that the file does not have.
  Job renamed = job;
  renamed.file.mutable_model()->clear_init_skip();
  renamed.file.mutable_model()->mutable_layers(last)->set_name("head");
  ExpectError(run(renamed), absl::StatusCode::kNotFound, {"first.safetensors", "head/kernel"});
  renamed.file.mutable_model()->set_init_allow_missing(true);
  notes.clear();
  SYNCGRADS_EXPECT_OK(run(renamed));
  EXPECT_NE(notes.find("not taken from " + first + ": head/kernel, head/bias"), std::string::npos)
      << notes;
  job.file.mutable_model()->add_init_skip("fc.*");
  ExpectError(run(job), absl::StatusCode::kInvalidArgument, {"model.init_skip has \"fc.*\"", name});
}

// Batch norm trains with the statistics of the batch. Evaluation uses the running statistics, which
// the file has.
TEST(RunTest, RunningStatisticsAreWrittenAndEvaluatedWith) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/m.safetensors";
  Job job = Iris();
  const v1::ModelSpec model = job.file.model();
  job.file.mutable_model()->clear_layers();
  v1::LayerSpec& norm = *job.file.mutable_model()->add_layers();
  norm.set_name("norm");
  norm.mutable_batch_norm();
  for (const v1::LayerSpec& layer : model.layers()) *job.file.mutable_model()->add_layers() = layer;
  job.file.mutable_data()->set_shards(1);
  const TrainingResult trained = TrainTo(job, 1, path);
  const auto file = Safetensors::Read(path);
  SYNCGRADS_ASSERT_OK(file);
  const auto mean = file->Find({"norm.running_mean", DType::kF32, {4}});
  SYNCGRADS_ASSERT_OK(mean);
  // The mean sepal length is 5.84 cm.
  EXPECT_NEAR(reinterpret_cast<const float*>(mean->data())[0], 5.84, 0.3);
  SoleWorker alone;
  const auto evaluated = RunEvaluation(job, alone, path);
  SYNCGRADS_ASSERT_OK(evaluated);
  EXPECT_NEAR(evaluated->held_out->loss, trained.held_out->loss, 1e-6);
  EXPECT_GE(*evaluated->held_out->correct, 24u);
}

TEST(RunTest, ImagesOfAFileOfBytesAreTrainedOnWithTheirOwnShape) {
  const TemporaryDirectory directory;
  std::string images("\0\0\x08\x03\0\0\0\x14\0\0\0\x06\0\0\0\x06", 16);
  std::string labels("\0\0\x08\x01\0\0\0\x14", 8);
  // Half of the images are light and half are dark.
  for (int image = 0; image < 20; ++image) {
    images += std::string(36, static_cast<char>(image % 2 == 0 ? 40 : 200));
    labels += static_cast<char>(image % 2);
  }
  directory.Write("images", images);
  directory.Write("labels", labels);
  const auto job = ParseJobFile(R"(
      name: "bytes" batch_size: 4 epochs: 20
      data {
        idx { images: "images" labels: "labels" }
        image { mean: 0.5 std: 0.25 }
        validation_every: 5
      }
      model { named { name: "lenet" outputs: 2 } }
      loss { logit_cross_entropy {} }
      optimizer { adam { learning_rate: 0.01 } }
  )",
                                directory.path() + "/x.job");
  SYNCGRADS_ASSERT_OK(job);
  const std::string path = directory.path() + "/m.safetensors";
  const TrainingResult trained = TrainTo(*job, 2, path);
  EXPECT_EQ(trained.held_out->correct, trained.held_out->rows);
  SoleWorker alone;
  SYNCGRADS_ASSERT_OK(RunPrediction(*job, alone, path, directory.path() + "/p.csv"));
  EXPECT_EQ(LinesOf(directory.path() + "/p.csv").size(), 21u);
}

TEST(RunTest, AnImageOfAnotherSizeThanTheRowsIsRefusedWithBoth) {
  Job job = Iris();
  job.file.mutable_data()->mutable_image()->set_channels(1);
  job.file.mutable_data()->mutable_image()->set_height(3);
  job.file.mutable_data()->mutable_image()->set_width(3);
  SoleWorker alone;
  ExpectError(LoadDataSet(job, DataSetOptions(), alone), absl::StatusCode::kInvalidArgument,
              {"data.image is 1x3x3, which is 9 numbers", "4 features"});
}

TEST(RunTest, TrainingAloneWithoutAServerIsRefused) {
  SoleWorker alone;
  NoProgress progress;
  TrainerOptions options;
  options.progress = &progress;
  ExpectError(RunTraining(Iris(), alone, options, ""), absl::StatusCode::kFailedPrecondition,
              {"server"});
}

TEST(RunTest, NoRowToTrainOnIsAnError) {
  const TemporaryDirectory directory;
  directory.Write("t.csv", "a,class\n");
  Job job = Iris();
  job.directory = directory.path();
  job.file.mutable_data()->mutable_table()->set_path("t.csv");
  FakeJob workers(3);
  workers.Run([&](Team& team) {
    NoProgress progress;
    TrainerOptions options;
    options.progress = &progress;
    ExpectError(RunTraining(job, team, options, ""), absl::StatusCode::kFailedPrecondition,
                {"no worker has a row to train on"});
  });
}

}  // namespace
}  // namespace syncgrads
