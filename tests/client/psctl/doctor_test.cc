// Faults that are planted, and what doctor finds. Most of them are planted in servers that it asks
// over real connections.

#include "client/psctl/doctor.h"

#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/shm/region.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/psctl/fake_server.h"
#include "tests/testing/reserved_port.h"

namespace syncgrads::client {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

HostFacts GoodHost() {
  HostFacts host;
  host.host_id = HostId();
  host.user_id = 7;
  host.network_namespace = NetworkNamespace();
  host.dev_shm = Space{uint64_t{8} << 30, uint64_t{7} << 30};
  host.congestion_control = "cubic";
  return host;
}

// The tests assert no times: the machine may be slow.
DoctorLimits PatientLimits() {
  DoctorLimits limits;
  limits.max_latency = absl::InfiniteDuration();
  limits.min_bandwidth = 0;
  limits.max_clock_skew = absl::Hours(1);
  return limits;
}

// A TCP port at which nothing listens, or a program with another protocol.
class OtherPort {
 public:
  ~OtherPort() {
    shutdown(port_.socket(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }
  const std::string& address() const { return port_.address(); }
  // The kernel accepts connections, and nobody answers, as with a stopped server.
  void BeSilent() { ASSERT_EQ(listen(port_.socket(), 16), 0); }
  // Answers every connection as a web server does.
  void SpeakHttp() {
    ASSERT_EQ(listen(port_.socket(), 16), 0);
    thread_ = std::thread([this] {
      while (true) {
        const FileDescriptor connection(accept(port_.socket(), nullptr, nullptr));
        if (!connection.valid()) return;
        const std::string text = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
        [[maybe_unused]] const ssize_t sent =
            send(connection.get(), text.data(), text.size(), MSG_NOSIGNAL);
      }
    });
  }

 private:
  const testing::ReservedPort port_;
  std::thread thread_;
};

class DoctorTest : public ::testing::Test {
 protected:
  DoctorTest() {
    zero_.Lists(0, zero_.address());
    zero_.Lists(1, one_.address());
  }

  // Returns what is wrong.
  std::vector<std::string> Find(const std::string& address,
                                absl::Duration timeout = absl::Minutes(2)) {
    std::ostringstream out;
    const absl::Status status =
        RunDoctor(address, timeout, PatientLimits(), host_, /*json=*/false, out);
    std::vector<std::string> wrong;
    for (const auto line : absl::StrSplit(out.str(), '\n')) {
      if (line.substr(0, 5) == "WRONG") wrong.emplace_back(line);
    }
    EXPECT_EQ(status.ok(), wrong.empty()) << status << "\n" << out.str();
    return wrong;
  }
  std::vector<std::string> Find() { return Find(zero_.address()); }

  HostFacts host_ = GoodHost();
  FakeServer zero_{0}, one_{1};
};

TEST_F(DoctorTest, FindsNothingIfNothingIsWrong) { EXPECT_THAT(Find(), IsEmpty()); }

TEST_F(DoctorTest, MeasuresSharedMemoryThatAServerUses) {
  const auto text = [this] {
    std::ostringstream out;
    RunDoctor(zero_.address(), absl::Minutes(2), PatientLimits(), host_, /*json=*/false, out)
        .IgnoreError();
    return out.str();
  };
  EXPECT_THAT(text(), ContainsRegex("server 0, [^\n]*: payloads use shared memory, which one "
                                    "thread reads at [1-9][0-9.]* [MG]iB/s"));
  host_.host_id = "another host";
  EXPECT_THAT(text(), Not(HasSubstr("one thread reads")));
}

TEST_F(DoctorTest, FindsAWrongPort) {
  const OtherPort closed;
  EXPECT_THAT(Find(closed.address()),
              ElementsAre(AllOf(HasSubstr(closed.address()), HasSubstr("cannot be used"),
                                HasSubstr("start a ps-server there"))));
}

TEST_F(DoctorTest, FindsAnotherProtocol) {
  OtherPort web;
  web.SpeakHttp();
  EXPECT_THAT(Find(web.address()),
              ElementsAre(AllOf(HasSubstr(web.address()), HasSubstr("correct the address"))));
}

TEST_F(DoctorTest, FindsAServerThatAcceptsConnectionsAndDoesNotAnswer) {
  OtherPort stopped;
  stopped.BeSilent();
  EXPECT_THAT(Find(stopped.address(), absl::Milliseconds(200)),
              ElementsAre(AllOf(HasSubstr(stopped.address()), HasSubstr("accepts connections, but"),
                                HasSubstr("within 200 ms"), HasSubstr("continue or restart"))));
}

TEST_F(DoctorTest, FindsADeadServer) {
  one_.Stop();
  zero_.Set([](v1::GetStatusReply& reply) {
    reply.mutable_server()->mutable_servers(1)->set_connected(false);
  });
  EXPECT_THAT(Find(), ElementsAre(AllOf(HasSubstr("server 1, " + one_.address()),
                                        HasSubstr("start a ps-server there"))));
}

TEST_F(DoctorTest, FindsAServerThatHasNeverConnected) {
  zero_.Lists(2, "");
  EXPECT_THAT(Find(), ElementsAre(AllOf(HasSubstr("server 2 has never connected"),
                                        HasSubstr("--index=2"))));
}

TEST_F(DoctorTest, FindsAnotherRelease) {
  one_.Set([](v1::GetStatusReply& reply) { reply.mutable_server()->set_version("99.1.0"); });
  EXPECT_THAT(Find(), ElementsAre(AllOf(HasSubstr("server 1"), HasSubstr("is version 99.1.0, this"),
                                        HasSubstr("install the same version"))));
  one_.Set([](v1::GetStatusReply& reply) { reply.mutable_server()->clear_version(); });
  EXPECT_THAT(Find(), ElementsAre(AllOf(HasSubstr("server 1"), HasSubstr("is an older version"))));
}

TEST_F(DoctorTest, FindsAnotherVersion) {
  one_.Set([](v1::GetStatusReply& reply) { reply.set_protocol_version(kProtocolVersion + 1); });
  EXPECT_THAT(Find(), ElementsAre(AllOf(HasSubstr("server 1"),
                                        HasSubstr(absl::StrCat("version ", kProtocolVersion + 1)),
                                        HasSubstr("install the same version"))));
}

TEST_F(DoctorTest, FindsClocksThatDiffer) {
  zero_.SetClock(absl::Hours(48));
  one_.SetClock(-absl::Hours(48));
  EXPECT_THAT(Find(), ElementsAre(AllOf(HasSubstr("server 0"), HasSubstr("48.0 h ahead of"),
                                        HasSubstr("NTP")),
                                  AllOf(HasSubstr("server 1"), HasSubstr("48.0 h behind"))));
}

TEST_F(DoctorTest, FindsAServerThatWasDrained) {
  zero_.Set([](v1::GetStatusReply& reply) { reply.mutable_server()->set_draining(true); });
  EXPECT_THAT(Find(), ElementsAre(AllOf(HasSubstr("server 0"), HasSubstr("drained: restart it"))));
}

TEST_F(DoctorTest, FindsAFullStateDirectoryAndFullMemory) {
  one_.Set([](v1::GetStatusReply& reply) {
    reply.mutable_server()->set_state_free_bytes(1 << 20);
    reply.mutable_server()->set_memory_free_bytes(2 << 20);
  });
  EXPECT_THAT(Find(), ElementsAre(AllOf(HasSubstr("/state of server 1"),
                                        HasSubstr("1.0 MiB free, no more than 64.0 MiB"),
                                        HasSubstr("--state"))));
  one_.Set([](v1::GetStatusReply& reply) {
    reply.mutable_server()->set_state_free_bytes(uint64_t{1} << 40);
  });
  EXPECT_THAT(Find(), ElementsAre(AllOf(HasSubstr("server 1"), HasSubstr("2.0 MiB of memory"))));
  one_.Set([](v1::GetStatusReply& reply) {
    reply.mutable_server()->clear_state_directory();
    reply.mutable_server()->set_state_free_bytes(0);
    reply.mutable_server()->set_memory_free_bytes(2 << 30);
  });
  EXPECT_THAT(Find(), IsEmpty()) << "it keeps no state";
}

TEST_F(DoctorTest, FindsTheEmptyStateDirectoryOfAContainer) {
  one_.Set([](v1::GetStatusReply& reply) {
    reply.mutable_server()->set_state_free_bytes(64 << 20);
    reply.mutable_server()->set_state_total_bytes(64 << 20);
  });
  EXPECT_THAT(Find(), ElementsAre(HasSubstr("64.0 MiB of 64.0 MiB free, no more than 64.0 MiB")));
  one_.Set([](v1::GetStatusReply& reply) {
    reply.mutable_server()->clear_state_directory();
    reply.mutable_server()->set_memory_free_bytes(64 << 20);
    reply.mutable_server()->set_memory_total_bytes(64 << 20);
  });
  EXPECT_THAT(Find(), ElementsAre(AllOf(HasSubstr("64.0 MiB of 64.0 MiB of memory free"),
                                        HasSubstr("--shm-size"))));
}

TEST_F(DoctorTest, FindsThatLittleOfALargeFileSystemIsFree) {
  const auto set = [this](uint64_t free_mib) {
    one_.Set([free_mib](v1::GetStatusReply& reply) {
      reply.mutable_server()->set_state_free_bytes(free_mib << 20);
      reply.mutable_server()->set_state_total_bytes(uint64_t{4} << 30);
    });
  };
  set(123);  // 3 %
  EXPECT_THAT(Find(), ElementsAre(AllOf(HasSubstr("/state of server 1"),
                                        HasSubstr("123 MiB of 4.0 GiB free, less than 5 %"))));
  set(250);
  EXPECT_THAT(Find(), IsEmpty());
}

TEST_F(DoctorTest, FindsAFollowerThatDoesNotReachItsCoordinator) {
  one_.Set([](v1::GetStatusReply& reply) {
    reply.mutable_server()->set_coordinator_reached(false);
    reply.mutable_server()->set_coordinator("10.9.9.9:7000");
  });
  EXPECT_THAT(Find(), ElementsAre(AllOf(HasSubstr("server 1"), HasSubstr("10.9.9.9:7000"),
                                        HasSubstr("correct --coordinator"))));
}

TEST_F(DoctorTest, FindsAFollowerWithAWrongCoordinatorWhichDoesNotAnswer) {
  const OtherPort closed;
  one_.Set([&closed](v1::GetStatusReply& reply) {
    reply.mutable_server()->set_coordinator_reached(false);
    reply.mutable_server()->set_coordinator(closed.address());
  });
  EXPECT_THAT(Find(one_.address()), ElementsAre(AllOf(HasSubstr("server 0, " + closed.address()),
                                                      HasSubstr("(the --coordinator of server 1"),
                                                      HasSubstr("cannot be used"))));
}

TEST_F(DoctorTest, AConnectionThatIsLostIsOneFinding) {
  zero_.Set([](v1::GetStatusReply& reply) {
    reply.mutable_server()->mutable_servers(1)->set_connected(false);
  });
  one_.Set([this](v1::GetStatusReply& reply) {
    reply.mutable_server()->set_coordinator_reached(false);
    reply.mutable_server()->set_coordinator(zero_.address());
  });
  EXPECT_THAT(Find(), ElementsAre(AllOf(HasSubstr("server 1"), HasSubstr("has no connection to"),
                                        HasSubstr(zero_.address()))));
}

TEST_F(DoctorTest, FindsAServerThatTheCoordinatorHasLost) {
  zero_.Set([](v1::GetStatusReply& reply) {
    reply.mutable_server()->mutable_servers(1)->set_connected(false);
  });
  EXPECT_THAT(Find(), ElementsAre(AllOf(HasSubstr("lost server 1"), HasSubstr(one_.address()))));
}

TEST_F(DoctorTest, FindsAnAddressThatLeadsToAnotherServer) {
  zero_.Lists(2, one_.address());
  EXPECT_THAT(Find(), Contains(AllOf(HasSubstr("server 2"), HasSubstr("leads to server 1"),
                                     HasSubstr("--advertise"))));
}

TEST_F(DoctorTest, FindsAnotherUserAndMissingSharedMemory) {
  host_.user_id = 8;
  one_.Set([](v1::GetStatusReply& reply) { reply.mutable_server()->set_shares_memory(false); });
  EXPECT_THAT(Find(), ElementsAre(AllOf(HasSubstr("server 0"), HasSubstr("user 7, not as 8")),
                                  AllOf(HasSubstr("server 1"), HasSubstr("shares no memory"))));
  host_.host_id = "another host";
  EXPECT_THAT(Find(), IsEmpty());
}

TEST_F(DoctorTest, FindsAServerInAnotherNetworkNamespaceOfThisHost) {
  one_.Set([](v1::GetStatusReply& reply) {
    reply.mutable_server()->set_network_namespace(NetworkNamespace() + 1);
  });
  EXPECT_THAT(Find(), ElementsAre(AllOf(HasSubstr("server 1"),
                                        HasSubstr(absl::StrCat("namespace ", NetworkNamespace() + 1,
                                                               ", not in ", NetworkNamespace())),
                                        HasSubstr("share no memory"))));
}

TEST_F(DoctorTest, FindsTheSmallSharedMemoryOfAContainer) {
  host_.dev_shm = Space{64 << 20, 64 << 20};
  EXPECT_THAT(Find(), ElementsAre(AllOf(HasSubstr("/dev/shm of this host has 64.0 MiB"),
                                        HasSubstr("--shm-size"))));
  host_.dev_shm = std::nullopt;
  EXPECT_THAT(Find(), ElementsAre(HasSubstr("no /dev/shm")));
}

TEST_F(DoctorTest, FindsCongestionControlsThatDiffer) {
  one_.Set(
      [](v1::GetStatusReply& reply) { reply.mutable_server()->set_congestion_control("bbr"); });
  EXPECT_THAT(Find(), ElementsAre(AllOf(HasSubstr("server 0"), HasSubstr("server 1"),
                                        HasSubstr("bbr"), HasSubstr("--congestion_control"))));
}

TEST_F(DoctorTest, FindsAServerWithTooManyConnections) {
  one_.Set([](v1::GetStatusReply& reply) { reply.mutable_server()->set_connections(95); });
  EXPECT_THAT(Find(),
              ElementsAre(AllOf(HasSubstr("95 of at most 100"), HasSubstr("--max_connections"))));
}

// Returns what is wrong with one server, whose link is as given.
std::vector<std::string> WrongWith(const ServerFacts& server) {
  std::vector<std::string> wrong;
  for (const Finding& finding : Diagnose(GoodHost(), {server}, DoctorLimits(), absl::Seconds(2))) {
    if (finding.is_wrong) wrong.push_back(finding.text);
  }
  return wrong;
}

ServerFacts GoodServer() {
  ServerFacts server;
  server.answer.index = 0;
  server.answer.address = "host-a:7000";
  server.answer.reply = HealthyStatus(0);
  server.answer.date = absl::FromUnixMillis(1'700'000'000'000);
  server.answer.reply->mutable_server()->set_date_ms(1'700'000'000'000);
  server.answer.took = absl::Milliseconds(1);
  server.rate_to = 1e9;
  server.rate_from = 1e9;
  return server;
}

TEST(DiagnosisTest, FindsASlowLink) {
  ServerFacts server = GoodServer();
  EXPECT_THAT(WrongWith(server), IsEmpty());
  server.rate_to = 1 << 20;
  EXPECT_THAT(WrongWith(server),
              ElementsAre(AllOf(HasSubstr("the link to server 0, host-a:7000 carries 1.0 MiB/s, "),
                                HasSubstr("compression"))));
  std::swap(server.rate_to, server.rate_from);
  EXPECT_THAT(WrongWith(server),
              ElementsAre(HasSubstr("the link from server 0, host-a:7000 carries 1.0 MiB/s, ")));
  server.rate_to = 2 << 20;
  EXPECT_THAT(WrongWith(server),
              ElementsAre(HasSubstr("the link to server 0, host-a:7000 carries 2.0 MiB/s, and the "
                                    "one from server 0, host-a:7000 1.0 MiB/s, less than ")));
  server.rate_to = server.rate_from = std::nullopt;
  server.answer.took = absl::Milliseconds(80);
  EXPECT_THAT(WrongWith(server), ElementsAre(HasSubstr("answers in 80.0 ms, more than 10.0 ms")));
}

TEST(DiagnosisTest, FindsALinkThatIsMuchSlowerThanTheOthers) {
  ServerFacts here = GoodServer(), fast = GoodServer(), slow = GoodServer();
  here.rate_to = 8e9;
  fast.answer.index = 1;
  slow.answer.index = 2;
  slow.answer.address = "host-c:7000";
  for (ServerFacts* remote : {&fast, &slow}) {
    remote->answer.reply->set_server_index(*remote->answer.index);
    remote->answer.reply->mutable_server()->set_host_id("another host");
  }
  const auto wrong = [&] {
    std::vector<std::string> texts;
    for (const Finding& finding :
         Diagnose(GoodHost(), {here, fast, slow}, DoctorLimits(), absl::Seconds(2))) {
      if (finding.is_wrong) texts.push_back(finding.text);
    }
    return texts;
  };
  slow.rate_from = 0.26e9;
  EXPECT_THAT(wrong(), IsEmpty()) << "a link on this host is no measure of the others";
  slow.rate_from = 0.24e9;
  EXPECT_THAT(wrong(), ElementsAre(AllOf(
                           HasSubstr("the link from server 2, host-c:7000 carries 229 MiB/s, "),
                           HasSubstr("less than 25 % of the 954 MiB/s of the link to server 1"))));
  slow.rate_from = 1e6;
  EXPECT_THAT(wrong(), ElementsAre(HasSubstr("less than 11.9 MiB/s")));
  here.rate_to = 0.1e9;
  slow.rate_from = 1e9;
  EXPECT_THAT(wrong(), IsEmpty()) << "and its payloads use shared memory";
}

TEST(DiagnosisTest, SaysWhichReleaseAndCommitAServerIs) {
  ServerFacts server = GoodServer();
  const BuildInfo build = {.version = "1.2.3", .commit = "abc", .cuda = "no", .grpc = "1.51.1"};
  v1::ServerStatus& status = *server.answer.reply->mutable_server();
  status.set_version("1.2.3");
  status.set_commit("abc");
  status.set_grpc_version("1.52.0");
  const auto has = [&](const std::string& text) {
    const std::vector<Finding> found =
        Diagnose(GoodHost(), {server}, DoctorLimits(), absl::Seconds(2), build);
    return ::testing::Value(found,
                            Contains(AllOf(::testing::Field(&Finding::is_wrong, false),
                                           ::testing::Field(&Finding::text, HasSubstr(text)))));
  };
  EXPECT_TRUE(has("is version 1.2.3, as this program; its gRPC is 1.52.0"));
  status.set_commit("def");
  EXPECT_TRUE(has("as this program, but built from commit def, not abc; its gRPC"));
}

TEST(DiagnosisTest, SaysWhetherTheKernelMakesHugePages) {
  const auto has = [](bool has_huge_pages, const std::string& text) {
    HostFacts host = GoodHost();
    host.has_huge_pages = has_huge_pages;
    return ::testing::Value(Diagnose(host, {GoodServer()}, DoctorLimits(), absl::Seconds(2)),
                            Contains(::testing::Field(&Finding::text, HasSubstr(text))));
  };
  EXPECT_TRUE(has(true, "makes huge pages"));
  EXPECT_TRUE(has(false, "makes no huge pages"));
  EXPECT_TRUE(has(false, "use Linux 6.1 or later"));
}

TEST(DiagnosisTest, SaysWhatIsEncryptedAndWhatWasNotMeasured) {
  HostFacts host = GoodHost();
  ServerFacts server = GoodServer();
  server.rate_to = server.rate_from = std::nullopt;
  const auto has = [&](const std::string& text) {
    return ::testing::Value(Diagnose(host, {server}, DoctorLimits(), absl::Seconds(2)),
                            Contains(::testing::Field(&Finding::text, HasSubstr(text))));
  };
  EXPECT_TRUE(has("the link was not measured"));
  EXPECT_TRUE(has("this program are not encrypted"));
  host.has_tls = true;
  EXPECT_TRUE(has("this program are encrypted"));
  server.answer.reply = absl::UnavailableError("handshake failed");
  server.port = ServerFacts::Port::kAccepts;
  EXPECT_TRUE(has("correct --tls_ca, --tls_certificate and --tls_key"));
}

TEST(DiagnosisTest, ASlowAnswerIsNoClockSkew) {
  ServerFacts server = GoodServer();
  server.answer.took = absl::Seconds(10);
  server.answer.date += absl::Seconds(5);
  EXPECT_THAT(WrongWith(server), ElementsAre(HasSubstr("answers in 10.0 s")));
}

TEST(DiagnosisTest, NamesTheReasonWhyThereIsNoAnswer) {
  ServerFacts server = GoodServer();
  server.answer.reply = absl::DeadlineExceededError("Deadline Exceeded");
  server.port = ServerFacts::Port::kSilent;
  EXPECT_THAT(WrongWith(server),
              ElementsAre(AllOf(HasSubstr("host-a:7000"), HasSubstr("within 2.0 s"),
                                HasSubstr("open its port in the firewalls"))));
  server.port = ServerFacts::Port::kAccepts;
  server.answer.reply = absl::UnavailableError("no settings frame");
  EXPECT_THAT(WrongWith(server), ElementsAre(AllOf(HasSubstr("does not answer (no settings frame)"),
                                                   HasSubstr("continue or restart"))));
  EXPECT_THAT(WrongWith(server), ElementsAre(HasSubstr("set --tls_ca if the server has TLS")));
  server.answer.reply = absl::PermissionDeniedError("the role viewer or operator is needed");
  EXPECT_THAT(WrongWith(server),
              ElementsAre(AllOf(HasSubstr("the role viewer or operator is needed"),
                                HasSubstr("use a certificate or a token"))));
  server.port = ServerFacts::Port::kUnknown;
  server.answer.reply = absl::UnimplementedError("no such method");
  EXPECT_THAT(WrongWith(server), ElementsAre(HasSubstr("another program or an older version")));
  server.resolve_error = "Name or service not known";
  EXPECT_THAT(WrongWith(server), ElementsAre(AllOf(HasSubstr("cannot be resolved (Name or"),
                                                   HasSubstr("correct the address"))));
}

}  // namespace
}  // namespace syncgrads::client
