// Every RPC and every page of a real ps-server, called by callers of every kind. docs/security.md
// has the table that this test makes.

#include <grpcpp/grpcpp.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/client.h"
#include "gtest/gtest.h"
#include "tests/integration/secured_server.h"

namespace syncgrads::testing {
namespace {

// A column of the table.
struct Column {
  std::string name;
  Caller caller;
  // What the caller is: v(iewer), w(orker), p (operator), s(erver), o(ther job's worker); -: nobody
  // who is known; n(othing): no certificate and no token; x: somebody whose handshake fails.
  char kind;
};

// A call, and who may make it.
struct Rpc {
  std::string name;
  std::function<grpc::StatusCode(Calls&)> call;
  // The answer to those who may; and their kinds; * for everybody who is connected.
  std::string answer;
  std::string who;
};

const char* const kPages[] = {"/livez",       "/readyz",      "/",         "/metrics",
                              "/status.json", "/curves.json", "/log.json", "/events"};

std::vector<Rpc> Rpcs() {
  return {
      {"Control.Join", &Calls::Join, "RESOURCE_EXHAUSTED", "w"},
      {"Control.Follow", &Calls::Follow, "INVALID_ARGUMENT", "s"},
      {"Control.Probe", &Calls::Probe, "OK", "owp"},
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
      {"Admin.StopTrace", &Calls::StopTrace, "OK", "p"},
      {"Admin.GetStatus", &Calls::GetStatus, "OK", "vp"},
      {"Admin.Events", &Calls::Events, "OK", "vp"},
      {"Admin.ReadClock", &Calls::ReadClock, "OK", "vp"},
      {"grpc.health", &Calls::Health, "OK", "*"},
      {"grpc.reflection", &Calls::Reflection, "UNIMPLEMENTED", "*"},
  };
}

// Last: from then on the server is not ready.
Rpc Drain() { return {"Admin.Drain", &Calls::Drain, "OK", "p"}; }

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

// Makes every call as every caller, and checks the answers. Returns the table: for each call, its
// name and "yes", "no" or "cut" for each caller.
std::vector<std::vector<std::string>> CallAll(const SecuredServer& server,
                                              const std::vector<Column>& callers) {
  std::vector<std::vector<std::string>> table;
  const auto add_row = [&](const Rpc& rpc) {
    std::vector<std::string>& row = table.emplace_back(1, rpc.name);
    for (const Column& caller : callers) {
      Calls calls(server, caller.caller);
      const std::string code = NameOf(rpc.call(calls));
      const bool allowed = rpc.who == "*" || absl::StrContains(rpc.who, caller.kind);
      EXPECT_EQ(code, caller.kind == 'x' ? "UNAVAILABLE"
                      : allowed          ? rpc.answer
                                         : "PERMISSION_DENIED")
          << rpc.name << " by " << caller.name;
      row.push_back(code == "UNAVAILABLE"                                    ? "cut"
                    : code == "PERMISSION_DENIED" || code == "UNIMPLEMENTED" ? "no"
                                                                             : "yes");
    }
  };
  for (const Rpc& rpc : Rpcs()) add_row(rpc);
  for (const std::string path : kPages) {
    const bool is_probe = path == "/livez" || path == "/readyz";
    std::vector<std::string>& row = table.emplace_back(1, path);
    for (const Column& caller : callers) {
      const std::string code = PageCode(server, caller.caller, path);
      const bool allowed = is_probe || absl::StrContains("vp", caller.kind);
      // Without a certificate, the port for pages can be reached, and only there.
      const bool nothing = caller.kind == 'n' || (caller.kind == 'x' && caller.name == "nothing");
      EXPECT_EQ(code, caller.kind == 'x' && !nothing ? "refused"
                      : allowed                      ? "200"
                      : nothing                      ? "401"
                                                     : "403")
          << path << " by " << caller.name;
      row.push_back(code == "200" ? "yes" : code == "refused" ? "cut" : "no");
    }
  }
  add_row(Drain());
  return table;
}

// The job that the calls are about. It has begun, so that nobody else may join it.
std::unique_ptr<Client> Begin(const SecuredServer& server) {
  auto worker = std::make_unique<Client>(server.Worker(server.CallerWith("worker"), "iris"));
  EXPECT_TRUE(worker->Join(kSecuredTimeout).ok());
  EXPECT_TRUE(
      worker->Register({.name = "model", .tensors = {{"w", DType::kF32, {3}}}}, kSecuredTimeout)
          .ok());
  return worker;
}

void ExpectInDocs(const std::string& made) {
  std::ifstream file("docs/security.md");
  std::ostringstream docs;
  docs << file.rdbuf();
  EXPECT_TRUE(absl::StrContains(docs.str(), made)) << "docs/security.md must have:\n" << made;
}

class AccessTest : public ::testing::Test {
 protected:
  // OpenSSL writes to connections that the server has closed.
  AccessTest() { std::signal(SIGPIPE, SIG_IGN); }
};

TEST_F(AccessTest, EveryCallIsAnsweredAsTheTableSays) {
  const SecuredServer server;
  const auto worker = Begin(server);
  const std::vector<Column> callers = {
      {"nothing", server.CallerWith(""), 'x'},
      {"expired", server.CallerWith("expired"), 'x'},
      {"wrong CA", server.CallerWith("stranger"), 'x'},
      {"no role", server.CallerWith("nobody"), '-'},
      {"wrong token", server.CallerWith("nobody", "guessed"), '-'},
      {"other job's token", server.CallerWith("nobody", kOtherToken), 'o'},
      {"viewer", server.CallerWith("viewer"), 'v'},
      {"worker", server.CallerWith("worker"), 'w'},
      {"operator", server.CallerWith("operator"), 'p'},
      {"server", server.CallerWith("server"), 's'},
  };
  std::vector<std::string> lines = {"| call |", "| --- |"};
  for (const Column& column : callers) {
    absl::StrAppend(&lines[0], " ", column.name, " |");
    absl::StrAppend(&lines[1], " --- |");
  }
  for (std::vector<std::string> row : CallAll(server, callers)) {
    row[0] = absl::StrCat("`", row[0], "`");
    lines.push_back(absl::StrCat("| ", absl::StrJoin(row, " | "), " |"));
  }
  ExpectInDocs(absl::StrJoin(lines, "\n"));
}

TEST_F(AccessTest, WithCertificatesOnlyAndWithTokensOnlyRolesMayDoTheSame) {
  struct Kind {
    std::string flags;
    ServerSetup setup;
  };
  const Kind kinds[] = {
      {"`--tls_client_ca`", ServerSetup::kCertificates},
      {"`--tokens_file`, `--tls_certificate`", ServerSetup::kTokensOverTls},
      {"`--tokens_file`", ServerSetup::kTokens},
  };
  std::vector<std::string> lines = {
      "| flags | nothing | wrong token | other job's token | viewer | worker | operator | server |",
      "| --- | --- | --- | --- | --- | --- | --- | --- |"};
  for (const Kind& kind : kinds) {
    SCOPED_TRACE(kind.flags);
    const SecuredServer server({}, kind.setup);
    const auto worker = Begin(server);
    const bool certificates = kind.setup == ServerSetup::kCertificates;
    std::vector<Column> callers = {
        {"nothing", server.CallerWith(""), certificates ? 'x' : 'n'},
        {"wrong token", server.CallerWith("nobody", "guessed"), '-'},
        {"viewer", server.CallerWith("viewer"), 'v'},
        {"worker", server.CallerWith("worker"), 'w'},
        {"operator", server.CallerWith("operator"), 'p'},
        {"server", server.CallerWith("server"), 's'},
    };
    // With certificates only, each token is a wrong one.
    if (!certificates) {
      callers.insert(callers.begin() + 2,
                     {"other job's token", server.CallerWith("", kOtherToken), 'o'});
    }
    const std::vector<std::vector<std::string>> table = CallAll(server, callers);
    std::vector<std::string> row = {kind.flags};
    for (size_t i = 1; i <= callers.size(); ++i) {
      // CallAll has compared those who have a role with what the first table has.
      if (callers[i - 1].kind == 'x' || callers[i - 1].kind == 'n' || callers[i - 1].kind == '-') {
        size_t permitted = 0;
        for (const auto& call : table) permitted += call[i] == "yes" ? 1 : 0;
        row.push_back(table[0][i] == "cut" ? "cut" : permitted <= 3 ? "probes" : "more");
      } else {
        row.push_back("as above");
      }
    }
    if (certificates) row.insert(row.begin() + 3, row[2]);
    lines.push_back(absl::StrCat("| ", absl::StrJoin(row, " | "), " |"));
  }
  ExpectInDocs(absl::StrJoin(lines, "\n"));
}

}  // namespace
}  // namespace syncgrads::testing
