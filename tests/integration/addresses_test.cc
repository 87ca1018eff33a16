// Tests of the addresses in the programs' flags.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(AddressesTest, AFlagThatIsNoAddressIsRefusedWithItsNameAndValue) {
  struct Case {
    std::string program;
    std::vector<std::string> args;
    int code;
    std::string named;
  };
  const std::string job = WriteLongJob("addressed", 10);
  const std::vector<std::string> server = {"--port=0", "--state=none"};
  for (const Case& one : std::vector<Case>{
           {"server/ps-server",
            {"--coordinator=host", "--index=1"},
            1,
            "--coordinator is \"host\""},
           {"server/ps-server",
            {"--coordinator=host:0", "--index=1"},
            1,
            "--coordinator is \"host:0\""},
           {"server/ps-server", {"--advertise=host:"}, 1, "--advertise is \"host:\""},
           {"server/ps-server", {"--advertise=host:x"}, 1, "--advertise is \"host:x\""},
           {"server/ps-server",
            {"--coordinator=host:7000", "--advertise=host:7001"},
            1,
            "--coordinator is \"host:7000\" and its own address, --advertise, is \"host:7001\""},
           {"server/ps-server", {"--bind=127.0.0.1:7000"}, 1, "--bind is \"127.0.0.1:7000\""},
           {"worker/ps-worker",
            {"--server=host", absl::StrCat("--job=", job)},
            2,
            "--server is \"host\""},
           {"worker/ps-worker",
            {"--server=:7000", absl::StrCat("--job=", job)},
            2,
            "--server is \":7000\""},
           {"client/psctl/psctl",
            {"--server=host:99999", "status"},
            2,
            "--server is \"host:99999\""},
       }) {
    std::vector<std::string> args = one.args;
    if (one.program == "server/ps-server") args.insert(args.end(), server.begin(), server.end());
    const auto run = RunProgram({.program = one.program, .args = args}, kLongEnough);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(run->exit, ExitCode(one.code)) << one.named << run->output;
    EXPECT_THAT(run->output, HasSubstr(one.named));
    EXPECT_THAT(run->output, AnyOf(HasSubstr("port"), HasSubstr("host"))) << "and why";
  }
}

TEST(AddressesTest, AClusterHasAtMostAThousandServers) {
  const auto run = RunProgram(
      {.program = "server/ps-server", .args = {"--port=0", "--state=none", "--servers=1001"}},
      kLongEnough);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->exit, ExitCode(1)) << run->output;
  EXPECT_THAT(run->output, HasSubstr("servers is 1001, must be at most 1000"));
}

// The advertised port is the one that the server listens on, even if the operating system picked
// it.
TEST(AddressesTest, AnAdvertisedHostNeedsNoPort) {
  const Cluster cluster(2, {"--advertise=127.0.0.1"});
  TrainOn(cluster, WriteLongJob("advertised", 10), 2);
}

// The pods of a StatefulSet have the same flags, but for what is derived from a pod's name.
TEST(AddressesTest, Server0AcceptsItsOwnAddressAsTheCoordinators) {
  const auto server = Process::Start(
      {.program = "server/ps-server",
       .args = {"--port=0", "--state=none", "--index=0", "--advertise=server-0.servers:7000",
                "--coordinator=server-0.servers:7000"}});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto line = (*server)->WaitForLine("listening on ", kLongEnough);
  EXPECT_TRUE(line.ok()) << (*server)->output();
}

TEST(AddressesTest, AServerListensOnAnIpv6Address) {
  const auto server = Process::Start(
      {.program = "server/ps-server", .args = {"--port=0", "--state=none", "--bind=::1"}});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto line = (*server)->WaitForLine("listening on ", kLongEnough);
  if (!line.ok()) GTEST_SKIP() << "there is no IPv6 here: " << (*server)->output();
  const std::string port = line->substr(line->rfind(':') + 1);
  const auto status =
      RunProgram({.program = "client/psctl/psctl",
                  .args = {absl::StrCat("--server=[::1]:", port), "--timeout=2m", "status"}},
                 kLongEnough);
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->exit, ExitCode(0)) << status->output;
}

}  // namespace
}  // namespace syncgrads::testing
