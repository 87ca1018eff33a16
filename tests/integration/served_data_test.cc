// Workers without the data files get their rows from a process that serves them.

#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"
#include "tests/testing/reserved_port.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A ps-worker that serves the job's data, and its address.
struct DataServer {
  std::unique_ptr<Process> process;
  std::string address;
};

DataServer ServeData(const std::string& job) {
  auto started = Process::Start(
      {.program = "worker/ps-worker", .args = {absl::StrCat("--job=", job), "--serve_data=0"}});
  EXPECT_TRUE(started.ok()) << started.status();
  DataServer server = {*std::move(started), ""};
  const auto line = server.process->WaitForLine(" on port ", kLongEnough);
  EXPECT_TRUE(line.ok()) << line.status();
  if (line.ok()) server.address = absl::StrCat("127.0.0.1:", line->substr(line->rfind(' ') + 1));
  return server;
}

// Writes the job file `job`, modified by `change`, to TemporaryPath(name) and returns the path.
std::string ChangeJob(const std::string& job, const std::string& name,
                      const std::function<void(v1::JobFile&)>& change) {
  v1::JobFile file;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(ReadFileOrDie(job), &file));
  change(file);
  std::string text;
  google::protobuf::TextFormat::PrintToString(file, &text);
  return WriteTemporaryFile(name, text);
}

TEST(ServedDataTest, WorkersWithoutTheFileTrainAsThoseWithIt) {
  // Two directories have the same job file, but only one has the table.
  const std::string table = TemporaryPath("with/iris.csv");
  std::string source;
  const std::string own =
      WriteIrisJob("served", [&](v1::JobFile& file) { source = file.data().table().path(); });
  const auto relative = [](v1::JobFile& file) {
    file.mutable_data()->mutable_table()->set_path("iris.csv");
  };
  const std::string with = ChangeJob(own, "with/served.job", relative);
  std::filesystem::copy_file(source, table, std::filesystem::copy_options::overwrite_existing);
  const DataServer server = ServeData(with);
  const std::string without = ChangeJob(own, "without/served.job", [&](v1::JobFile& file) {
    relative(file);
    file.mutable_data()->add_served_from(server.address);
  });
  Cluster cluster(1);
  const std::vector<std::string> read = TrainOn(cluster, with, 3);
  EXPECT_EQ(TrainOn(cluster, without, 3), read);
  server.process->Kill(SIGTERM);
  EXPECT_EQ(WaitFor(*server.process), ExitCode(0)) << server.process->output();
}

TEST(ServedDataTest, WorkersThatTrainServeEachOther) {
  std::vector<std::unique_ptr<ReservedPort>> ports;
  for (int i = 0; i < 2; ++i) ports.push_back(std::make_unique<ReservedPort>());
  const std::string own = WriteIrisJob("hosts", [](v1::JobFile& file) { file.set_workers(2); });
  const std::string served = ChangeJob(own, "hosts_served.job", [&](v1::JobFile& file) {
    // Worker 0's rows are those of host 1, and the other way round.
    for (const int host : {1, 0}) file.mutable_data()->add_served_from(ports[host]->address());
  });
  Cluster cluster(1);
  const std::vector<std::string> read = TrainOn(cluster, own, 2);
  std::vector<std::unique_ptr<Process>> workers;
  for (int rank = 0; rank < 2; ++rank) {
    const std::string& address = ports[rank]->address();
    workers.push_back(cluster.StartWorker(
        served, rank, 2,
        {absl::StrCat("--serve_data=", address.substr(address.rfind(':') + 1)),
         absl::StrCat("--output=", TemporaryPath(absl::StrCat("hosts", rank, ".safetensors"))),
         "--output_per_rank"}));
  }
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(WaitFor(*workers[rank]), ExitCode(0)) << workers[rank]->output();
    EXPECT_THAT(workers[rank]->output(), HasSubstr("served "));
    EXPECT_THAT(workers[rank]->output(), Not(HasSubstr("served 0 batches")));
    EXPECT_EQ(
        ReadFileOrDie(TemporaryPath(absl::StrCat("hosts", rank, ".rank", rank, ".safetensors"))),
        read[rank]);
  }
}

TEST(ServedDataTest, AWorkerWhoseDataIsGoneSaysSo) {
  const std::string own = WriteLongJob("cut_off", 1'000'000);
  const DataServer server = ServeData(own);
  const std::string served = ChangeJob(own, "cut_off_served.job", [&](v1::JobFile& file) {
    file.mutable_data()->add_served_from(server.address);
  });
  Cluster cluster(1);
  const auto worker = cluster.StartWorker(served, 0, 1);
  ASSERT_TRUE(worker->WaitForLine("cut_off: 3000 rows", kLongEnough).ok()) << worker->output();
  server.process->Kill(SIGKILL);
  EXPECT_EQ(WaitFor(*worker), ExitCode(200)) << worker->output();
  EXPECT_THAT(worker->output(), HasSubstr(absl::StrCat("data server ", server.address)));
}

}  // namespace
}  // namespace syncgrads::testing
