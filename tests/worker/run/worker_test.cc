// Tests which options ps-worker refuses, and what it does without a server.

#include "worker/run/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "examples/own_layer/swish.h"
#include "examples/own_logger/csv_log.h"
#include "tests/testing/no_threads.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/base/file.h"
#include "worker/base/out_of_memory.h"
#include "worker/job/job_file.h"
#include "worker/nn/accelerators.h"
#include "worker/nn/cpu/cpu_device.h"
#include "worker/nn/models/build.h"
#include "worker/run/run_progress.h"
#include "worker/run/workers.h"
#include "worker/team/team.h"
#include "worker/train/model_file.h"

namespace syncgrads {
namespace {

class WorkerTest : public ::testing::Test {
 protected:
  WorkerTest() { options_.job = "examples/iris/iris.job"; }

  WorkerDependencies Dependencies() {
    return {out_,
            /*out_is_terminal=*/false,
            stop_,
            Clock::Real(),
            [this](const char* name) -> const char* {
              const auto it = environment_.find(name);
              return it == environment_.end() ? nullptr : it->second.c_str();
            },
            extensions_,
            *accelerators_};
  }

  absl::Status Run() { return RunWorker(options_, Dependencies()).status; }

  // Writes an untrained model of the Iris job and returns its path.
  std::string WriteModel() {
    const auto job = LoadJobFile(options_.job);
    CpuDevice<float> device(1);
    const auto built = BuildModel<float>(job->file.model(), Shape::Flat(4), CustomLayers(), device);
    SYNCGRADS_EXPECT_OK(built);
    const auto& model = *built;
    model->Initialise(1);
    const std::string path = directory_.path() + "/m.safetensors";
    const Classes classes = Classes::Named({"Iris-setosa", "Iris-versicolor", "Iris-virginica"});
    SYNCGRADS_EXPECT_OK(
        SaveModel(*model, std::optional<Classes>(classes), /*shards=*/3, "iris", path));
    return path;
  }

