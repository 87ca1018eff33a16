#include "tests/integration/secured_server.h"

#include <grpcpp/generic/generic_stub.h>
#include <httplib.h>
#include <stdlib.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/secret.h"
#include "common/signals/protocol.h"
#include "gtest/gtest.h"

namespace syncgrads::testing {
namespace {

constexpr const char* kRoles[] = {"server", "worker", "operator", "viewer"};

std::string TokenOf(const std::string& role) { return absl::StrCat("the-token-of-a-", role, "-1"); }

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

grpc::ChannelArguments OwnChannel() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return arguments;
}

std::chrono::system_clock::time_point Deadline() {
  return std::chrono::system_clock::now() + std::chrono::minutes(2);
}

// Reads a stream to its end.
template <typename Reader>
grpc::StatusCode End(Reader& reader, auto reply) {
  while (reader.Read(&reply)) {
  }
  return reader.Finish().error_code();
}

}  // namespace

SecuredServer::SecuredServer(const std::vector<std::string>& flags, ServerSetup setup)
    : setup_(setup), folder_(Folder()) {
  EXPECT_TRUE(WriteSecretFile(Path("ca.pem"), ours_.certificate()).ok());
  EXPECT_TRUE(WriteSecretFile(Path("both.pem"), ours_.certificate() + theirs_.certificate()).ok());
  Issue(ours_, "server", {"IP:127.0.0.1", "URI:syncgrads:server"});
  Issue(ours_, "worker", {"URI:syncgrads:worker"});
  Issue(ours_, "operator", {"URI:syncgrads:operator"});
  Issue(ours_, "viewer", {"URI:syncgrads:viewer"});
  Issue(ours_, "nobody", {"DNS:nobody.example"});
  Issue(ours_, "expired", {"URI:syncgrads:operator"}, -absl::Minutes(1));
  Issue(theirs_, "stranger", {"URI:syncgrads:operator"});
  WriteRules(absl::StrCat("worker other-* token:", kOtherToken, "\n"));
  std::vector<std::string> args = {"--port=0", "--bind=127.0.0.1", "--metrics=127.0.0.1:0",
                                   "--state=none"};
  if (setup != ServerSetup::kCertificates) {
    args.push_back(absl::StrCat("--tokens_file=", Path("tokens")));
  }
  if (setup != ServerSetup::kTokens) {
    args.push_back(absl::StrCat("--tls_certificate=", Path("server.pem")));
    args.push_back(absl::StrCat("--tls_key=", Path("server.key")));
    args.push_back(absl::StrCat("--tls_ca=", Path("ca.pem")));
  }
  if (has_certificates()) args.push_back(absl::StrCat("--tls_client_ca=", Path("ca.pem")));
  args.insert(args.end(), flags.begin(), flags.end());
  auto started = Process::Start({.program = "server/ps-server", .args = args});
  EXPECT_TRUE(started.ok()) << started.status();
  process_ = *std::move(started);
  port_ = PortIn("listening on ");
  pages_ = PortIn("serves metrics on ");
}

std::string SecuredServer::Path(const std::string& name) const {
  return absl::StrCat(folder_, "/", name);
}

std::string SecuredServer::address() const { return absl::StrCat("127.0.0.1:", port_); }

void SecuredServer::WriteRules(const std::string& rules) const {
  std::string all = "# who may do what\n\n";
  for (const char* role : kRoles) {
    absl::StrAppend(&all, role, " * ",
                    has_certificates() ? absl::StrCat("san:syncgrads:", role)
                                       : absl::StrCat("token:", TokenOf(role)),
                    "\n");
  }
  WriteText(Path("tokens"), absl::StrCat(all, rules));
}

void SecuredServer::Issue(const std::string& name, const std::vector<std::string>& names) {
  Issue(ours_, name, names);
}

Caller SecuredServer::CallerWith(const std::string& certificate, const std::string& token) const {
  Caller caller{{}, token};
  if (setup_ == ServerSetup::kTokens || setup_ == ServerSetup::kTokensOverTls) {
    for (const char* role : kRoles) {
      if (certificate == role) caller.token = TokenOf(role);
    }
    if (setup_ == ServerSetup::kTokensOverTls) caller.tls.ca = Path("both.pem");
    return caller;
  }
  caller.tls.ca = Path("both.pem");
  if (certificate.empty()) return caller;
  caller.tls.certificate = Path(certificate + ".pem");
  caller.tls.key = Path(certificate + ".key");
  return caller;
}

