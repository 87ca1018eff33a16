#include "tests/integration/cluster.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace syncgrads::testing {
namespace {

constexpr char kServer[] = "server/ps-server";
constexpr char kWorker[] = "worker/ps-worker";
constexpr char kIrisJob[] = "examples/iris/iris.job";

std::unique_ptr<Process> StartOrDie(const std::string& program, std::vector<std::string> args) {
  auto process = Process::Start({.program = program, .args = std::move(args)});
  if (!process.ok()) {
    // No test can continue without its programs.
    fprintf(stderr, "%s\n", process.status().ToString().c_str());
    abort();
  }
  return *std::move(process);
}

std::string OutputOf(int rank) {
  return TemporaryPath(absl::StrCat("trained.rank", rank, ".safetensors"));
}

uint16_t PortOf(const std::string& address) {
  uint32_t port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) << address;
  return static_cast<uint16_t>(port);
}

v1::JobFile ParseJob(const std::string& text) {
  v1::JobFile job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &job)) << text;
  return job;
}

std::string WriteJob(const std::string& name, const v1::JobFile& job) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(job, &text);
  return WriteTemporaryFile(absl::StrCat(name, ".job"), text);
}

}  // namespace

Cluster::Cluster(int servers, const std::vector<std::string>& flags) {
  static int clusters = 0;
  const std::string root = TemporaryPath(absl::StrCat("state-", getpid(), "-", clusters++));
  for (int index = 0; index < servers; ++index) {
    states_.push_back(absl::StrCat(root, "-", index));
    std::vector<std::string> all = {absl::StrCat("--index=", index), "--port=0", "--bind=127.0.0.1",
                                    absl::StrCat("--state=", states_.back())};
    all.push_back(index == 0 ? absl::StrCat("--servers=", servers)
                             : absl::StrCat("--coordinator=", coordinator()));
    all.insert(all.end(), flags.begin(), flags.end());
    flags_.push_back(std::move(all));
    servers_.emplace_back();
    addresses_.push_back(StartServer(index));
  }
}

Cluster::~Cluster() {
  servers_.clear();
  for (const std::string& state : states_) std::filesystem::remove_all(state);
}

void Cluster::Restart(int index) {
  // Servers that were killed together are restarted one after the other.
  for (int server = 0; server < static_cast<int>(servers_.size()); ++server) {
    if (servers_[server]->Wait(absl::ZeroDuration()).ok()) {
      reserved_.try_emplace(server, PortOf(address(server)));
    }
  }
  EXPECT_EQ(StartServer(index), address(index));
  reserved_.erase(index);
}

std::string Cluster::StartServer(int index) {
  servers_[index] = StartOrDie(kServer, flags_[index]);
  const auto line = servers_[index]->WaitForLine(
      absl::StrCat("ps-server ", index, " listening on "), kLongEnough);
  EXPECT_TRUE(line.ok()) << line.status();
  const std::string port = line.ok() ? line->substr(line->rfind(':') + 1) : "0";
  return absl::StrCat("127.0.0.1:", port);
}

std::unique_ptr<Process> Cluster::StartWorker(const std::string& job, int rank, int world_size,
                                              const std::vector<std::string>& flags) const {
  std::vector<std::string> all = {absl::StrCat("--job=", job),
                                  absl::StrCat("--server=", coordinator()),
                                  absl::StrCat("--rank=", rank),
                                  absl::StrCat("--world_size=", world_size),
                                  "--timeout=2m",
                                  "--stop_grace=2m",
                                  "--log_level=debug"};
  all.insert(all.end(), flags.begin(), flags.end());
  return StartOrDie(kWorker, std::move(all));
}

std::vector<std::string> TrainOn(const Cluster& cluster, const std::string& job, int workers,
                                 const std::vector<std::string>& flags) {
  std::vector<std::unique_ptr<Process>> processes;
  std::vector<std::string> all = flags;
  all.push_back(absl::StrCat("--output=", TemporaryPath("trained.safetensors")));
  all.push_back("--output_per_rank");
  for (int rank = 0; rank < workers; ++rank) {
    std::filesystem::remove(OutputOf(rank));
    processes.push_back(cluster.StartWorker(job, rank, workers, all));
  }
  std::vector<std::string> contents;
  for (int rank = 0; rank < workers; ++rank) {
    EXPECT_EQ(WaitFor(*processes[rank]), ExitCode(0)) << "worker " << rank << ":\n"
                                                      << processes[rank]->output();
    contents.push_back(ReadFileOrDie(OutputOf(rank)));
  }
  return contents;
}

Exit WaitFor(Process& process) {
  const absl::StatusOr<Exit> exit = process.Wait(kLongEnough);
  EXPECT_TRUE(exit.ok()) << exit.status();
  return exit.value_or(Exit{});
}

std::string TemporaryPath(const std::string& name) {
  return absl::StrCat(::testing::TempDir(), "/", name);
}

std::string ReadFileOrDie(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream contents;
  contents << file.rdbuf();
  return contents.str();
}

std::string WriteTemporaryFile(const std::string& name, const std::string& contents) {
  const std::string path = TemporaryPath(name);
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << contents;
  return path;
}

std::string WriteIrisJob(const std::string& name, const std::function<void(v1::JobFile&)>& change) {
  v1::JobFile job = ParseJob(ReadFileOrDie(kIrisJob));
  v1::TableSource& table = *job.mutable_data()->mutable_table();
  table.set_path(
      std::filesystem::absolute(std::filesystem::path(kIrisJob).parent_path() / table.path())
          .string());
  job.set_name(name);
  change(job);
  return WriteJob(name, job);
}

std::string WriteLongJob(const std::string& name, uint64_t steps) {
  v1::JobFile job = ParseJob(R"(
    data { generated { rows: 3000 seed: 1 } }
    model {
      layers { dense { outputs: 20 activation: TANH } }
      layers { dense { outputs: 1 } }
    }
    loss { sigmoid_cross_entropy {} }
    optimizer { sgd {} }
    batch_size: 10
  )");
  job.set_name(name);
  job.set_steps(steps);
  return WriteJob(name, job);
}

}  // namespace syncgrads::testing
