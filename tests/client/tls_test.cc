// TLS between real servers and clients in this process. The certificates are made by the test.

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "common/rpc/credentials.h"
#include "common/tls/certificate_authority.h"
#include "common/tls/tls_options.h"
#include "gmock/gmock.h"
#include "proto/admin.grpc.pb.h"
#include "tests/client/workers.h"
#include "tests/testing/cluster.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;

// A name and an address for a server that clients on this host connect to.
const std::vector<std::string> kServerNames = {"IP:127.0.0.1", "DNS:localhost",
                                               "URI:syncgrads:server"};
const std::vector<std::string> kWorkerNames = {"URI:syncgrads:worker", "URI:syncgrads:viewer"};

// The files of one test, in a folder of its own.
class Files {
 public:
  Files() {
    std::string folder = absl::StrCat(::testing::TempDir(), "/tls-XXXXXX");
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }

  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  // Writes NAME.pem and NAME.key.
  void Write(const std::string& name, const absl::StatusOr<IssuedCertificate>& issued) const {
    ASSERT_OK(issued);
    ASSERT_OK(issued->Write(Path(name)));
  }
  // Writes NAME.pem with the certificates of `authorities`.
  void WriteAuthorities(const std::string& name,
                        const std::vector<const CertificateAuthority*>& authorities) const {
    std::string text;
    for (const CertificateAuthority* authority : authorities) text += authority->certificate();
    std::ofstream(Path(name + ".new")) << text;
    ASSERT_EQ(rename(Path(name + ".new").c_str(), Path(name + ".pem").c_str()), 0);
  }

  // Writes what a cluster needs: "ca", "server" and "worker".
  void WriteCluster(const CertificateAuthority& authority) const {
    WriteAuthorities("ca", {&authority});
    Write("server", authority.Issue(kServerNames));
    Write("worker", authority.Issue(kWorkerNames));
  }

  // The options of a process that has the certificate NAME and trusts AUTHORITIES.
  TlsOptions Options(const std::string& name, const std::string& authorities) const {
    TlsOptions tls;
    tls.certificate = Path(name + ".pem");
    tls.key = Path(name + ".key");
    tls.ca = Path(authorities + ".pem");
    tls.refresh = absl::Seconds(1);
    return tls;
  }
  TlsOptions ServerOptions(const std::string& name, const std::string& authorities) const {
    TlsOptions tls = Options(name, authorities);
    tls.client_ca = tls.ca;
    return tls;
  }

 private:
  std::string folder_;
};

server::ServerOptions OverTcp(const TlsOptions& tls) {
  server::ServerOptions options;
  options.tls = tls;
  options.shared_memory = false;
  options.unix_socket = false;
  return options;
}

ClientOptions Worker(const Cluster& cluster, const TlsOptions& tls) {
  ClientOptions options;
  options.coordinator = cluster.coordinator();
  options.job = "job";
  options.tls = tls;
  return options;
}

absl::StatusOr<Group*> RegisterModel(Client& client) {
  return client.Register({.name = "model", .tensors = {{"w", DType::kF32, {3}}}}, kTimeout);
}

// One step of a job of one worker. Its result is its gradient.
void Step(Group& group) {
  const float gradient[] = {1, 2, 3};
  float result[] = {0, 0, 0};
  ASSERT_OK(group.Push(TensorId{0}, gradient, sizeof(gradient), result));
  ASSERT_OK(group.WaitStep(kTimeout));
  EXPECT_THAT(result, ::testing::ElementsAre(1, 2, 3));
}

// Calls the server once. Returns the code, and waits for no retry.
grpc::StatusCode Call(const std::string& address, const TlsOptions& tls) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto channel = ChannelSecurity(tls).Connect(address, arguments);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  v1::GetStatusReply reply;
  return v1::Admin::NewStub(channel)->GetStatus(&context, {}, &reply).error_code();
}

// Makes a handshake with a version of TLS. Returns the serial number of the server's certificate,
// or "" if there was none.
std::string Handshake(const std::string& address, const TlsOptions& tls, int version) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  &SSL_CTX_free);
  SSL_CTX_set_min_proto_version(context.get(), version);
  SSL_CTX_set_max_proto_version(context.get(), version);
  SSL_CTX_use_certificate_chain_file(context.get(), tls.certificate.c_str());
  SSL_CTX_use_PrivateKey_file(context.get(), tls.key.c_str(), SSL_FILETYPE_PEM);
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  to.sin_port = htons(static_cast<uint16_t>(port));
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(connect(socket, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  std::string serial;
  {
    const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), &SSL_free);
    SSL_set_fd(ssl.get(), socket);
    // gRPC requires that the peer speaks HTTP/2.
    const unsigned char h2[] = {2, 'h', '2'};
    SSL_set_alpn_protos(ssl.get(), h2, sizeof(h2));
    if (SSL_connect(ssl.get()) == 1) {
      const std::unique_ptr<X509, decltype(&X509_free)> certificate(
          SSL_get1_peer_certificate(ssl.get()), &X509_free);
      const std::unique_ptr<BIGNUM, decltype(&BN_free)> number(
          ASN1_INTEGER_to_BN(X509_get_serialNumber(certificate.get()), nullptr), &BN_free);
      char* const text = BN_bn2hex(number.get());
      serial = text;
      OPENSSL_free(text);
    }
  }
  close(socket);
  return serial;
}

