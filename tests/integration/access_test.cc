// Who may do what: every RPC and every page of a real ps-server, called by callers of every kind.
// docs/security.md has the table that this test makes.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <httplib.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/client.h"
#include "common/protocol.h"
#include "common/rpc/credentials.h"
#include "common/secret.h"
#include "common/tls/certificate_authority.h"
#include "common/tls/tls_options.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "proto/control.grpc.pb.h"
#include "proto/data.grpc.pb.h"
#include "tests/testing/process/process.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kTimeout = absl::Minutes(2);
constexpr char kIrisToken[] = "the token of iris";
constexpr char kOtherToken[] = "the-token-of-another-job";

std::string Folder() {
  std::string folder = absl::StrCat(::testing::TempDir(), "/access-XXXXXX");
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

void WriteText(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  std::ofstream(temporary) << text;
  ASSERT_EQ(rename(temporary.c_str(), path.c_str()), 0);
}

// Who calls: a certificate, or none, and a token, or none.
struct Kind {
  std::string name;
  TlsOptions tls;
  std::string token;
};

// A ps-server with certificates, a file with tokens, and pages.
class Secured {
 public:
  explicit Secured(const std::vector<std::string>& more = {}) : folder_(Folder()) {
    EXPECT_TRUE(WriteSecretFile(Path("ca.pem"), ours_.certificate()).ok());
    EXPECT_TRUE(
        WriteSecretFile(Path("both.pem"), ours_.certificate() + theirs_.certificate()).ok());
    Issue(ours_, "server", {"IP:127.0.0.1", "URI:syncgrads:server"});
    Issue(ours_, "worker", {"URI:syncgrads:worker"});
    Issue(ours_, "operator", {"URI:syncgrads:operator"});
    Issue(ours_, "viewer", {"URI:syncgrads:viewer"});
    Issue(ours_, "nobody", {"DNS:nobody.example"});
    Issue(ours_, "expired", {"URI:syncgrads:operator"}, -absl::Minutes(1));
    Issue(theirs_, "stranger", {"URI:syncgrads:operator"});
    WriteRules(absl::StrCat("worker other-* token:", kOtherToken, "\n"));
    std::vector<std::string> args = {"--port=0",
                                     "--bind=127.0.0.1",
                                     "--metrics=127.0.0.1:0",
                                     "--state=none",
                                     absl::StrCat("--tokens_file=", Path("tokens")),
                                     absl::StrCat("--tls_certificate=", Path("server.pem")),
                                     absl::StrCat("--tls_key=", Path("server.key")),
                                     absl::StrCat("--tls_ca=", Path("ca.pem")),
                                     absl::StrCat("--tls_client_ca=", Path("ca.pem"))};
    args.insert(args.end(), more.begin(), more.end());
    auto started = Process::Start({.program = "server/ps-server", .args = args});
    EXPECT_TRUE(started.ok()) << started.status();
    process_ = *std::move(started);
    port_ = PortIn("listening on ");
    pages_ = PortIn("serves metrics on ");
  }

  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  int pages() const { return pages_; }
  Process& process() { return *process_; }

  // Rules for the names in certificates, and further ones.
  void WriteRules(const std::string& more) const {
    std::string rules = "# who may do what\n\n";
    for (const char* role : {"server", "worker", "operator", "viewer"}) {
      absl::StrAppend(&rules, role, " * san:syncgrads:", role, "\n");
    }
    WriteText(Path("tokens"), absl::StrCat(rules, more));
  }

  // Makes the certificate NAME.
  void Issue(const std::string& name, const std::vector<std::string>& names) {
    Issue(ours_, name, names);
  }

  Kind Caller(const std::string& name, const std::string& certificate,
              const std::string& token = "") const {
    Kind kind{name, {}, token};
    kind.tls.ca = Path("both.pem");
    if (certificate.empty()) return kind;
    kind.tls.certificate = Path(certificate + ".pem");
    kind.tls.key = Path(certificate + ".key");
    return kind;
  }

  ClientOptions Worker(const Kind& kind, const std::string& job) const {
    ClientOptions options;
    options.coordinator = address();
    options.job = job;
    options.token = kind.token;
    options.tls = kind.tls;
    return options;
  }

 private:
  void Issue(const CertificateAuthority& authority, const std::string& name,
             const std::vector<std::string>& names, absl::Duration lifetime = absl::Hours(1)) {
    const auto issued = authority.Issue(names, lifetime);
    ASSERT_TRUE(issued.ok()) << issued.status();
    ASSERT_TRUE(issued->Write(Path(name)).ok());
  }

  int PortIn(const std::string& text) {
    const auto line = process_->WaitForLine(text, kTimeout);
    EXPECT_TRUE(line.ok()) << line.status();
    int port = 0;
    const std::string rest = line.value_or("").substr(line.value_or("").rfind(':') + 1);
    EXPECT_TRUE(absl::SimpleAtoi(rest.substr(0, rest.find('/')), &port)) << *line;
    return port;
  }

  const std::string folder_;
  const CertificateAuthority ours_{"ours"}, theirs_{"theirs"};
  std::unique_ptr<Process> process_;
  int port_ = 0;
  int pages_ = 0;
};

std::string NameOf(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::OK:
      return "OK";
    case grpc::StatusCode::UNAVAILABLE:
      return "UNAVAILABLE";
    case grpc::StatusCode::PERMISSION_DENIED:
      return "PERMISSION_DENIED";
    case grpc::StatusCode::INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case grpc::StatusCode::NOT_FOUND:
      return "NOT_FOUND";
    case grpc::StatusCode::FAILED_PRECONDITION:
      return "FAILED_PRECONDITION";
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return "RESOURCE_EXHAUSTED";
    case grpc::StatusCode::UNIMPLEMENTED:
      return "UNIMPLEMENTED";
    default:
      return absl::StrCat("code ", static_cast<int>(code));
  }
}