ClientOptions SecuredServer::Worker(const Caller& caller, const std::string& job) const {
  ClientOptions options;
  options.coordinator = address();
  options.job = job;
  options.token = caller.token;
  options.tls = caller.tls;
  return options;
}

void SecuredServer::Issue(const CertificateAuthority& authority, const std::string& name,
                          const std::vector<std::string>& names, absl::Duration lifetime) {
  const auto issued = authority.Issue(names, lifetime);
  ASSERT_TRUE(issued.ok()) << issued.status();
  ASSERT_TRUE(issued->Write(Path(name)).ok());
}

int SecuredServer::PortIn(const std::string& text) {
  const auto line = process_->WaitForLine(text, kSecuredTimeout);
  EXPECT_TRUE(line.ok()) << line.status();
  int port = 0;
  const std::string rest = line.value_or("").substr(line.value_or("").rfind(':') + 1);
  EXPECT_TRUE(absl::SimpleAtoi(rest.substr(0, rest.find('/')), &port)) << line.value_or("");
  return port;
}

Calls::Calls(const SecuredServer& server, const Caller& caller)
    : token_(caller.token),
      security_(caller.tls, caller.token),
      channel_(security_.Connect(server.address(), OwnChannel())),
      admin_(v1::Admin::NewStub(channel_)),
      control_(v1::Control::NewStub(channel_)),
      data_(v1::Data::NewStub(channel_)) {}

void Calls::Prepare(grpc::ClientContext& context) const {
  context.set_deadline(Deadline());
  security_.Authorize(context);
}

template <typename Request, typename Reply, typename Stub>
grpc::StatusCode Calls::Unary(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                           Reply*),
                              Stub& stub, const Request& request) {
  grpc::ClientContext context;
  Prepare(context);
  Reply reply;
  return (stub.*method)(&context, request, &reply).error_code();
}

template <typename Request>
Request Calls::RequestAboutJob() const {
  Request request;
  request.set_job("iris");
  request.set_token(token_);
  return request;
}

template <typename Request, typename Reply>
grpc::StatusCode Calls::About(grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*,
                                                                      const Request&, Reply*)) {
  return Unary(method, *admin_, RequestAboutJob<Request>());
}

template <typename Request, typename Reply>
grpc::StatusCode Calls::About(std::unique_ptr<grpc::ClientReader<Reply>> (v1::Admin::Stub::*method)(
    grpc::ClientContext*, const Request&)) {
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  return End(*((*admin_).*method)(&context, RequestAboutJob<Request>()), Reply());
}

grpc::StatusCode Calls::Join() {
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  const auto stream = control_->Join(&context);
  v1::WorkerSignal signal;
  v1::Hello& hello = *signal.mutable_hello();
  hello.set_protocol_version(kProtocolVersion);
  hello.set_job("iris");
  hello.set_token(token_);
  hello.set_incarnation(7);
  hello.set_world_size(1);
  hello.set_member_secret("another member's");
  stream->Write(signal);
  return End(*stream, v1::JobSignal());
}

grpc::StatusCode Calls::Follow() {
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  const auto stream = control_->Follow(&context);
  v1::ServerSignal signal;
  signal.mutable_hello()->set_protocol_version(kProtocolVersion);
  signal.mutable_hello()->set_index(7);
  signal.mutable_hello()->set_token(token_);
  stream->Write(signal);
  return End(*stream, v1::PlanSignal());
}

grpc::StatusCode Calls::ExchangeAs(const std::string& job, uint32_t member) {
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  const auto stream = data_->Exchange(&context);
  v1::PushChunk push;
  v1::DataHello& hello = *push.mutable_hello();
  hello.set_protocol_version(kProtocolVersion);
  hello.set_job(job);
  hello.set_token(token_);
  hello.set_member(member);
  hello.set_member_secret("not that of member 0");
  stream->Write(push);
  return End(*stream, v1::UpdateChunk());
}

grpc::StatusCode Calls::Probe() {
  return Unary(&v1::Control::Stub::Probe, *control_, v1::ProbeRequest());
}

grpc::StatusCode Calls::ReportTrace() {
  return Unary(&v1::Control::Stub::ReportTrace, *control_, v1::TraceReport());
}