TEST(TlsTest, ServersAndWorkersTrainOverIt) {
  const Files files;
  const CertificateAuthority authority("a");
  files.WriteCluster(authority);
  Cluster cluster(2, OverTcp(files.ServerOptions("server", "ca")));
  Client client(Worker(cluster, files.Options("worker", "ca")));
  ASSERT_OK(client.Join(kTimeout));
  const auto group = RegisterModel(client);
  ASSERT_OK(group);
  for (int i = 0; i < 3; ++i) Step(**group);
  ASSERT_OK((*group)->End(kTimeout));
  ASSERT_OK(client.Leave(kTimeout));
}

TEST(TlsTest, SharedMemoryIsUsedBesideIt) {
  const Files files;
  const CertificateAuthority authority("a");
  files.WriteCluster(authority);
  server::ServerOptions options;
  options.tls = files.ServerOptions("server", "ca");
  Cluster cluster(1, options);
  ClientOptions worker = Worker(cluster, files.Options("worker", "ca"));
  Mutex mutex;
  std::vector<std::string> paths;
  worker.on_path = [&](const std::string& path) {
    MutexLock lock(mutex);
    paths.push_back(path);
  };
  Client client(worker);
  ASSERT_OK(client.Join(kTimeout));
  const auto group = RegisterModel(client);
  ASSERT_OK(group);
  Step(**group);
  ASSERT_TRUE(WaitUntil([&] {
    MutexLock lock(mutex);
    return !paths.empty();
  }));
  MutexLock lock(mutex);
  EXPECT_THAT(paths[0], HasSubstr("through shared memory"));
}

TEST(TlsTest, PeersWithoutAValidCertificateAreRefused) {
  const Files files;
  const CertificateAuthority authority("a"), other("b");
  files.WriteCluster(authority);
  files.WriteAuthorities("both", {&authority, &other});
  files.Write("expired", authority.Issue(kWorkerNames, -absl::Minutes(1)));
  files.Write("stranger", other.Issue(kWorkerNames));
  const Cluster cluster(1, OverTcp(files.ServerOptions("server", "ca")));
  const std::string& address = cluster.coordinator();
  EXPECT_EQ(Call(address, files.Options("worker", "ca")), grpc::StatusCode::OK);
  EXPECT_EQ(Call(address, files.Options("expired", "ca")), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(address, files.Options("stranger", "both")), grpc::StatusCode::UNAVAILABLE);
  TlsOptions nameless;
  nameless.ca = files.Path("ca.pem");
  EXPECT_EQ(Call(address, nameless), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(address, TlsOptions()), grpc::StatusCode::UNAVAILABLE);
}

TEST(TlsTest, ServersOfAnotherAuthorityOrNameAreRefused) {
  const Files files;
  const CertificateAuthority authority("a"), other("b");
  files.WriteAuthorities("ca", {&authority});
  files.WriteAuthorities("other", {&other});
  files.Write("server", authority.Issue({"DNS:elsewhere.example"}));
  TlsOptions tls = files.Options("server", "ca");
  const Cluster cluster(1, OverTcp(tls));
  TlsOptions client;
  client.ca = files.Path("ca.pem");
  EXPECT_EQ(Call(cluster.coordinator(), client), grpc::StatusCode::UNAVAILABLE);
  client.server_name = "elsewhere.example";
  EXPECT_EQ(Call(cluster.coordinator(), client), grpc::StatusCode::OK);
  client.ca = files.Path("other.pem");
  EXPECT_EQ(Call(cluster.coordinator(), client), grpc::StatusCode::UNAVAILABLE);
}

TEST(TlsTest, OlderVersionsAreRefused) {
  const Files files;
  const CertificateAuthority authority("a");
  files.WriteAuthorities("ca", {&authority});
  files.Write("server", authority.Issue(kServerNames));
  const TlsOptions tls = files.ServerOptions("server", "ca");
  const Cluster cluster(1, OverTcp(tls));
  EXPECT_EQ(Handshake(cluster.coordinator(), tls, TLS1_2_VERSION), "");
  EXPECT_NE(Handshake(cluster.coordinator(), tls, TLS1_3_VERSION), "");
}