// One caller's connection, and its calls.
class Calls {
 public:
  Calls(const Secured& server, const Kind& kind)
      : kind_(kind),
        security_(kind.tls, kind.token),
        channel_(security_.Connect(server.address(), OwnChannel())),
        admin_(v1::Admin::NewStub(channel_)),
        control_(v1::Control::NewStub(channel_)),
        data_(v1::Data::NewStub(channel_)) {}

  template <typename Request, typename Reply, typename Stub>
  grpc::StatusCode Unary(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                         Stub& stub, Request request) {
    grpc::ClientContext context;
    Prepare(context);
    Reply reply;
    return (stub.*method)(&context, request, &reply).error_code();
  }
  template <typename Reader>
  static grpc::StatusCode End(Reader& reader, auto reply) {
    while (reader.Read(&reply)) {
    }
    return reader.Finish().error_code();
  }

  grpc::StatusCode Join() {
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    const auto stream = control_->Join(&context);
    v1::WorkerSignal signal;
    v1::Hello& hello = *signal.mutable_hello();
    hello.set_protocol_version(kProtocolVersion);
    hello.set_job("iris");
    hello.set_token(kind_.token);
    hello.set_incarnation(7);
    hello.set_world_size(1);
    hello.set_member_secret("another member's");
    stream->Write(signal);
    return End(*stream, v1::JobSignal());
  }
  grpc::StatusCode Follow() {
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    const auto stream = control_->Follow(&context);
    v1::ServerSignal signal;
    signal.mutable_hello()->set_protocol_version(kProtocolVersion);
    signal.mutable_hello()->set_index(7);
    signal.mutable_hello()->set_token(kind_.token);
    stream->Write(signal);
    return End(*stream, v1::PlanSignal());
  }
  grpc::StatusCode Exchange() { return ExchangeAs("iris", 0); }
  // Opens a data stream of a member with a secret that is not the member's.
  grpc::StatusCode ExchangeAs(const std::string& job, uint32_t member) {
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    const auto stream = data_->Exchange(&context);
    v1::PushChunk push;
    v1::DataHello& hello = *push.mutable_hello();
    hello.set_protocol_version(kProtocolVersion);
    hello.set_job(job);
    hello.set_token(kind_.token);
    hello.set_member(member);
    hello.set_member_secret("not that of member 0");
    stream->Write(push);
    return End(*stream, v1::UpdateChunk());
  }
  grpc::StatusCode Probe() {
    return Unary(&v1::Control::Stub::Probe, *control_, v1::ProbeRequest());
  }
  grpc::StatusCode ReportTrace() {
    return Unary(&v1::Control::Stub::ReportTrace, *control_, v1::TraceReport());
  }
  // Calls a method of Admin about the job.
  template <typename Request, typename Reply>
  grpc::StatusCode About(grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*,
                                                                 const Request&, Reply*)) {
    Request request;
    request.set_job("iris");
    request.set_token(kind_.token);
    return Unary(method, *admin_, request);
  }
  grpc::StatusCode Explain() { return About(&v1::Admin::Stub::Explain); }
  grpc::StatusCode Evict() { return About(&v1::Admin::Stub::Evict); }
  grpc::StatusCode Readmit() { return About(&v1::Admin::Stub::Readmit); }
  grpc::StatusCode Checkpoint() { return About(&v1::Admin::Stub::Checkpoint); }
  grpc::StatusCode SetLearningRate() { return About(&v1::Admin::Stub::SetLearningRate); }
  grpc::StatusCode ReadOptimizer() {
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    v1::ReadOptimizerRequest request;
    request.set_job("iris");
    request.set_token(kind_.token);
    return End(*admin_->ReadOptimizer(&context, request), v1::OptimizerChunk());
  }
  grpc::StatusCode Trace() {
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    v1::TraceRequest request;
    request.set_job("iris");
    request.set_token(kind_.token);
    return End(*admin_->Trace(&context, request), v1::TraceReply());
  }
  grpc::StatusCode Drain() { return Unary(&v1::Admin::Stub::Drain, *admin_, v1::DrainRequest()); }
  grpc::StatusCode GetStatus() {
    return Unary(&v1::Admin::Stub::GetStatus, *admin_, v1::GetStatusRequest());
  }
  grpc::StatusCode ReadClock() {
    return Unary(&v1::Admin::Stub::ReadClock, *admin_, v1::ReadClockRequest());
  }
  grpc::StatusCode Events() {
    grpc::ClientContext context;
    Prepare(context);
    return End(*admin_->Events(&context, {}), v1::EventsReply());
  }
  v1::EventsReply EventsOf() {
    grpc::ClientContext context;
    Prepare(context);
    const auto reader = admin_->Events(&context, {});
    v1::EventsReply all, part;
    while (reader->Read(&part)) all.MergeFrom(part);
    EXPECT_TRUE(reader->Finish().ok());
    return all;
  }
  grpc::StatusCode Health() { return Raw("/grpc.health.v1.Health/Check"); }
  grpc::StatusCode Reflection() {
    return Raw("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo");
  }

  v1::GetStatusReply Status() {
    grpc::ClientContext context;
    Prepare(context);
    v1::GetStatusReply reply;
    EXPECT_TRUE(admin_->GetStatus(&context, {}, &reply).ok());
    return reply;
  }

 private:
  static grpc::ChannelArguments OwnChannel() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return arguments;
  }
  static std::chrono::system_clock::time_point Deadline() {
    return std::chrono::system_clock::now() + std::chrono::minutes(2);
  }
  void Prepare(grpc::ClientContext& context) const {
    context.set_deadline(Deadline());
    security_.Authorize(context);
  }
  // Calls a service of gRPC's own with an empty message.
  grpc::StatusCode Raw(const std::string& method) {
    grpc::ClientContext context;
    Prepare(context);
    grpc::CompletionQueue queue;
    const grpc::Slice slice("", 0);
    const grpc::ByteBuffer nothing(&slice, 1);
    const auto call =
        grpc::GenericStub(channel_).PrepareUnaryCall(&context, method, nothing, &queue);
    call->StartCall();
    grpc::ByteBuffer reply;
    grpc::Status status;
    call->Finish(&reply, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status.error_code();
  }

  const Kind kind_;
  const ChannelSecurity security_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Admin::Stub> admin_;
  const std::unique_ptr<v1::Control::Stub> control_;
  const std::unique_ptr<v1::Data::Stub> data_;
};

