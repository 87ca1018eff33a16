// ps-workers and ps-servers on one host without shared memory: payloads use the servers' unix
// sockets, and each worker logs this. A server that is killed has another unix socket after its
// restart.

#include <signal.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr int kWorkers = 2;

// Writes an Iris job file that is long enough for a server to be killed in the middle.
std::string WriteJob() {
  return WriteIrisJob("unix", [](v1::JobFile& job) {
    job.set_epochs(300);
    job.set_chunk_bytes(128);
  });
}

std::vector<std::string> PathsIn(const std::string& output) {
  return absl::StrSplit(
      output, '\n', [](absl::string_view line) { return absl::StrContains(line, "payloads go "); });
}

// Returns the start of the line with which a worker reports that payloads go over the unix socket
// of the current process of server `index`.
std::string PathTo(Cluster& cluster, int index) {
  return absl::StrCat("server ", index, ": payloads go over a unix socket (@syncgrads-streams-",
                      cluster.server(index).pid(), "-");
}

std::vector<std::string> TrainOverTcp(const std::string& job) {
  return TrainOn(Cluster(2, {"--shared_memory=false", "--unix_socket=false"}), job, kWorkers);
}

TEST(UnixSocketTest, IsTakenAndSaidOnceForEachServer) {
  Cluster cluster(2, {"--shared_memory=false"});
  const std::string job = WriteJob();
  std::vector<std::unique_ptr<Process>> workers;
  for (int rank = 0; rank < kWorkers; ++rank) {
    workers.push_back(cluster.StartWorker(job, rank, kWorkers));
  }
  for (const auto& worker : workers) {
    EXPECT_EQ(WaitFor(*worker), ExitCode(0)) << worker->output();
    EXPECT_THAT(PathsIn(worker->output()),
                UnorderedElementsAre(HasSubstr(PathTo(cluster, 0)), HasSubstr(PathTo(cluster, 1))));
  }
}

TEST(UnixSocketTest, MemoryAndTcpAreSaidAsWell) {
  const std::string job = WriteLongJob("said", 5);
  for (const auto& [flags, path] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{}, "server 0: payloads go through shared memory"},
           {{"--shared_memory=false", "--unix_socket=false"},
            "server 0: payloads go over TCP: shared memory is not available on the server"}}) {
    Cluster cluster(1, flags);
    const auto worker = cluster.StartWorker(job, 0, 1);
    EXPECT_EQ(WaitFor(*worker), ExitCode(0)) << worker->output();
    EXPECT_THAT(PathsIn(worker->output()), ElementsAre(HasSubstr(path)));
    EXPECT_THAT(worker->output(), HasSubstr("payloads to the server go "));
  }
}

TEST(UnixSocketTest, OfAServerThatIsKilledIsLeftForThatOfItsSuccessor) {
  const std::string job = WriteJob();
  const std::vector<std::string> undisturbed = TrainOverTcp(job);
  Cluster cluster(2, {"--shared_memory=false", "--stream_grace=30s"});
  std::vector<std::unique_ptr<Process>> workers;
  for (int rank = 0; rank < kWorkers; ++rank) {
    workers.push_back(cluster.StartWorker(
        job, rank, kWorkers,
        {absl::StrCat("--output=", TemporaryPath("all.safetensors")), "--output_per_rank"}));
  }
  for (const auto& worker : workers) {
    const auto said = worker->WaitForLine(PathTo(cluster, 1), kLongEnough);
    ASSERT_TRUE(said.ok()) << said.status();
  }
  cluster.server(1).Kill(SIGKILL);
  WaitFor(cluster.server(1));
  cluster.Restart(1);
  for (const auto& worker : workers) {
    const auto said = worker->WaitForLine(PathTo(cluster, 1), kLongEnough);
    ASSERT_TRUE(said.ok()) << said.status();
  }
  for (int rank = 0; rank < kWorkers; ++rank) {
    EXPECT_EQ(WaitFor(*workers[rank]), ExitCode(0)) << workers[rank]->output();
    EXPECT_EQ(ReadFileOrDie(TemporaryPath(absl::StrCat("all.rank", rank, ".safetensors"))),
              undisturbed[rank]);
  }
}

}  // namespace
}  // namespace syncgrads::testing