grpc::StatusCode Calls::Explain() { return About(&v1::Admin::Stub::Explain); }

grpc::StatusCode Calls::Evict() { return About(&v1::Admin::Stub::Evict); }

grpc::StatusCode Calls::Readmit() { return About(&v1::Admin::Stub::Readmit); }

grpc::StatusCode Calls::Checkpoint() { return About(&v1::Admin::Stub::Checkpoint); }

grpc::StatusCode Calls::SetLearningRate() { return About(&v1::Admin::Stub::SetLearningRate); }

grpc::StatusCode Calls::ReadOptimizer() { return About(&v1::Admin::Stub::ReadOptimizer); }

grpc::StatusCode Calls::Trace() { return About(&v1::Admin::Stub::Trace); }

grpc::StatusCode Calls::StopTrace() { return About(&v1::Admin::Stub::StopTrace); }

grpc::StatusCode Calls::Drain() {
  return Unary(&v1::Admin::Stub::Drain, *admin_, v1::DrainRequest());
}

grpc::StatusCode Calls::GetStatus() {
  return Unary(&v1::Admin::Stub::GetStatus, *admin_, v1::GetStatusRequest());
}

grpc::StatusCode Calls::ReadClock() {
  return Unary(&v1::Admin::Stub::ReadClock, *admin_, v1::ReadClockRequest());
}

grpc::StatusCode Calls::Events() {
  grpc::ClientContext context;
  Prepare(context);
  return End(*admin_->Events(&context, {}), v1::EventsReply());
}

v1::GetStatusReply Calls::Status() {
  grpc::ClientContext context;
  Prepare(context);
  v1::GetStatusReply reply;
  EXPECT_TRUE(admin_->GetStatus(&context, {}, &reply).ok());
  return reply;
}

v1::EventsReply Calls::AllEvents() {
  grpc::ClientContext context;
  Prepare(context);
  const auto reader = admin_->Events(&context, {});
  v1::EventsReply all, part;
  while (reader->Read(&part)) all.MergeFrom(part);
  EXPECT_TRUE(reader->Finish().ok());
  return all;
}

grpc::StatusCode Calls::Raw(const std::string& method) {
  grpc::ClientContext context;
  Prepare(context);
  grpc::CompletionQueue queue;
  const grpc::Slice slice("", 0);
  const grpc::ByteBuffer nothing(&slice, 1);
  const auto call = grpc::GenericStub(channel_).PrepareUnaryCall(&context, method, nothing, &queue);
  call->StartCall();
  grpc::ByteBuffer reply;
  grpc::Status status;
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status.error_code();
}

std::string PageCode(const SecuredServer& server, const Caller& caller, const std::string& path) {
  std::unique_ptr<httplib::ClientImpl> client;
  if (server.setup() == ServerSetup::kTokens) {
    client = std::make_unique<httplib::ClientImpl>("127.0.0.1", server.pages());
  } else {
    auto with_tls = std::make_unique<httplib::SSLClient>("127.0.0.1", server.pages(),
                                                         caller.tls.certificate, caller.tls.key);
    with_tls->set_ca_cert_path(caller.tls.ca.c_str());
    with_tls->enable_server_certificate_verification(true);
    client = std::move(with_tls);
  }
  client->set_connection_timeout(120);
  client->set_read_timeout(120);
  if (!caller.token.empty()) client->set_bearer_token_auth(caller.token);
  // The body is not read: a stream of events does not end by itself.
  int status = 0;
  const httplib::Result result = client->Get(
      path,
      [&status](const httplib::Response& response) {
        status = response.status;
        return false;
      },
      [](const char*, size_t) { return false; });
  if (status != 0) return absl::StrCat(status);
  // With the library's error, for the log: a server that is slow is not one that refuses.
  std::cerr << path << " has no answer: " << httplib::to_string(result.error()) << '\n';
  return "refused";
}

std::string Page(const SecuredServer& server, const Caller& caller, const std::string& path) {
  httplib::SSLClient client("127.0.0.1", server.pages(), caller.tls.certificate, caller.tls.key);
  client.set_ca_cert_path(caller.tls.ca.c_str());
  client.set_connection_timeout(120);
  client.set_read_timeout(120);
  const httplib::Result result = client.Get(path);
  EXPECT_TRUE(result) << httplib::to_string(result.error());
  return result ? result->body : "";
}

}  // namespace syncgrads::testing