  StopSignal stop_;
  TemporaryDirectory directory_;
  WorkerOptions options_;
  std::map<std::string, std::string> environment_;
  std::ostringstream out_;
  Extensions extensions_;
  const Accelerators* accelerators_ = &NoAccelerators();
};

TEST_F(WorkerTest, AJobCanNameALayerThatTheProgramAdds) {
  const auto text = ReadFile(options_.job, 1 << 20);
  SYNCGRADS_ASSERT_OK(text);
  options_.evaluate = WriteModel();
  directory_.Write("iris.csv", *ReadFile("examples/iris/iris.csv", 1 << 20));
  options_.job = directory_.Write(
      "own.job", absl::StrReplaceAll(*text, {{"  layers { dense { outputs: 16 } }",
                                              "  layers { dense { outputs: 16 } }\n"
                                              "  layers { custom { kind: \"swish\" settings "
                                              "{ key: \"slope\" value: 1 } } }"}}));
  ExpectError(
      Run(), absl::StatusCode::kInvalidArgument,
      {"layer \"swish1\"", "unknown custom layer \"swish\"", "this program has no custom layers"});
  extensions_.layers.Add<Swish>("swish");
  SYNCGRADS_EXPECT_OK(Run());
  EXPECT_THAT(out_.str(), ::testing::HasSubstr("150 rows"));
}

// A layer for which there is not enough memory.
template <typename T>
struct Greedy {
  static absl::StatusOr<std::unique_ptr<Layer<T>>> Create(const CustomLayerOptions&, Device<T>&) {
    throw OutOfMemory("not enough memory for 123456789 bytes");
  }
};

TEST_F(WorkerTest, AModelThatDoesNotFitIsAnErrorWithItsSize) {
  const auto text = ReadFile(options_.job, 1 << 20);
  SYNCGRADS_ASSERT_OK(text);
  options_.evaluate = WriteModel();
  directory_.Write("iris.csv", *ReadFile("examples/iris/iris.csv", 1 << 20));
  options_.job = directory_.Write(
      "greedy.job", absl::StrReplaceAll(*text, {{"  layers { dense { outputs: 16 } }",
                                                 "  layers { custom { kind: \"greedy\" } }"}}));
  extensions_.layers.Add<Greedy>("greedy");
  ExpectError(Run(), absl::StatusCode::kResourceExhausted, {"123456789 bytes"});
}

TEST_F(WorkerTest, DataOfAnElasticJobThatDoesNotFitIsAnErrorWithItsSize) {
  options_.job = directory_.Write("greedy.job", R"(
      name: "greedy" batch_size: 1 epochs: 1 elastic {}
      data { custom { kind: "greedy" } target: "y" mode: DYNAMIC }
      model { layers { dense { outputs: 1 } } }
      loss { squared_error {} }
      optimizer { sgd {} })");
  options_.server = "127.0.0.1:1";
  extensions_.readers.Add("greedy", [](const CustomReaderOptions&) -> absl::StatusOr<Table> {
    throw OutOfMemory("not enough memory for 123456789 bytes");
  });
  ExpectError(Run(), absl::StatusCode::kResourceExhausted, {"123456789 bytes"});
}

TEST_F(WorkerTest, AProgramCanAddLoggers) {
  extensions_.loggers = {
      CsvLog::In(directory_.path()),
      [](const LoggedWorker&) -> absl::StatusOr<std::unique_ptr<Progress>> { return nullptr; }};
  SoleWorker team;
  const WorkerDependencies dependencies = Dependencies();
  const auto shown = RunProgress::Create(options_, dependencies, DeviceChoice(), "w0", team);
  SYNCGRADS_ASSERT_OK(shown);
  (*shown)->progress().Started({"iris", 3, 3, 120, 30, 235, 8, 2, /*averages_losses=*/true});
  (*shown)->progress().Averaged({1, 0.5, 96});
  (*shown)->progress().Stepped(1, 0.25);
  (*shown)->progress().Validated(2, {{"val_loss", 0.125}});
  (*shown)->progress().Finished();
  EXPECT_EQ(*ReadFile(directory_.path() + "/w0.csv", 1 << 20),
            "# iris: 120 rows in 3 shards, 30 held out; 3 workers, batches of 8; 235 parameters; "
            "2 steps\n1,0.5,96\n2,validation,val_loss,0.125\n");
  extensions_.loggers = {CsvLog::In("/nowhere")};
  ExpectError(RunProgress::Create(options_, dependencies, DeviceChoice(), "w0", team),
              absl::StatusCode::kPermissionDenied, {"/nowhere/w0.csv"});
}

TEST_F(WorkerTest, RefusesFlagsThatMakeNoSense) {
  options_.device = "cuda:0";
  ExpectError(Run(), absl::StatusCode::kUnimplemented,
              {"cuda:0", "built without CUDA", "CUDA_HOME", "--device=cpu works"});
  options_.device = "abacus";
  ExpectError(Run(), absl::StatusCode::kInvalidArgument, {"abacus"});
  options_.device = "cpu";
  options_.batch_size = 0;
  ExpectError(Run(), absl::StatusCode::kInvalidArgument, {"--batch_size is 0"});
  options_.batch_size.reset();
  options_.world_size = 0;
  ExpectError(Run(), absl::StatusCode::kInvalidArgument, {"--world_size is 0"});
  options_.world_size.reset();
  options_.predict = "m";
  ExpectError(Run(), absl::StatusCode::kInvalidArgument, {"--predictions"});
  options_.job = "";
  options_.predict = "";
  ExpectError(Run(), absl::StatusCode::kInvalidArgument, {"--job is missing"});
}

TEST_F(WorkerTest, RefusesABadJobFileWithItsPlace) {
  options_.job = directory_.Write("bad.job", "name: \"x\"\nbatches: 3\n");
  ExpectError(Run(), absl::StatusCode::kInvalidArgument, {"bad.job:2:", "batches"});
}

TEST_F(WorkerTest, TrainingNeedsAServer) {
  ExpectError(Run(), absl::StatusCode::kInvalidArgument, {"--server is missing"});
}

TEST_F(WorkerTest, EvaluatesAloneWithoutAServer) {
  options_.evaluate = WriteModel();
  SYNCGRADS_ASSERT_OK(Run());
  EXPECT_THAT(out_.str(), ::testing::HasSubstr("of 150 rows"));
  EXPECT_THAT(out_.str(), ::testing::HasSubstr("of 30 rows"));
}

TEST_F(WorkerTest, PredictsAloneWithoutAServer) {
  options_.predict = WriteModel();
  options_.predictions = directory_.path() + "/p.csv";
  SYNCGRADS_ASSERT_OK(Run());
  EXPECT_THAT(out_.str(), ::testing::HasSubstr("p.csv"));
}

TEST_F(WorkerTest, ShowsTheClassesOfSomeRows) {
  options_.predict = WriteModel();
  options_.show = 2;
  SYNCGRADS_ASSERT_OK(Run());
  const std::string text = out_.str();
  EXPECT_THAT(text, ::testing::StartsWith("shard 0, row 0: Iris-setosa\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("shard 0, row 1: Iris-setosa\n"));
  EXPECT_THAT(text, ::testing::HasSubstr(" %  Iris-virginica\n"));
  // Two rows are shown with three classes each. The right class of each row has a star.
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 8);
  EXPECT_EQ(std::count(text.begin(), text.end(), '*'), 2);
}

TEST_F(WorkerTest, ShowsAsManyClassesAsAreAskedFor) {
  options_.predict = WriteModel();
  options_.show = 2;
  options_.show_top = 1;
  SYNCGRADS_ASSERT_OK(Run());
  const std::string text = out_.str();
  // The right class of a row is printed with its place if it is not among them.
  const std::vector<std::string> parts = absl::StrSplit(text, "(place ");
  const auto outside = static_cast<int64_t>(parts.size() - 1);
  EXPECT_EQ(std::count(text.begin(), text.end(), '%') - outside, 2) << text;
}

TEST_F(WorkerTest, AWorkerOfTheProcessWhoseThreadCannotBeStartedFails) {
  const testing::NoThreads no_threads;
  const std::vector<WorkerOutcome> outcomes = RunWorkers(options_, 2, Dependencies());
  ASSERT_EQ(outcomes.size(), 2u);
  ExpectError(outcomes[1].status, absl::StatusCode::kResourceExhausted, {"the thread of worker 1"});
}

TEST_F(WorkerTest, SeveralWorkersThatEvaluateNeedAServer) {
  options_.evaluate = WriteModel();
  environment_ = {{"RANK", "1"}, {"WORLD_SIZE", "3"}};
  ExpectError(Run(), absl::StatusCode::kInvalidArgument, {"--server is missing", "3 workers"});
}

TEST_F(WorkerTest, AnotherNumberOfWorkersInTheProcessThanKubeflowSaysIsRefused) {
  environment_ = {{"PET_NNODES", "2"}, {"PET_NODE_RANK", "0"}, {"PET_NPROC_PER_NODE", "4"}};
  ExpectError(Run(), absl::StatusCode::kInvalidArgument,
              {"PET_NPROC_PER_NODE is \"4\"", "--workers_in_process is 1"});
  options_.in_process = {/*number=*/0, /*of=*/4};
  ExpectError(Run(), absl::StatusCode::kInvalidArgument, {"--server is missing"});
}

// Four devices, none of which can be created.
class BrokenDevices : public Accelerators {
 public:
  absl::StatusOr<int> Count() const override { return 4; }
  absl::StatusOr<std::string> Name(int) const override { return "broken"; }
  absl::StatusOr<std::unique_ptr<Device<float>>> MakeFloat(int index,
                                                           MatrixPrecision) const override {
    return absl::InternalError(absl::StrCat("device ", index, " is broken"));
  }
  absl::StatusOr<std::unique_ptr<Device<double>>> MakeDouble(int) const override {
    return absl::InternalError("not of this job's dtype");
  }
};

// Each process evaluates alone, because of --world_size.
TEST_F(WorkerTest, TheDeviceIsThatOfTheLocalRankOrElseOfTheRank) {
  const BrokenDevices devices;
  accelerators_ = &devices;
  options_.device = "cuda";
  options_.evaluate = WriteModel();
  options_.world_size = 1;
  environment_ = {{"OMPI_COMM_WORLD_RANK", "6"},
                  {"OMPI_COMM_WORLD_SIZE", "8"},
                  {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};
  ExpectError(Run(), absl::StatusCode::kInternal, {"device 1 is broken"});
  environment_.erase("OMPI_COMM_WORLD_LOCAL_RANK");
  ExpectError(Run(), absl::StatusCode::kInternal, {"device 2 is broken"});
  environment_.clear();
  options_.in_process = {/*number=*/3, /*of=*/4};
  ExpectError(Run(), absl::StatusCode::kInternal, {"device 3 is broken"});
}

TEST_F(WorkerTest, ADamagedModelIsRefused) {
  options_.evaluate = directory_.Write("m", "nonsense");
  ExpectError(Run(), absl::StatusCode::kDataLoss, {"/m"});
}

TEST(OutputOfRankTest, PutsTheRankBeforeTheExtension) {
  EXPECT_EQ(OutputOfRank("a/out.safetensors", 2), "a/out.rank2.safetensors");
  EXPECT_EQ(OutputOfRank("a.b/out", 2), "a.b/out.rank2");
}

}  // namespace
}  // namespace syncgrads