TEST(TlsTest, FilesAreReplacedWhileAJobRuns) {
  const Files files;
  const CertificateAuthority old("old"), fresh("new");
  files.WriteAuthorities("ca", {&old});
  files.WriteAuthorities("both", {&old, &fresh});
  files.Write("server", old.Issue(kServerNames));
  files.Write("old-worker", old.Issue(kWorkerNames));
  files.Write("new-worker", fresh.Issue(kWorkerNames));
  Cluster cluster(2, OverTcp(files.ServerOptions("server", "ca")));
  const std::string& address = cluster.coordinator();
  Client client(Worker(cluster, files.Options("old-worker", "both")));
  ASSERT_OK(client.Join(kTimeout));
  const auto group = RegisterModel(client);
  ASSERT_OK(group);
  Step(**group);

  const TlsOptions old_worker = files.Options("old-worker", "both");
  const TlsOptions new_worker = files.Options("new-worker", "both");
  const std::string before = Handshake(address, old_worker, TLS1_3_VERSION);
  EXPECT_NE(Call(address, new_worker), grpc::StatusCode::OK);
  files.Write("server", fresh.Issue(kServerNames));
  files.WriteAuthorities("ca", {&fresh});
  ASSERT_TRUE(WaitUntil([&] {
    Step(**group);
    return Call(address, new_worker) == grpc::StatusCode::OK;
  }));
  EXPECT_NE(Handshake(address, new_worker, TLS1_3_VERSION), before);
  EXPECT_EQ(Call(address, old_worker), grpc::StatusCode::UNAVAILABLE);
  // The job goes on, on the connections of before.
  for (int i = 0; i < 3; ++i) Step(**group);
  ASSERT_OK((*group)->End(kTimeout));
  ASSERT_OK(client.Leave(kTimeout));
}

TEST(TlsTest, FilesThatDoNotBelongTogetherShutNobodyOut) {
  const Files files;
  const CertificateAuthority authority("a");
  files.WriteCluster(authority);
  files.Write("next", authority.Issue(kServerNames));
  Cluster cluster(1, OverTcp(files.ServerOptions("server", "ca")));
  const std::string& address = cluster.coordinator();
  const TlsOptions worker = files.Options("worker", "ca");
  const std::string before = Handshake(address, worker, TLS1_3_VERSION);
  ASSERT_EQ(rename(files.Path("next.key").c_str(), files.Path("server.key").c_str()), 0);
  ASSERT_NE(cluster.journal().WaitForLine({"server.key is not that of", "stay in use"}, kTimeout),
            "");
  EXPECT_EQ(Call(address, worker), grpc::StatusCode::OK);
  EXPECT_EQ(Handshake(address, worker, TLS1_3_VERSION), before);
  ASSERT_EQ(rename(files.Path("next.pem").c_str(), files.Path("server.pem").c_str()), 0);
  EXPECT_TRUE(WaitUntil([&] { return Handshake(address, worker, TLS1_3_VERSION) != before; }));
  EXPECT_EQ(Call(address, worker), grpc::StatusCode::OK);
}

TEST(TlsTest, FilesThatCannotBeUsedAreNamed) {
  const Files files;
  const CertificateAuthority authority("a");
  files.WriteAuthorities("ca", {&authority});
  files.Write("server", authority.Issue(kServerNames));
  files.Write("other", authority.Issue(kServerNames));
  EXPECT_OK(CheckTls(files.ServerOptions("server", "ca"), TlsSide::kBoth));
  const auto error = [](const TlsOptions& tls, TlsSide side) {
    return CheckTls(tls, side).ToString();
  };
  TlsOptions tls = files.ServerOptions("server", "ca");
  tls.key = files.Path("other.key");
  EXPECT_THAT(error(tls, TlsSide::kListens),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("other.key is not that of")));
  tls.key = files.Path("none.key");
  EXPECT_THAT(error(tls, TlsSide::kListens),
              AllOf(HasSubstr("NOT_FOUND"), HasSubstr("--tls_key="), HasSubstr("none.key")));
  tls = files.ServerOptions("server", "ca");
  tls.client_ca = tls.key;
  EXPECT_THAT(error(tls, TlsSide::kListens), HasSubstr("--tls_client_ca="));
  std::ofstream(files.Path("chain.pem"))
      << authority.certificate() << "-----BEGIN CERTIFICATE-----\nAAAA\n";
  tls.client_ca = files.Path("chain.pem");
  EXPECT_THAT(
      error(tls, TlsSide::kListens),
      AllOf(HasSubstr("chain.pem"), HasSubstr("what follows its first certificate is malformed")));
  tls = files.ServerOptions("server", "ca");
  tls.ca.clear();
  EXPECT_OK(CheckTls(tls, TlsSide::kListens));
  EXPECT_THAT(error(tls, TlsSide::kConnects), HasSubstr("--tls_ca is needed"));
  tls.key.clear();
  EXPECT_THAT(error(tls, TlsSide::kListens), HasSubstr("need each other"));
  // A peer's refusal would not say why.
  files.Write("expired", authority.Issue(kServerNames, -absl::Minutes(1)));
  EXPECT_THAT(error(files.ServerOptions("expired", "ca"), TlsSide::kBoth),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("expired.pem"),
                    HasSubstr("ceased to be valid on "), HasSubstr(" GMT")));
}

}  // namespace
}  // namespace syncgrads::testing
