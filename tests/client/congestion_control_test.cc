// Which sockets get the congestion control that is set for a client or a server.

#include "common/net/congestion_control.h"

#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "tests/client/workers.h"

namespace syncgrads::testing {
namespace {

std::string Default() {
  std::ifstream file("/proc/sys/net/ipv4/tcp_congestion_control");
  std::string name;
  std::getline(file, name);
  return name;
}

// Returns a congestion control that is not the kernel's default.
std::string Another() { return Default() == "reno" ? "cubic" : "reno"; }

// Counts the TCP sockets of this process that use `congestion_control`. Servers and clients run in
// this process.
int CountSockets(const std::string& congestion_control) {
  int count = 0;
  DIR* const directory = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(directory)) {
    char name[16] = "";
    socklen_t size = sizeof name;
    if (getsockopt(std::atoi(entry->d_name), IPPROTO_TCP, TCP_CONGESTION, name, &size) == 0 &&
        name == congestion_control) {
      ++count;
    }
  }
  closedir(directory);
  return count;
}

class CongestionControlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!CheckCongestionControl(Another()).ok()) GTEST_SKIP() << "the kernel refuses " << Another();
    // gRPC closes the sockets of the previous test asynchronously, on its own threads.
    ASSERT_TRUE(WaitForSockets([](int count) { return count == 0; }));
  }
  // Waits until `wanted` accepts the number of sockets that use Another(). Returns false if that
  // takes longer than kTimeout.
  static bool WaitForSockets(absl::FunctionRef<bool(int)> wanted) {
    const absl::Time deadline = absl::Now() + kTimeout;
    while (!wanted(CountSockets(Another()))) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return true;
  }
  // Joins as the only worker and runs one all-reduce. Sets `sockets` to the number of sockets that
  // use Another(), after waiting until there are at least `expected` of them.
  static void Train(Cluster& cluster, const std::string& congestion_control, int expected,
                    int& sockets) {
    Client client({.coordinator = cluster.coordinator(),
                   .job = "job",
                   .connections_per_server = 3,
                   .congestion_control = congestion_control,
                   .unix_socket = false});
    ASSERT_OK(client.Join(kTimeout));
    std::vector<float> values = {1, 2, 3};
    ASSERT_OK(client.AllReduce("sum", In(values), Out(values), Reduction::kSum, kTimeout));
    // The all-reduce needs only the first data stream; the others may still be connecting.
    WaitForSockets([&](int count) { return (sockets = count) >= expected; });
    ASSERT_OK(client.Leave(kTimeout));
  }
};

TEST_F(CongestionControlTest, OfAClientIsThatOfItsDataStreams) {
  Cluster cluster;
  int sockets = 0;
  Train(cluster, Another(), 3, sockets);
  EXPECT_EQ(sockets, 3);
}

TEST_F(CongestionControlTest, OfAServerIsThatOfAllItAccepts) {
  server::ServerOptions options;
  options.congestion_control = Another();
  Cluster cluster(1, options);
  int sockets = 0;
  Train(cluster, "", 1 + 3 + 1, sockets);
  EXPECT_GE(sockets, 1 + 3 + 1) << "the port, the data streams, the control stream";
}

TEST_F(CongestionControlTest, IsTheKernelsUnlessTold) {
  Cluster cluster;
  int sockets = 0;
  Train(cluster, "", 0, sockets);
  EXPECT_EQ(sockets, 0);
}

TEST_F(CongestionControlTest, OneThatThereIsNotIsRefusedAtTheStart) {
  server::ServerOptions options;
  options.congestion_control = "carrier-pigeon";
  RecordingJournal journal;
  EXPECT_TRUE(absl::IsInvalidArgument(server::Server::Start(options, journal).status()));
  Cluster cluster;
  Client client(
      {.coordinator = cluster.coordinator(), .job = "job", .congestion_control = "carrier-pigeon"});
  EXPECT_TRUE(absl::IsInvalidArgument(client.Join(kTimeout)));
}

}  // namespace
}  // namespace syncgrads::testing
