#include "common/net/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads {
namespace {

TEST(AddressTest, ReadsNamesAndAddressesWithPorts) {
  struct Case {
    std::string text;
    HostPort address;
  };
  for (const Case& one :
       std::vector<Case>{{"localhost:7000", {"localhost", 7000}},
                         {"ps-0.ps_jobs.example.org:1", {"ps-0.ps_jobs.example.org", 1}},
                         {"10.0.0.1:65535", {"10.0.0.1", 65535}},
                         {"[::1]:7000", {"::1", 7000}},
                         {"[fe80::1%eth0]:80", {"fe80::1%eth0", 80}}}) {
    const auto address = ParseHostPort("--server", one.text);
    ASSERT_THAT(address, IsOk()) << one.text;
    EXPECT_EQ(*address, one.address) << one.text;
    EXPECT_EQ(ToString(*address), one.text);
  }
}

TEST(AddressTest, PeersAreCountedByIpv4AddressOrIpv6Network) {
  EXPECT_EQ(NetworkOf("10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(NetworkOf("::ffff:10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(NetworkOf("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
  EXPECT_EQ(NetworkOf("fe80::1%eth0"), "fe80::/64");
  EXPECT_EQ(NetworkOf("unix"), "unix");
}

TEST(AddressTest, AllLoopbackAddressesCountAsOnePeer) {
  for (const char* address :
       {"127.0.0.1", "127.0.0.2", "127.255.1.3", "::1", "::ffff:127.0.0.1", "::ffff:127.9.9.9"}) {
    EXPECT_EQ(NetworkOf(address), "127.0.0.1") << address;
  }
  EXPECT_EQ(NetworkOf("128.0.0.1"), "128.0.0.1");
  EXPECT_EQ(NetworkOf("::2"), "::/64");
}

TEST(AddressTest, OnlyAnAddressToListenOnMayHavePort0) {
  const auto any = ParseListenAddress("--metrics", "localhost:0");
  ASSERT_THAT(any, IsOk());
  EXPECT_EQ(*any, (HostPort{"localhost", 0}));
  const auto six = ParseListenAddress("--metrics", "[::]:9464");
  ASSERT_THAT(six, IsOk());
  EXPECT_EQ(*six, (HostPort{"::", 9464}));
  ExpectError(ParseListenAddress("--metrics", "localhost:65536"),
              absl::StatusCode::kInvalidArgument, {"--metrics", "localhost:65536", "0 to 65535"});
  ExpectError(ParseListenAddress("--metrics", "9464"), absl::StatusCode::kInvalidArgument,
              {"--metrics", "9464", "no port"});
}

TEST(AddressTest, RefusesEverythingElseAndNamesTheFlagTheValueAndTheReason) {
  struct Case {
    std::string text, reason;
  };
  for (const Case& one : std::vector<Case>{{"", "no host"},
                                           {"host", "no port"},
                                           {"host:", "no port"},
                                           {":7000", "no host"},
                                           {"host:0", "1 to 65535"},
                                           {"host:65536", "1 to 65535"},
                                           {"host:99999999999999999999", "1 to 65535"},
                                           {"host:70a0", "1 to 65535"},
                                           {"host:+70", "1 to 65535"},
                                           {"host: 70", "1 to 65535"},
                                           {"host:7000:7001", "1 to 65535"},
                                           {"http://host:7000", "1 to 65535"},
                                           {"two words:7000", "not a valid host"},
                                           {"ho\nst:7000", "not a valid host"},
                                           {"::1", "in brackets"},
                                           {"[::1]", "no port"},
                                           {"[::1]7000", "not a valid host"},
                                           {"[::1:7000", "not a valid host"},
                                           {"[host]:7000", "not an IPv6 address"},
                                           {"unix:/run/ps.sock", "1 to 65535"}}) {
    ExpectError(ParseHostPort("--coordinator", one.text).status(),
                absl::StatusCode::kInvalidArgument,
                {"--coordinator is \"" + one.text + "\"", "HOST:PORT", one.reason});
  }
}

TEST(AddressTest, APortMayBeLeftOutWhereThereIsOne) {
  EXPECT_EQ(*ParseHostAndPort("--advertise", "host", 7000), (HostPort{"host", 7000}));
  EXPECT_EQ(*ParseHostAndPort("--advertise", "::1", 0), (HostPort{"::1", 0}));
  EXPECT_EQ(*ParseHostAndPort("--advertise", "[::1]", 7000), (HostPort{"::1", 7000}));
  EXPECT_EQ(*ParseHostAndPort("--advertise", "[::1]:8000", 7000), (HostPort{"::1", 8000}));
  EXPECT_EQ(*ParseHostAndPort("--advertise", "host:8000", 7000), (HostPort{"host", 8000}));
  for (const char* text : {"", "host:", "host:0", "host:x", ":7000", "a b"}) {
    ExpectError(ParseHostAndPort("--advertise", text, 7000).status(),
                absl::StatusCode::kInvalidArgument, {"--advertise", "HOST or HOST:PORT", text});
  }
}

TEST(AddressTest, AServerMayBeAtAUnixSocket) {
  for (const char* text : {"unix:/run/ps.sock", "unix-abstract:name", "host:7000", "[::1]:7000"}) {
    EXPECT_THAT(CheckServerAddress("--server", text), IsOk()) << text;
  }
  for (const char* text : {"unix:", "unix-abstract:", "host", "dns:///host"}) {
    ExpectError(CheckServerAddress("--server", text), absl::StatusCode::kInvalidArgument,
                {"--server", text});
  }
}

TEST(AddressTest, KnowsTheAddressesOfThisHostsInterfaces) {
  for (const char* host : {"127.0.0.1", "127.3.2.1", "::1", "[::1]"}) {
    EXPECT_TRUE(IsOwnAddress(host)) << host;
  }
  // Addresses that are reserved for documentation.
  for (const char* host : {"192.0.2.1", "2001:db8::1", "[2001:db8::1]", "host", ""}) {
    EXPECT_FALSE(IsOwnAddress(host)) << host;
  }
  ifaddrs* all = nullptr;
  ASSERT_EQ(getifaddrs(&all), 0);
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    char text[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text,
              sizeof(text));
    EXPECT_TRUE(IsOwnAddress(text)) << text;
  }
  freeifaddrs(all);
}

}  // namespace
}  // namespace syncgrads
