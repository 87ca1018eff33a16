#include "client/psctl/doctor.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/grpc/grpc_link_probe.h"
#include "client/psctl/cluster_query.h"
#include "common/net/address.h"

namespace syncgrads::client {
namespace {

// The number of queries to each server. The first one connects.
constexpr int kQueries = 4;

// Returns why the host of an address cannot be resolved; empty if it can, or need not be.
std::string ResolveError(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort("server", address);
  if (!parsed.ok()) {
    // CheckServerAddress accepts addresses of unix sockets too.
    const absl::Status valid = CheckServerAddress("server", address);
    return valid.ok() ? "" : std::string(valid.message());
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(parsed->host.c_str(), nullptr, &hints, &found);
  if (error == 0) freeaddrinfo(found);
  return error == 0 ? "" : gai_strerror(error);
}

// Asks all servers several times. Returns the fastest answer of each.
std::vector<Answer> FastestAnswers(const std::string& server, absl::Duration timeout) {
  ClusterQuery query(server, timeout);
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
                       const DoctorLimits& limits, const HostFacts& host, std::ostream& out) {
  std::vector<ServerFacts> servers;
  for (Answer& answer : FastestAnswers(server, timeout)) {
    ServerFacts& facts = servers.emplace_back();
    facts.answer = std::move(answer);
    if (facts.answer.reply.ok()) {
      facts.bandwidth = MeasureGrpcLink(facts.answer.address, "", timeout);
    } else if (!facts.answer.address.empty()) {
      facts.resolve_error = ResolveError(facts.answer.address);
    }
  }
  size_t wrong = 0;
  for (const Finding& finding : Diagnose(host, servers, limits, timeout)) {
    out << (finding.is_wrong ? "WRONG: " : "fine:  ") << finding.text << "\n";
    wrong += finding.is_wrong ? 1 : 0;
  }
  if (wrong == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(wrong, wrong == 1 ? " problem found" : " problems found"));
}

}  // namespace syncgrads::client