// Returns the status of a page, or "refused" if there is no connection.
std::string PageCode(const Secured& server, const Kind& kind, const std::string& path) {
  httplib::SSLClient client("127.0.0.1", server.pages(), kind.tls.certificate, kind.tls.key);
  client.set_ca_cert_path(kind.tls.ca.c_str());
  client.enable_server_certificate_verification(true);
  client.set_connection_timeout(120);
  client.set_read_timeout(120);
  if (!kind.token.empty()) client.set_bearer_token_auth(kind.token);
  // The body is not read: a stream of events does not end by itself.
  int status = 0;
  client.Get(
      path,
      [&status](const httplib::Response& response) {
        status = response.status;
        return false;
      },
      [](const char*, size_t) { return false; });
  return status == 0 ? "refused" : absl::StrCat(status);
}

// Returns the body of a page.
std::string Page(const Secured& server, const Kind& kind, const std::string& path) {
  httplib::SSLClient client("127.0.0.1", server.pages(), kind.tls.certificate, kind.tls.key);
  client.set_ca_cert_path(kind.tls.ca.c_str());
  client.set_connection_timeout(120);
  client.set_read_timeout(120);
  const httplib::Result result = client.Get(path);
  EXPECT_TRUE(result) << httplib::to_string(result.error());
  return result ? result->body : "";
}

