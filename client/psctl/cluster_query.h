// Asks all servers for their status, at the same time.

#ifndef SYNCGRADS_CLIENT_PSCTL_CLUSTER_QUERY_H_
#define SYNCGRADS_CLIENT_PSCTL_CLUSTER_QUERY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/psctl/admin.h"
#include "proto/admin.pb.h"

namespace syncgrads::client {

// One server, and what it has answered.
struct Answer {
  // Its index by the coordinator's list, or else by its own answer; nullopt if neither is known.
  std::optional<uint32_t> index;
  // Empty if the server has never connected to its coordinator.
  std::string address;
  absl::StatusOr<v1::GetStatusReply> reply = absl::UnavailableError("not asked");
  // When the answer arrived, on the monotonic clock, and how long the call took.
  absl::Time at;
  absl::Duration took;
  // The time by this host's wall clock in the middle of the call.
  absl::Time date;
};

// The coordinator knows the addresses of all servers, and every other server knows the
// coordinator's. So one address is enough. Not thread-safe.
class ClusterQuery {
 public:
  // `address` is that of any server. Each server has `timeout` to answer; a server that cannot be
  // connected to is not waited for.
  ClusterQuery(std::string address, absl::Duration timeout, Caller caller = Caller())
      : address_(std::move(address)), timeout_(timeout), caller_(std::move(caller)) {}

  // Returns one answer for each known server, in ascending order of index; those without an index
  // come last. Connections are kept for the next call.
  std::vector<Answer> Ask();

 private:
  // A server to ask.
  struct Target {
    std::optional<uint32_t> index;
    std::string address;
  };

  std::vector<Answer> AskAll(const std::vector<Target>& targets);
  // The servers that `answers` name and that are not among them.
  static std::vector<Target> Unasked(const std::vector<Answer>& answers);

  const std::string address_;
  const absl::Duration timeout_;
  const Caller caller_;
  std::map<std::string, std::unique_ptr<Admin>> admins_;
  // The servers of the last call: they are asked even if the coordinator does not answer any more.
  std::vector<Target> known_;
};

// Returns the answer in `answers`, which may be null, of the server that has answered `now`; null
// if that server has not answered there.
const Answer* FindAnswer(const std::vector<Answer>* answers, const Answer& now);

// The message that -o json prints.
v1::ClusterStatus ToProto(const std::vector<Answer>& answers);

// Returns, for example, 'server 1, 10.0.0.1:7000'.
std::string NameOf(const Answer& answer);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_PSCTL_CLUSTER_QUERY_H_
