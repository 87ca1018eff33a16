// The roles of tokens and certificates in a real ps-server, whose rules change while it serves.

#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "common/secret.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/secured_server.h"
#include "tests/testing/process/process.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kIrisToken[] = "the token of iris";

TEST(RolesTest, TokensHaveRolesForTheirJobs) {
  SecuredServer server;
  server.WriteRules(absl::StrCat("worker iris ", HashSecret(kIrisToken),
                                 "\nviewer iris token:", kOtherToken, "\n"));
  ClientOptions options = server.Worker(server.CallerWith("nobody", kIrisToken), "wine");
  Client other(options);
  EXPECT_EQ(other.Join(kSecuredTimeout).code(), absl::StatusCode::kPermissionDenied);
  options.job = "iris";
  Client worker(options);
  ASSERT_TRUE(worker.Join(kSecuredTimeout).ok());
  Client wine(server.Worker(server.CallerWith("worker"), "wine"));
  ASSERT_TRUE(wine.Join(kSecuredTimeout).ok());

  // A viewer of one job sees only this one, and nothing that helps to speak for a member.
  Calls viewer(server, server.CallerWith("nobody", kOtherToken));
  const v1::GetStatusReply status = viewer.Status();
  ASSERT_EQ(status.jobs_size(), 1);
  EXPECT_EQ(status.jobs(0).job(), "iris");
  ASSERT_EQ(status.jobs(0).epoch().members_size(), 1);
  EXPECT_EQ(status.jobs(0).epoch().members(0).incarnation(), 0);
  EXPECT_EQ(status.jobs(0).epoch().members(0).secret_hash(), "");
  EXPECT_EQ(viewer.Explain(), grpc::StatusCode::OK);
  EXPECT_EQ(viewer.Evict(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST(RolesTest, ATokenIsReplacedWhileItsJobRuns) {
  SecuredServer server;
  server.WriteRules("worker iris token:old\n");
  Client worker(server.Worker(server.CallerWith("nobody", "old"), "iris"));
  ASSERT_TRUE(worker.Join(kSecuredTimeout).ok());
  const auto group =
      worker.Register({.name = "model", .tensors = {{"w", DType::kF32, {}}}}, kSecuredTimeout);
  ASSERT_TRUE(group.ok());
  const auto step = [&] {
    const float gradient = 3;
    float mean = 0;
    ASSERT_TRUE((*group)->Push(TensorId{0}, &gradient, sizeof(gradient), &mean).ok());
    ASSERT_TRUE((*group)->WaitStep(kSecuredTimeout).ok());
    EXPECT_EQ(mean, 3);
  };
  step();
  server.WriteRules("worker iris token:new\n");
  Calls old_token(server, server.CallerWith("nobody", "old"));
  EXPECT_EQ(old_token.Probe(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(old_token.Join(), grpc::StatusCode::PERMISSION_DENIED);
  Calls new_token(server, server.CallerWith("nobody", "new"));
  EXPECT_EQ(new_token.Probe(), grpc::StatusCode::OK);
  step();
  // A file that cannot be used changes nothing.
  server.WriteRules("worker iris\n");
  EXPECT_EQ(new_token.Probe(), grpc::StatusCode::OK);
  EXPECT_TRUE(server.process().WaitForLine("line 7: it has 2 words", kSecuredTimeout).ok());
  step();
  EXPECT_TRUE((*group)->End(kSecuredTimeout).ok());
  EXPECT_TRUE(worker.Leave(kSecuredTimeout).ok());
}

TEST(RolesTest, StrangersDoNotLearnWhichJobsAndMembersThereAre) {
  SecuredServer server;
  Client worker(server.Worker(server.CallerWith("worker"), "iris"));
  ASSERT_TRUE(worker.Join(kSecuredTimeout).ok());
  Calls stranger(server, server.CallerWith("nobody"));
  Calls other(server, server.CallerWith("nobody", kOtherToken));
  Calls own(server, server.CallerWith("worker"));
  for (const auto& [job, member] :
       {std::pair<std::string, uint32_t>("iris", 0), {"iris", 99}, {"wine", 0}}) {
    EXPECT_EQ(stranger.ExchangeAs(job, member), grpc::StatusCode::PERMISSION_DENIED) << job;
    EXPECT_EQ(other.ExchangeAs(job, member), grpc::StatusCode::PERMISSION_DENIED) << job;
  }
  // A worker retries: a server that has just started may not know them yet.
  EXPECT_EQ(own.ExchangeAs("iris", 99), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(own.ExchangeAs("wine", 0), grpc::StatusCode::UNAVAILABLE);
}

TEST(RolesTest, PathsOfCheckpointsAreForOperators) {
  SecuredServer server;
  Client worker(server.Worker(server.CallerWith("worker"), "iris"));
  ASSERT_TRUE(worker.Join(kSecuredTimeout).ok());
  worker.ReportCheckpoint(7, std::string("/checkpoints/7"));
  ASSERT_TRUE(server.process().WaitForLine("step 7 to /checkpoints/7", kSecuredTimeout).ok());
  const std::string written = "has written the checkpoint after step 7";
  const std::string operators =
      Calls(server, server.CallerWith("operator")).AllEvents().ShortDebugString();
  EXPECT_THAT(operators, HasSubstr(written + " to /checkpoints/7"));
  Calls viewer(server, server.CallerWith("viewer"));
  for (const std::string& seen : {viewer.AllEvents().ShortDebugString(),
                                  Page(server, server.CallerWith("viewer"), "/log.json")}) {
    EXPECT_THAT(seen, HasSubstr(written));
    EXPECT_THAT(seen, Not(HasSubstr("/checkpoints")));
  }
}

TEST(RolesTest, NamesWithControlCharactersDoNotCount) {
  SecuredServer server;
  server.WriteRules("operator * san:ctl:*\n");
  server.Issue("control", {"URI:ctl:\x01"});
  const Caller control = server.CallerWith("control");
  EXPECT_EQ(Calls(server, control).GetStatus(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(PageCode(server, control, "/metrics"), "401");
}

TEST(RolesTest, TheStatusAloneShowsThatATokenWasRemovedAndSlowsGuesses) {
  SecuredServer server;
  server.WriteRules("viewer * token:seen\n");
  Calls viewer(server, server.CallerWith("nobody", "seen"));
  EXPECT_EQ(viewer.GetStatus(), grpc::StatusCode::OK);
  server.WriteRules("");
  EXPECT_EQ(viewer.GetStatus(), grpc::StatusCode::PERMISSION_DENIED);
  server.WriteRules("viewer * token:seen\n");
  Calls guesser(server, server.CallerWith("nobody", "guess"));
  // One more wrong token is answered each second, and each right one.
  grpc::StatusCode code = grpc::StatusCode::OK;
  for (int i = 0; i < 10'000 && code != grpc::StatusCode::UNAVAILABLE; ++i) {
    code = guesser.GetStatus();
    EXPECT_EQ(viewer.GetStatus(), grpc::StatusCode::OK);
  }
  EXPECT_EQ(code, grpc::StatusCode::UNAVAILABLE);
}

TEST(RolesTest, WrongTokensAreLoggedCountedAndSlowed) {
  SecuredServer server;
  Calls guesser(server, server.CallerWith("nobody", "guess"));
  int denied = 0;
  // The allowance grows by one a second, so that guesses which are slower than that never end it.
  grpc::StatusCode code = grpc::StatusCode::OK;
  for (int i = 0; i < 10'000 && code != grpc::StatusCode::UNAVAILABLE; ++i) {
    code = guesser.Probe();
    denied += code == grpc::StatusCode::PERMISSION_DENIED ? 1 : 0;
  }
  EXPECT_EQ(code, grpc::StatusCode::UNAVAILABLE);
  EXPECT_GE(denied, 50);
  EXPECT_TRUE(
      server.process().WaitForLine("a wrong token has come from 127.0.0.1", kSecuredTimeout).ok());
  // A caller whose role is in its certificate needs no token and is not slowed.
  Calls viewer(server, server.CallerWith("viewer"));
  EXPECT_EQ(viewer.Status().server().wrong_tokens(), denied + 1);
}

TEST(RolesTest, AServerThatKnowsNobodyServesItsHostOnly) {
  const auto run = [](const std::vector<std::string>& flags) {
    std::vector<std::string> args = {"--port=0", "--state=none"};
    args.insert(args.end(), flags.begin(), flags.end());
    auto started = Process::Start({.program = "server/ps-server", .args = args});
    EXPECT_TRUE(started.ok()) << started.status();
    return *std::move(started);
  };
  EXPECT_TRUE(run({})->WaitForLine("listening on 127.0.0.1:", kSecuredTimeout).ok());
  for (const std::string flag : {"--bind=0.0.0.0", "--metrics=0.0.0.0:0"}) {
    const auto refused = run({flag});
    const auto exit = refused->Wait(kSecuredTimeout);
    ASSERT_TRUE(exit.ok()) << exit.status();
    EXPECT_EQ(*exit, ExitCode(1));
    EXPECT_THAT(refused->output(), HasSubstr("which other hosts may reach"));
  }
  const auto open = run({"--insecure"});
  EXPECT_TRUE(open->WaitForLine("INSECURE: any host can start jobs", kSecuredTimeout).ok());
  EXPECT_TRUE(open->WaitForLine("listening on 0.0.0.0:", kSecuredTimeout).ok());
}

// A server that offers TLS 1.2 only, and takes one connection.
class OldServer {
 public:
  explicit OldServer(const Caller& kind)
      : context_(SSL_CTX_new(TLS_server_method()), &SSL_CTX_free),
        listening_(::socket(AF_INET, SOCK_STREAM, 0)) {
    SSL_CTX_set_max_proto_version(context_.get(), TLS1_2_VERSION);
    EXPECT_EQ(SSL_CTX_use_certificate_chain_file(context_.get(), kind.tls.certificate.c_str()), 1);
    EXPECT_EQ(SSL_CTX_use_PrivateKey_file(context_.get(), kind.tls.key.c_str(), SSL_FILETYPE_PEM),
              1);
    // gRPC requires that the peer speaks HTTP/2.
    SSL_CTX_set_alpn_select_cb(
        context_.get(),
        [](SSL*, const unsigned char** out, unsigned char* size, const unsigned char*, unsigned,
           void*) {
          static constexpr unsigned char kH2[] = {'h', '2'};
          *out = kH2;
          *size = sizeof(kH2);
          return SSL_TLSEXT_ERR_OK;
        },
        nullptr);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listening_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listening_, 16), 0);
    socklen_t size = sizeof(address);
    getsockname(listening_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] {
      const int connection = accept(listening_, nullptr, nullptr);
      const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context_.get()), &SSL_free);
      SSL_set_fd(ssl.get(), connection);
      accepted_ = SSL_accept(ssl.get());
      close(connection);
    });
  }
  ~OldServer() { close(listening_); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  // Whether the connection was accepted. Call it once, after the client has ended.
  bool HasAccepted() {
    shutdown(listening_, SHUT_RDWR);
    thread_.join();
    return accepted_ == 1;
  }

 private:
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  const int listening_;
  int port_ = 0;
  int accepted_ = 0;
  std::thread thread_;
};

TEST(RolesTest, ProgramsConnectToNoServerOfAnOlderVersionOfTls) {
  std::signal(SIGPIPE, SIG_IGN);
  const SecuredServer secured;
  OldServer old(secured.CallerWith("server"));
  const auto psctl =
      Process::Start({.program = "client/psctl/psctl",
                      .args = {absl::StrCat("--server=", old.address()),
                               absl::StrCat("--tls_ca=", secured.Path("ca.pem")), "status"}});
  ASSERT_TRUE(psctl.ok()) << psctl.status();
  const auto exit = (*psctl)->Wait(kSecuredTimeout);
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(*exit, ExitCode(128)) << (*psctl)->output();
  EXPECT_FALSE(old.HasAccepted());
}

}  // namespace
}  // namespace syncgrads::testing