TEST(AccessTest, EveryCallIsAnsweredAsTheTableSays) {
  // OpenSSL writes to connections that the server has closed.
  std::signal(SIGPIPE, SIG_IGN);
  Secured server;
  // The job that the calls are about. It has begun, so that nobody else may join it.
  Client worker(server.Worker(server.Caller("", "worker"), "iris"));
  ASSERT_TRUE(worker.Join(kTimeout).ok());
  ASSERT_TRUE(
      worker.Register({.name = "model", .tensors = {{"w", DType::kF32, {3}}}}, kTimeout).ok());

  const std::vector<Kind> callers = {
      server.Caller("nothing", ""),
      server.Caller("expired", "expired"),
      server.Caller("wrong CA", "stranger"),
      server.Caller("no role", "nobody"),
      server.Caller("wrong token", "nobody", "guessed"),
      server.Caller("other job's token", "nobody", kOtherToken),
      server.Caller("viewer", "viewer"),
      server.Caller("worker", "worker"),
      server.Caller("operator", "operator"),
      server.Caller("server", "server"),
  };
  // What the first three get for every RPC, and for every page that is no probe.
  const std::string cut = "UNAVAILABLE", denied = "PERMISSION_DENIED";
  struct Rpc {
    std::string name;
    std::function<grpc::StatusCode(Calls&)> call;
    // The answer to those who may; and who may: a letter for each of o(ther job's token), v(iewer),
    // w(orker), p (operator), s(erver); * for everybody with a certificate.
    std::string answer;
    std::string who;
  };
  const std::vector<Rpc> rpcs = {
      {"Control.Join", &Calls::Join, "RESOURCE_EXHAUSTED", "w"},
      {"Control.Follow", &Calls::Follow, "INVALID_ARGUMENT", "s"},
      {"Control.Probe", &Calls::Probe, "OK", "ow"},
      {"Control.ReportTrace", &Calls::ReportTrace, "NOT_FOUND", "ow"},
      // A stream needs its member's secret too.
      {"Data.Exchange", &Calls::Exchange, "FAILED_PRECONDITION", "w"},
      {"Admin.Explain", &Calls::Explain, "OK", "vwp"},
      {"Admin.ReadOptimizer", &Calls::ReadOptimizer, "FAILED_PRECONDITION", "wp"},
      {"Admin.Evict", &Calls::Evict, "NOT_FOUND", "p"},
      {"Admin.Readmit", &Calls::Readmit, "NOT_FOUND", "p"},
      {"Admin.Checkpoint", &Calls::Checkpoint, "OK", "p"},
      {"Admin.SetLearningRate", &Calls::SetLearningRate, "FAILED_PRECONDITION", "p"},
      {"Admin.Trace", &Calls::Trace, "INVALID_ARGUMENT", "p"},
      {"Admin.GetStatus", &Calls::GetStatus, "OK", "vp"},
      {"Admin.Events", &Calls::Events, "OK", "vp"},
      {"Admin.ReadClock", &Calls::ReadClock, "OK", "vp"},
      {"grpc.health", &Calls::Health, "OK", "*"},
      {"grpc.reflection", &Calls::Reflection, "UNIMPLEMENTED", "*"},
  };
  const std::string letters = "   --ovwps";
  const auto may = [&](const std::string& who, size_t caller) {
    return who == "*" || (letters[caller] != '-' && absl::StrContains(who, letters[caller]));
  };
  std::vector<std::string> table = {"| call |", "| --- |"};
  for (const Kind& caller : callers) {
    absl::StrAppend(&table[0], " ", caller.name, " |");
    absl::StrAppend(&table[1], " --- |");
  }
  const auto add_row = [&](const Rpc& rpc) {
    std::string row = absl::StrCat("| `", rpc.name, "` |");
    for (size_t i = 0; i < callers.size(); ++i) {
      Calls calls(server, callers[i]);
      const std::string code = NameOf(rpc.call(calls));
      const bool allowed = i >= 3 && may(rpc.who, i);
      EXPECT_EQ(code, i < 3     ? cut
                      : allowed ? rpc.answer
                                : denied)
          << rpc.name << " by " << callers[i].name;
      absl::StrAppend(&row, " ",
                      code == cut                                 ? "cut"
                      : code == denied || code == "UNIMPLEMENTED" ? "no"
                                                                  : "yes",
                      " |");
    }
    table.push_back(row);
  };
  for (const Rpc& rpc : rpcs) add_row(rpc);
  for (const std::string path : {"/livez", "/readyz", "/", "/metrics", "/status.json",
                                 "/curves.json", "/log.json", "/events"}) {
    const bool is_probe = path == "/livez" || path == "/readyz";
    std::string row = absl::StrCat("| `", path, "` |");
    for (size_t i = 0; i < callers.size(); ++i) {
      const std::string code = PageCode(server, callers[i], path);
      std::string expected = is_probe || may("vp", i) ? "200" : "403";
      if (i == 0 && !is_probe) expected = "401";
      if (i == 1 || i == 2) expected = "refused";
      EXPECT_EQ(code, expected) << path << " by " << callers[i].name;
      absl::StrAppend(&row, " ", code == "200" ? "yes" : code == "refused" ? "cut" : "no", " |");
    }
    table.push_back(row);
  }
  // Last: from now on the server is not ready.
  add_row({"Admin.Drain", &Calls::Drain, "OK", "p"});
  std::ifstream file("docs/security.md");
  std::ostringstream docs;
  docs << file.rdbuf();
  const std::string made = absl::StrJoin(table, "\n");
  EXPECT_TRUE(absl::StrContains(docs.str(), made)) << "docs/security.md must have:\n" << made;
}

