#include "client/psctl/doctor.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/grpc/grpc_link_probe.h"
#include "client/psctl/cluster_query.h"
#include "client/psctl/memory_probe.h"
#include "common/clock.h"
#include "common/file_descriptor.h"
#include "common/json.h"
#include "common/net/address.h"
#include "common/polling.h"

namespace syncgrads::client {
namespace {

// The number of queries to each server. The first one connects.
constexpr int kQueries = 4;

using Resolved = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Resolves an address. If it cannot be resolved, the result is null, and `error` has the reason.
Resolved Resolve(const HostPort& address, std::string& error) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(address.port);
  const int failed = getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found);
  if (failed != 0) error = gai_strerror(failed);
  return Resolved(failed == 0 ? found : nullptr, &freeaddrinfo);
}

using Port = ServerFacts::Port;

// Returns what the port does with a TCP connection, until the deadline.
Port TryToConnect(const addrinfo& address, absl::Time deadline) {
  const FileDescriptor connection(
      socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!connection.valid()) return Port::kUnknown;
  if (connect(connection.get(), address.ai_addr, address.ai_addrlen) == 0) return Port::kAccepts;
  if (errno != EINPROGRESS) return Port::kRefuses;
  if (!AwaitSocket(connection.get(), POLLOUT, deadline)) return Port::kSilent;
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(connection.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? Port::kAccepts : Port::kRefuses;
}

// Finds out why a server did not answer: its host cannot be resolved, or what its port does with a
// connection, within `timeout`.
void ExamineSilent(absl::Duration timeout, ServerFacts& server) {
  const std::string& address = server.answer.address;
  const absl::StatusOr<HostPort> parsed = ParseHostPort("server", address);
  if (!parsed.ok()) {
    // CheckServerAddress accepts addresses of unix sockets too.
    const absl::Status valid = CheckServerAddress("server", address);
    if (!valid.ok()) server.resolve_error = std::string(valid.message());
    return;
  }
  const Resolved resolved = Resolve(*parsed, server.resolve_error);
  const absl::Status& status = server.answer.reply.status();
  if (!absl::IsDeadlineExceeded(status) && !absl::IsUnavailable(status)) return;
  const absl::Time deadline = MonotonicNow() + timeout;
  for (const addrinfo* one = resolved.get(); one != nullptr; one = one->ai_next) {
    server.port = std::max(server.port, TryToConnect(*one, deadline));
  }
}

// Asks all servers several times. Returns the fastest answer of each.
std::vector<Answer> FastestAnswers(const std::string& server, absl::Duration timeout,
                                   const Caller& caller) {
  ClusterQuery query(server, timeout, caller);
  std::vector<Answer> fastest = query.Ask();
  for (int number = 1; number < kQueries; ++number) {
    for (Answer& answer : query.Ask()) {
      const auto known =
          std::find_if(fastest.begin(), fastest.end(), [&answer](const Answer& other) {
            return other.address == answer.address &&
                   (other.index == answer.index || !other.index.has_value());
          });
      if (known == fastest.end()) {
        fastest.push_back(std::move(answer));
      } else if (answer.reply.ok() && (!known->reply.ok() || answer.took < known->took)) {
        *known = std::move(answer);
      }
    }
  }
  return fastest;
}

}  // namespace

absl::Status RunDoctor(const std::string& server, absl::Duration timeout,
                       const DoctorLimits& limits, const HostFacts& host, bool json,
                       std::ostream& out, const Caller& caller) {
  std::vector<ServerFacts> servers;
  for (Answer& answer : FastestAnswers(server, timeout, caller)) {
    ServerFacts& facts = servers.emplace_back();
    facts.answer = std::move(answer);
    if (facts.answer.reply.ok()) {
      const auto measure = [&](LinkDirection direction) {
        return MeasureGrpcLink(facts.answer.address, "", timeout, caller.security, direction);
      };
      facts.rate_to = measure(LinkDirection::kToServer);
      facts.rate_from = measure(LinkDirection::kFromServer);
    } else if (facts.answer.was_asked && !facts.answer.address.empty()) {
      ExamineSilent(timeout, facts);
    }
  }
  size_t wrong = 0;
  HostFacts facts = host;
  facts.has_tls = caller.security.is_encrypted();
  const bool measures_memory =
      std::any_of(servers.begin(), servers.end(), [&facts](const ServerFacts& server) {
        return server.answer.reply.ok() && ShareMemory(facts, server.answer.reply->server());
      });
  if (measures_memory) facts.shared_memory_rate = MeasureSharedMemory();
  for (const Finding& finding : Diagnose(facts, servers, limits, timeout)) {
    if (json) {
      out << "{\"wrong\":" << (finding.is_wrong ? "true" : "false")
          << ",\"text\":" << JsonString(finding.text) << "}\n";
    } else {
      out << (finding.is_wrong ? "WRONG: " : "fine:  ") << finding.text << "\n";
    }
    wrong += finding.is_wrong ? 1 : 0;
  }
  if (wrong == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(wrong, wrong == 1 ? " problem found" : " problems found"));
}

}  // namespace syncgrads::client
