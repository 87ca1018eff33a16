// Tests of user errors: the error message names the thing and both values, and the server and the
// other workers are not affected.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class BadInputTest : public ::testing::Test {
 protected:
  static void ExpectToFailForGood(Process& worker) {
    const Exit exit = WaitFor(worker);
    EXPECT_TRUE(exit.code >= 1 && exit.code <= 127) << exit << "\n" << worker.output();
  }

  // Runs a single worker of `job`, which has to fail, and returns its output.
  std::string FailureOf(const std::string& job) {
    const auto worker = cluster_.StartWorker(job, 0, 1);
    ExpectToFailForGood(*worker);
    return worker->output();
  }

  // Starts rank 0 of a job for two workers and waits until the coordinator has admitted it.
  std::unique_ptr<Process> StartAdmitted(const std::string& job,
                                         const std::vector<std::string>& flags) {
    auto worker = cluster_.StartWorker(job, 0, 2, flags);
    const std::string name = std::filesystem::path(job).stem();
    const auto line =
        cluster_.server(0).WaitForLine(absl::StrCat("job \"", name, "\": worker "), kLongEnough);
    EXPECT_TRUE(line.ok()) << line.status();
    return worker;
  }

  static void ExpectToFinish(Process& first, Process& second) {
    EXPECT_EQ(WaitFor(first), ExitCode(0)) << first.output();
    EXPECT_EQ(WaitFor(second), ExitCode(0)) << second.output();
  }

  // After each error the server still serves other jobs.
  void TearDown() override { TrainOn(cluster_, WriteLongJob("afterwards", 10), 2); }

  // Writes a job file that reads a CSV table with the contents `table`.
  static std::string WriteJobOver(const std::string& table) {
    const std::string path = WriteTemporaryFile("table.csv", table);
    return WriteIrisJob("table", [&](v1::JobFile& job) {
      job.mutable_data()->mutable_table()->set_path(path);
      job.mutable_data()->clear_features();
      job.mutable_data()->set_target("kind");
    });
  }

  Cluster cluster_{2, {"--stream_grace=1s"}};
};

TEST_F(BadInputTest, AJobFileWithAnUnknownField) {
  const std::string job =
      WriteTemporaryFile("unknown.job", absl::StrCat("name: \"x\"\n", "btach_size: 8\n"));
  EXPECT_THAT(FailureOf(job), AllOf(HasSubstr("unknown.job:2"), HasSubstr("btach_size")));
}

TEST_F(BadInputTest, AJobFileThatIsNotThere) {
  EXPECT_THAT(FailureOf("/no/such/file.job"), HasSubstr("/no/such/file.job"));
}

TEST_F(BadInputTest, ATableWithAMissingCell) {
  EXPECT_THAT(FailureOf(WriteJobOver("a,b,kind\n1,2,0\n3,1\n")),
              AllOf(HasSubstr("table.csv:3"), HasSubstr("2"), HasSubstr("3")));
}

TEST_F(BadInputTest, ATableWithACellThatIsNoNumber) {
  EXPECT_THAT(FailureOf(WriteJobOver("a,b,kind\n1,2,0\n3,many,1\n")),
              AllOf(HasSubstr("table.csv:3"), HasSubstr("many"), HasSubstr("\"b\"")));
}

TEST_F(BadInputTest, MoreWorkersThanShardDirectories) {
  for (int shards : {2, 3}) {
    for (int shard = 0; shard < shards; ++shard) {
      WriteTemporaryFile(absl::StrCat(shards, "-shards/shard", shard, "/part.csv"),
                         "a,b,kind\n1,2,0\n3,4,1\n");
    }
  }
  // Each worker detects the error by itself as soon as it has the number of workers. The others
  // have enough directories: a worker that fails leaves, and they would then be fewer.
  for (int wrong : {0, 1, 2}) {
    const std::string name = absl::StrCat("directories-", wrong);
    const auto job = [&name](int shards) {
      return WriteIrisJob(absl::StrCat(name, "-", shards), [&](v1::JobFile& file) {
        file.set_name(name);
        v1::TableSource& table = *file.mutable_data()->mutable_table();
        table.set_path(TemporaryPath(absl::StrCat(shards, "-shards")));
        table.set_file("part.csv");
        file.mutable_data()->clear_features();
        file.mutable_data()->clear_shards();
        file.mutable_data()->set_target("kind");
      });
    };
    std::vector<std::unique_ptr<Process>> workers;
    for (int rank : {0, 1, 2}) {
      workers.push_back(cluster_.StartWorker(job(rank == wrong ? 2 : 3), rank, 3));
    }
    ExpectToFailForGood(*workers[wrong]);
    EXPECT_THAT(workers[wrong]->output(), AllOf(HasSubstr("3 workers"), HasSubstr(" is 2")));
  }
}