TEST(AccessTest, TokensHaveRolesForTheirJobs) {
  Secured server;
  server.WriteRules(absl::StrCat("worker iris ", HashSecret(kIrisToken),
                                 "\nviewer iris token:", kOtherToken, "\n"));
  ClientOptions options = server.Worker(server.Caller("", "nobody", kIrisToken), "wine");
  Client other(options);
  EXPECT_EQ(other.Join(kTimeout).code(), absl::StatusCode::kPermissionDenied);
  options.job = "iris";
  Client worker(options);
  ASSERT_TRUE(worker.Join(kTimeout).ok());
  Client wine(server.Worker(server.Caller("", "worker"), "wine"));
  ASSERT_TRUE(wine.Join(kTimeout).ok());

  // A viewer of one job sees only this one, and nothing that helps to speak for a member.
  Calls viewer(server, server.Caller("", "nobody", kOtherToken));
  const v1::GetStatusReply status = viewer.Status();
  ASSERT_EQ(status.jobs_size(), 1);
  EXPECT_EQ(status.jobs(0).job(), "iris");
  ASSERT_EQ(status.jobs(0).epoch().members_size(), 1);
  EXPECT_EQ(status.jobs(0).epoch().members(0).incarnation(), 0);
  EXPECT_EQ(status.jobs(0).epoch().members(0).secret_hash(), "");
  EXPECT_EQ(viewer.Explain(), grpc::StatusCode::OK);
  EXPECT_EQ(viewer.Evict(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST(AccessTest, ATokenIsReplacedWhileItsJobRuns) {
  Secured server;
  server.WriteRules("worker iris token:old\n");
  Client worker(server.Worker(server.Caller("", "nobody", "old"), "iris"));
  ASSERT_TRUE(worker.Join(kTimeout).ok());
  const auto group =
      worker.Register({.name = "model", .tensors = {{"w", DType::kF32, {}}}}, kTimeout);
  ASSERT_TRUE(group.ok());
  const auto step = [&] {
    const float gradient = 3;
    float mean = 0;
    ASSERT_TRUE((*group)->Push(TensorId{0}, &gradient, sizeof(gradient), &mean).ok());
    ASSERT_TRUE((*group)->WaitStep(kTimeout).ok());
    EXPECT_EQ(mean, 3);
  };
  step();
  server.WriteRules("worker iris token:new\n");
  Calls old_token(server, server.Caller("", "nobody", "old"));
  EXPECT_EQ(old_token.Probe(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(old_token.Join(), grpc::StatusCode::PERMISSION_DENIED);
  Calls new_token(server, server.Caller("", "nobody", "new"));
  EXPECT_EQ(new_token.Probe(), grpc::StatusCode::OK);
  step();
  // A file that cannot be used changes nothing.
  server.WriteRules("worker iris\n");
  EXPECT_EQ(new_token.Probe(), grpc::StatusCode::OK);
  EXPECT_TRUE(server.process().WaitForLine("line 7: it has 2 words", kTimeout).ok());
  step();
  EXPECT_TRUE((*group)->End(kTimeout).ok());
  EXPECT_TRUE(worker.Leave(kTimeout).ok());
}

TEST(AccessTest, StrangersDoNotLearnWhichJobsAndMembersThereAre) {
  Secured server;
  Client worker(server.Worker(server.Caller("", "worker"), "iris"));
  ASSERT_TRUE(worker.Join(kTimeout).ok());
  Calls stranger(server, server.Caller("", "nobody"));
  Calls other(server, server.Caller("", "nobody", kOtherToken));
  Calls own(server, server.Caller("", "worker"));
  for (const auto& [job, member] :
       {std::pair<std::string, uint32_t>("iris", 0), {"iris", 99}, {"wine", 0}}) {
    EXPECT_EQ(stranger.ExchangeAs(job, member), grpc::StatusCode::PERMISSION_DENIED) << job;
    EXPECT_EQ(other.ExchangeAs(job, member), grpc::StatusCode::PERMISSION_DENIED) << job;
  }
  // A worker retries: a server that has just started may not know them yet.
  EXPECT_EQ(own.ExchangeAs("iris", 99), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(own.ExchangeAs("wine", 0), grpc::StatusCode::UNAVAILABLE);
}

TEST(AccessTest, PathsOfCheckpointsAreForOperators) {
  Secured server;
  Client worker(server.Worker(server.Caller("", "worker"), "iris"));
  ASSERT_TRUE(worker.Join(kTimeout).ok());
  worker.ReportCheckpoint(7, std::string("/checkpoints/7"));
  ASSERT_TRUE(server.process().WaitForLine("step 7 to /checkpoints/7", kTimeout).ok());
  const std::string written = "has written the checkpoint after step 7";
  const std::string operators =
      Calls(server, server.Caller("", "operator")).EventsOf().ShortDebugString();
  EXPECT_THAT(operators, HasSubstr(written + " to /checkpoints/7"));
  Calls viewer(server, server.Caller("", "viewer"));
  for (const std::string& seen : {viewer.EventsOf().ShortDebugString(),
                                  Page(server, server.Caller("", "viewer"), "/log.json")}) {
    EXPECT_THAT(seen, HasSubstr(written));
    EXPECT_THAT(seen, Not(HasSubstr("/checkpoints")));
  }
}

TEST(AccessTest, NamesWithControlCharactersDoNotCount) {
  Secured server;
  server.WriteRules("operator * san:ctl:*\n");
  server.Issue("control", {"URI:ctl:\x01"});
  const Kind control = server.Caller("", "control");
  EXPECT_EQ(Calls(server, control).GetStatus(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(PageCode(server, control, "/metrics"), "401");
}

TEST(AccessTest, TheStatusAloneShowsThatATokenWasRemovedAndSlowsGuesses) {
  Secured server;
  server.WriteRules("viewer * token:seen\n");
  Calls viewer(server, server.Caller("", "nobody", "seen"));
  EXPECT_EQ(viewer.GetStatus(), grpc::StatusCode::OK);
  server.WriteRules("");
  EXPECT_EQ(viewer.GetStatus(), grpc::StatusCode::PERMISSION_DENIED);
  server.WriteRules("viewer * token:seen\n");
  Calls guesser(server, server.Caller("", "nobody", "guess"));
  // After too many guesses, a right one is not answered either. One more is permitted each second.
  grpc::StatusCode code = grpc::StatusCode::OK;
  for (int i = 0; i < 10'000 && code != grpc::StatusCode::UNAVAILABLE; ++i) {
    if (guesser.GetStatus() == grpc::StatusCode::UNAVAILABLE) code = viewer.GetStatus();
  }
  EXPECT_EQ(code, grpc::StatusCode::UNAVAILABLE);
}

// A server that offers TLS 1.2 only, and takes one connection.
class OldServer {
 public:
  explicit OldServer(const Kind& kind)
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

TEST(AccessTest, ProgramsConnectToNoServerOfAnOlderVersionOfTls) {
  std::signal(SIGPIPE, SIG_IGN);
  const Secured secured;
  OldServer old(secured.Caller("", "server"));
  const auto psctl =
      Process::Start({.program = "client/psctl/psctl",
                      .args = {absl::StrCat("--server=", old.address()),
                               absl::StrCat("--tls_ca=", secured.Path("ca.pem")), "status"}});
  ASSERT_TRUE(psctl.ok()) << psctl.status();
  const auto exit = (*psctl)->Wait(kTimeout);
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(*exit, ExitCode(128)) << (*psctl)->output();
  EXPECT_FALSE(old.HasAccepted());
}

TEST(AccessTest, WrongTokensAreLoggedCountedAndSlowed) {
  Secured server;
  Calls guesser(server, server.Caller("", "nobody", "guess"));
  int denied = 0;
  // The allowance grows by one a second, so that guesses which are slower than that never end it.
  grpc::StatusCode code = grpc::StatusCode::OK;
  for (int i = 0; i < 10'000 && code != grpc::StatusCode::UNAVAILABLE; ++i) {
    code = guesser.Probe();
    denied += code == grpc::StatusCode::PERMISSION_DENIED ? 1 : 0;
  }
  EXPECT_EQ(code, grpc::StatusCode::UNAVAILABLE);
  EXPECT_GE(denied, 50);
  EXPECT_TRUE(server.process().WaitForLine("a wrong token has come from 127.0.0.1", kTimeout).ok());
  // Whoever needs no token is not affected.
  Calls viewer(server, server.Caller("", "viewer"));
  EXPECT_EQ(viewer.Status().server().wrong_tokens(), denied);
}

TEST(AccessTest, AServerThatKnowsNobodyServesItsHostOnly) {
  const auto run = [](const std::vector<std::string>& flags) {
    std::vector<std::string> args = {"--port=0", "--state=none"};
    args.insert(args.end(), flags.begin(), flags.end());
    auto started = Process::Start({.program = "server/ps-server", .args = args});
    EXPECT_TRUE(started.ok()) << started.status();
    return *std::move(started);
  };
  EXPECT_TRUE(run({})->WaitForLine("listening on 127.0.0.1:", kTimeout).ok());
  for (const std::string flag : {"--bind=0.0.0.0", "--metrics=0.0.0.0:0"}) {
    const auto refused = run({flag});
    const auto exit = refused->Wait(kTimeout);
    ASSERT_TRUE(exit.ok()) << exit.status();
    EXPECT_EQ(*exit, ExitCode(1));
    EXPECT_THAT(refused->output(), HasSubstr("which other hosts may reach"));
  }
  const auto open = run({"--insecure"});
  EXPECT_TRUE(open->WaitForLine("INSECURE: any host can start jobs", kTimeout).ok());
  EXPECT_TRUE(open->WaitForLine("listening on 0.0.0.0:", kTimeout).ok());
}

}  // namespace
}  // namespace syncgrads::testing
