// A ps-server that has certificates, a file of tokens and pages, and callers of it.

#ifndef SYNCGRADS_TESTS_INTEGRATION_SECURED_SERVER_H_
#define SYNCGRADS_TESTS_INTEGRATION_SECURED_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/client.h"
#include "common/rpc/credentials.h"
#include "common/tls/certificate_authority.h"
#include "common/tls/tls_options.h"
#include "proto/admin.grpc.pb.h"
#include "proto/control.grpc.pb.h"
#include "proto/data.grpc.pb.h"
#include "tests/testing/process/process.h"

namespace syncgrads::testing {

inline constexpr absl::Duration kSecuredTimeout = absl::Minutes(2);
// By the first rules, the token of a worker of the jobs other-*.
inline constexpr char kOtherToken[] = "the-token-of-another-job";

// Who calls: a certificate, or none, and a token, or none.
struct Caller {
  TlsOptions tls;
  std::string token;
};

// How a server knows its callers.
enum class ServerSetup {
  kCertificatesAndTokens,
  kCertificates,   // no file of tokens
  kTokensOverTls,  // no certificates of callers
  kTokens,         // plain text
};

// Certificates with the names syncgrads:ROLE have the role, for all jobs; in setups without
// certificates, a token for each role.
class SecuredServer {
 public:
  // `flags` are passed to the server. A server that does not listen is a test failure.
  explicit SecuredServer(const std::vector<std::string>& flags = {},
                         ServerSetup setup = ServerSetup::kCertificatesAndTokens);

  std::string Path(const std::string& name) const;
  std::string address() const;
  ServerSetup setup() const { return setup_; }
  int pages() const { return pages_; }
  Process& process() { return *process_; }

  // Replaces the rules for tokens. Those for certificates stay.
  void WriteRules(const std::string& rules) const;
  // Makes the certificate `name` with these names in it.
  void Issue(const std::string& name, const std::vector<std::string>& names);

  // Returns a caller with one of the certificates server, worker, operator, viewer, nobody (without
  // a role), expired, stranger (of another authority), and those that were issued; or with none. In
  // setups without certificates, the caller has the token of this role instead.
  Caller CallerWith(const std::string& certificate, const std::string& token = "") const;
  ClientOptions Worker(const Caller& caller, const std::string& job) const;

 private:
  void Issue(const CertificateAuthority& authority, const std::string& name,
             const std::vector<std::string>& names, absl::Duration lifetime = absl::Hours(1));
  int PortIn(const std::string& text);

  bool has_certificates() const {
    return setup_ == ServerSetup::kCertificatesAndTokens || setup_ == ServerSetup::kCertificates;
  }

  const ServerSetup setup_;
  const std::string folder_;
  const CertificateAuthority ours_{"ours"}, theirs_{"theirs"};
  std::unique_ptr<Process> process_;
  int port_ = 0;
  int pages_ = 0;
};

// One caller's connection, and its calls, which are about the job iris.
class Calls {
 public:
  Calls(const SecuredServer& server, const Caller& caller);

  grpc::StatusCode Join();
  grpc::StatusCode Follow();
  grpc::StatusCode Exchange() { return ExchangeAs("iris", 0); }
  // Opens a data stream of a member with a secret that is not the member's.
  grpc::StatusCode ExchangeAs(const std::string& job, uint32_t member);
  grpc::StatusCode Probe();
  grpc::StatusCode ReportTrace();
  grpc::StatusCode Explain();
  grpc::StatusCode Evict();
  grpc::StatusCode Readmit();
  grpc::StatusCode Checkpoint();
  grpc::StatusCode SetLearningRate();
  grpc::StatusCode ReadOptimizer();
  grpc::StatusCode Trace();
  grpc::StatusCode StopTrace();
  grpc::StatusCode Drain();
  grpc::StatusCode GetStatus();
  grpc::StatusCode ReadClock();
  grpc::StatusCode Events();
  grpc::StatusCode Health() { return Raw("/grpc.health.v1.Health/Check"); }
  grpc::StatusCode Reflection() {
    return Raw("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo");
  }

  // What GetStatus and Events return. An error is a test failure.
  v1::GetStatusReply Status();
  v1::EventsReply AllEvents();

 private:
  void Prepare(grpc::ClientContext& context) const;
  template <typename Request, typename Reply, typename Stub>
  grpc::StatusCode Unary(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                         Stub& stub, const Request& request);
  // Returns a request about the job, with the caller's token.
  template <typename Request>
  Request RequestAboutJob() const;
  // Calls a method of Admin about the job. The second one reads a stream to its end.
  template <typename Request, typename Reply>
  grpc::StatusCode About(grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*,
                                                                 const Request&, Reply*));
  template <typename Request, typename Reply>
  grpc::StatusCode About(std::unique_ptr<grpc::ClientReader<Reply>> (v1::Admin::Stub::*method)(
      grpc::ClientContext*, const Request&));
  // Calls a service of gRPC's own with an empty message.
  grpc::StatusCode Raw(const std::string& method);

  const std::string token_;
  const ChannelSecurity security_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Admin::Stub> admin_;
  const std::unique_ptr<v1::Control::Stub> control_;
  const std::unique_ptr<v1::Data::Stub> data_;
};

// Returns the status of a page, or "refused" if there is no connection.
std::string PageCode(const SecuredServer& server, const Caller& caller, const std::string& path);
// Returns the body of a page.
std::string Page(const SecuredServer& server, const Caller& caller, const std::string& path);

}  // namespace syncgrads::testing

#endif  // SYNCGRADS_TESTS_INTEGRATION_SECURED_SERVER_H_