TEST_F(BadInputTest, ANameThatALiveWorkerHas) {
  const std::string job = WriteLongJob("names", 10);
  const auto first = StartAdmitted(job, {"--name=twin"});
  const auto second = cluster_.StartWorker(job, 1, 2, {"--name=twin"});
  EXPECT_EQ(WaitFor(*second), ExitCode(7));
  EXPECT_THAT(second->output(), AllOf(HasSubstr("ALREADY_EXISTS"), HasSubstr("\"twin\"")));
  ExpectToFinish(*first, *cluster_.StartWorker(job, 1, 2, {"--name=other"}));
}

TEST_F(BadInputTest, ARankThatALiveWorkerHas) {
  const std::string job = WriteLongJob("ranks", 10);
  const auto first = StartAdmitted(job, {});
  const auto second = cluster_.StartWorker(job, 0, 2);
  EXPECT_EQ(WaitFor(*second), ExitCode(7));
  EXPECT_THAT(second->output(), AllOf(HasSubstr("ALREADY_EXISTS"), HasSubstr("rank 0")));
  ExpectToFinish(*first, *cluster_.StartWorker(job, 1, 2));
}

TEST_F(BadInputTest, AnotherTokenThanTheJobs) {
  const std::string job = WriteLongJob("secret", 10);
  const auto first = StartAdmitted(job, {"--token=right"});
  const auto second = cluster_.StartWorker(job, 1, 2, {"--token=wrong"});
  EXPECT_EQ(WaitFor(*second), ExitCode(5));
  EXPECT_THAT(second->output(), HasSubstr("PERMISSION_DENIED"));
  ExpectToFinish(*first, *cluster_.StartWorker(job, 1, 2, {"--token=right"}));
}

TEST_F(BadInputTest, AnotherWorldSizeThanTheJobs) {
  const std::string job = WriteLongJob("sizes", 10);
  const auto first = StartAdmitted(job, {});
  const auto second = cluster_.StartWorker(job, 1, 3);
  EXPECT_EQ(WaitFor(*second), ExitCode(4));
  EXPECT_THAT(second->output(),
              AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("2"), HasSubstr("3")));
  ExpectToFinish(*first, *cluster_.StartWorker(job, 1, 2));
}

TEST_F(BadInputTest, ATensorWithTwoShapes) {
  const std::string job = WriteLongJob("shapes", 10);
  const std::string other = WriteTemporaryFile(
      "other.job", absl::StrReplaceAll(ReadFileOrDie(job), {{"outputs: 20", "outputs: 21"}}));
  const auto first = cluster_.StartWorker(job, 0, 2);
  const auto second = cluster_.StartWorker(other, 1, 2);
  WaitFor(*first);
  WaitFor(*second);
  const std::string output = first->output() + second->output();
  EXPECT_THAT(output, AllOf(HasSubstr("20"), HasSubstr("21"), HasSubstr("dense1/kernel")));
}

TEST_F(BadInputTest, AHalfSetLauncher) {
  const auto run = RunProgram({.program = "worker/ps-worker",
                               .args = {absl::StrCat("--job=", WriteLongJob("half", 10)),
                                        absl::StrCat("--server=", cluster_.coordinator())},
                               .environment = {{"RANK", "1"}}},
                              kLongEnough);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_NE(run->exit, ExitCode(0));
  EXPECT_THAT(run->output, HasSubstr("RANK is \"1\" but WORLD_SIZE is not set"));
}

TEST(RenamedFlagTest, AnOldNameIsRefusedWithTheNewOne) {
  const auto worker =
      RunProgram({.program = "worker/ps-worker", .args = {"--matrix_products=f32"}}, kLongEnough);
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(worker->exit, ExitCode(2));
  EXPECT_EQ(worker->output, "ps-worker: --matrix_products is now --precision\n");
  const auto server =
      RunProgram({.program = "server/ps-server", .args = {"--heartbeat=1s"}}, kLongEnough);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(server->exit, ExitCode(1));
  EXPECT_EQ(server->output, "ps-server: --heartbeat is now --heartbeat_interval\n");
}

}  // namespace
}  // namespace syncgrads::testing
