// Streams over a unix socket: with real servers in this process, and with a server that reports the
// name of a socket at which it does not listen.

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "common/net/congestion_control.h"
#include "gmock/gmock.h"
#include "tests/client/misled.h"
#include "tests/client/reported_paths.h"
#include "tests/client/workers.h"
#include "tests/testing/cluster.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr uint32_t kWorld = 3;
constexpr int kSteps = 4;
constexpr size_t kElements = 700'000;  // three chunks; the last one is shorter

// For each rank, the results of all steps, one after the other.
using Results = std::vector<std::vector<float>>;

std::vector<float> Random(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(kElements);
  for (float& value : values) value = normal(random);
  return values;
}

GroupSpec Model() {
  GroupSpec spec;
  spec.name = "model";
  spec.tensors = {{"w", DType::kF32, {int64_t{kElements}}}};
  return spec;
}

// Trains with random values, so that the rounding of a sum depends on the order of its terms.
Results Train(const Cluster& cluster, const ClientOptions& common) {
  Results results(kWorld);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kWorld; ++rank) {
    threads.emplace_back([&, rank] {
      ClientOptions options = common;
      options.coordinator = cluster.coordinator();
      options.job = "job";
      options.rank = rank;
      options.world_size = kWorld;
      Client client(options);
      ASSERT_OK(client.Join(kTimeout));
      const auto group = client.Register(Model(), kTimeout);
      ASSERT_OK(group);
      std::vector<float> result(kElements);
      for (int step = 0; step < kSteps; ++step) {
        const std::vector<float> values = Random(step * kWorld + rank);
        ASSERT_OK(
            (*group)->Push(TensorId{0}, values.data(), kElements * sizeof(float), result.data()));
        ASSERT_OK((*group)->WaitStep(kTimeout));
        results[rank].insert(results[rank].end(), result.begin(), result.end());
      }
      ASSERT_OK((*group)->End(kTimeout));
      ASSERT_OK(client.Leave(kTimeout));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

bool SameBits(const Results& a, const Results& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size() || a[i].empty() ||
        std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

server::ServerOptions WithoutMemory(bool unix_socket) {
  server::ServerOptions options;
  options.shared_memory = false;
  options.unix_socket = unix_socket;
  return options;
}

TEST(UnixSocketTest, ResultsAreThoseOverTcpBitForBit) {
  ReportedPaths over_tcp, over_unix;
  const Results expected =
      Train(Cluster(2, WithoutMemory(/*unix_socket=*/false)), {.on_path = over_tcp.Recorder()});
  const Results results =
      Train(Cluster(2, WithoutMemory(/*unix_socket=*/true)), {.on_path = over_unix.Recorder()});
  EXPECT_TRUE(SameBits(results, expected));
  EXPECT_THAT(over_tcp.lines(), AllOf(SizeIs(2 * kWorld), Each(HasSubstr("go over TCP: "))));
  EXPECT_THAT(over_unix.lines(),
              AllOf(SizeIs(2 * kWorld),
                    Each(AllOf(HasSubstr("payloads go over a unix socket (@syncgrads-streams-"),
                               HasSubstr("): shared memory is not available on the server")))));
}

TEST(UnixSocketTest, ClientsThatShareNoMemoryTakeItToo) {
  ReportedPaths paths;
  Train(Cluster(), {.shared_memory = false, .on_path = paths.Recorder()});
  EXPECT_THAT(paths.lines(), AllOf(SizeIs(kWorld), Each(HasSubstr("go over a unix socket"))));
}

TEST(UnixSocketTest, ClientsThatAreToldSoTakeNeither) {
  ReportedPaths paths;
  Train(Cluster(), {.shared_memory = false, .unix_socket = false, .on_path = paths.Recorder()});
  EXPECT_THAT(paths.lines(), AllOf(SizeIs(kWorld), Each(HasSubstr("go over TCP: "))));
}

TEST(UnixSocketTest, HasNoCongestionControlAndDoesNotMind) {
  if (!CheckCongestionControl("reno").ok()) GTEST_SKIP() << "the kernel refuses reno";
  server::ServerOptions options = WithoutMemory(/*unix_socket=*/true);
  options.congestion_control = "reno";
  ReportedPaths paths;
  Train(Cluster(1, options), {.congestion_control = "reno", .on_path = paths.Recorder()});
  EXPECT_THAT(paths.lines(), AllOf(SizeIs(kWorld), Each(HasSubstr("go over a unix socket"))));
}

// Returns the sockets of this process that are connected to a server's unix socket for streams, by
// inode.
std::map<ino_t, int> StreamSockets() {
  std::map<ino_t, int> sockets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    int number = -1;
    sockaddr_un peer{};
    socklen_t length = sizeof(peer);
    struct stat status = {};
    if (!absl::SimpleAtoi(entry.path().filename().string(), &number) ||
        getpeername(number, reinterpret_cast<sockaddr*>(&peer), &length) != 0 ||
        peer.sun_family != AF_UNIX || fstat(number, &status) != 0) {
      continue;
    }
    if (absl::StartsWith(peer.sun_path + 1, "syncgrads-streams-")) sockets[status.st_ino] = number;
  }
  return sockets;
}

TEST(UnixSocketTest, BrokenStreamsAreOpenedThereAgain) {
  const Cluster cluster(1, WithoutMemory(/*unix_socket=*/true));
  ReportedPaths paths;
  ClientOptions options;
  options.coordinator = cluster.coordinator();
  options.job = "job";
  options.connections_per_server = 2;
  options.on_path = paths.Recorder();
  Client client(options);
  ASSERT_OK(client.Join(kTimeout));
  const auto group = client.Register(Model(), kTimeout);
  ASSERT_OK(group);
  const std::vector<float> values = Random(1);
  std::vector<float> result(kElements);
  const auto expect_step = [&] {
    ASSERT_OK((*group)->Push(TensorId{0}, values.data(), kElements * sizeof(float), result.data()));
    ASSERT_OK((*group)->WaitStep(kTimeout));
    EXPECT_EQ(result, values);
  };
  expect_step();
  std::map<ino_t, int> broken;
  ASSERT_TRUE(WaitUntil([&] { return (broken = StreamSockets()).size() == 2; }));
  for (const auto& [inode, socket] : broken) shutdown(socket, SHUT_RDWR);
  expect_step();
  EXPECT_TRUE(WaitUntil([&] {
    std::map<ino_t, int> open = StreamSockets();
    for (const auto& [inode, socket] : broken) open.erase(inode);
    return open.size() == 2;
  }));
  expect_step();
  EXPECT_THAT(paths.lines(), ElementsAre(HasSubstr("go over a unix socket")));
  ASSERT_OK((*group)->End(kTimeout));
  ASSERT_OK(client.Leave(kTimeout));
}

TEST(UnixSocketTest, OneThatNobodyListensAtIsGivenUpAtOnce) {
  const Misled server(absl::StrCat("syncgrads-nobody-", std::random_device()()));
  EXPECT_THAT(
      PushTo(server, 1),
      ElementsAre(AllOf(HasSubstr("payloads go over TCP: this worker shares no memory; the unix "
                                  "socket @syncgrads-nobody-"),
                        HasSubstr("Connection refused"))));
}

TEST(UnixSocketTest, OneAtWhichNobodyAnswersIsGivenUpAfterAWhile) {
  const std::string name = absl::StrCat("syncgrads-mute-", std::random_device()());
  const int mute = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  ASSERT_EQ(bind(mute, reinterpret_cast<const sockaddr*>(&address),
                 offsetof(sockaddr_un, sun_path) + 1 + name.size()),
            0);
  ASSERT_EQ(listen(mute, 8), 0);
  const Misled server(name);
  EXPECT_THAT(PushTo(server, 1), ElementsAre(HasSubstr("the unix socket @syncgrads-mute-")));
  close(mute);
}

TEST(UnixSocketTest, ANameThatIsNoneIsAsGoodAsNobodys) {
  const Misled server(std::string(300, 'x'));
  EXPECT_THAT(PushTo(server, 1), ElementsAre(HasSubstr("the unix socket @xxx")));
}

}  // namespace
}  // namespace syncgrads::testing
