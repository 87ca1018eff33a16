// Every RPC and every page of a real ps-server, called by callers of every kind. docs/security.md
// has the table that this test makes.

#include <grpcpp/grpcpp.h>

#include <csignal>
#include <fstream>
#include <functional>
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

TEST(AccessTest, EveryCallIsAnsweredAsTheTableSays) {
  // OpenSSL writes to connections that the server has closed.
  std::signal(SIGPIPE, SIG_IGN);
  SecuredServer server;
  // The job that the calls are about. It has begun, so that nobody else may join it.
  Client worker(server.Worker(server.CallerWith("worker"), "iris"));
  ASSERT_TRUE(worker.Join(kSecuredTimeout).ok());
  ASSERT_TRUE(
      worker.Register({.name = "model", .tensors = {{"w", DType::kF32, {3}}}}, kSecuredTimeout)
          .ok());

  const std::vector<Column> callers = {
      {"nothing", server.CallerWith("")},
      {"expired", server.CallerWith("expired")},
      {"wrong CA", server.CallerWith("stranger")},
      {"no role", server.CallerWith("nobody")},
      {"wrong token", server.CallerWith("nobody", "guessed")},
      {"other job's token", server.CallerWith("nobody", kOtherToken)},
      {"viewer", server.CallerWith("viewer")},
      {"worker", server.CallerWith("worker")},
      {"operator", server.CallerWith("operator")},
      {"server", server.CallerWith("server")},
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
  const std::string letters = "   --ovwps";
  const auto may = [&](const std::string& who, size_t caller) {
    return who == "*" || (letters[caller] != '-' && absl::StrContains(who, letters[caller]));
  };
  std::vector<std::string> table = {"| call |", "| --- |"};
  for (const Column& column : callers) {
    absl::StrAppend(&table[0], " ", column.name, " |");
    absl::StrAppend(&table[1], " --- |");
  }
  const auto add_row = [&](const Rpc& rpc) {
    std::string row = absl::StrCat("| `", rpc.name, "` |");
    for (size_t i = 0; i < callers.size(); ++i) {
      Calls calls(server, callers[i].caller);
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
      const std::string code = PageCode(server, callers[i].caller, path);
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

}  // namespace
}  // namespace syncgrads::testing
