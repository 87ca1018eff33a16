// Asks all servers for their status, at the same time.

#ifndef SYNCGRADS_CLIENT_PSCTL_CLUSTER_QUERY_H_
#define SYNCGRADS_CLIENT_PSCTL_CLUSTER_QUERY_H_

#include <atomic>
#include <cstddef>
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
  // False if this server is the first of those that are left out, because there are too many.
  bool was_asked = true;
  absl::StatusOr<v1::GetStatusReply> reply = absl::UnavailableError("not asked");
  // When the answer arrived, on the monotonic clock, and how long the call took.
  absl::Time at;
  absl::Duration took;
  // The time by this host's wall clock in the middle of the call.
  absl::Time date;
};

// The coordinator knows the addresses of all servers, and every other server knows the
// coordinator's. So one address is enough. Servers name each other, and one of them may be broken
// or hostile: the limits below apply whatever they answer. Not thread-safe.
class ClusterQuery {
 public:
  // The number of servers that are asked at the same time.
  static constexpr size_t kMostAtOnce = 64;
  // The most memory, in bytes, that the answers may take.
  static constexpr size_t kMostBytes = size_t{1} << 30;
  // Three rounds lead from any server to the coordinator, and from there to all others. The fourth
  // is for servers that have moved.
  static constexpr int kMostRounds = 4;

  // `address` is that of any server. Each server has `timeout` to answer; a server that cannot be
  // connected to is not waited for.
  ClusterQuery(std::string address, absl::Duration timeout, Caller caller = Caller())
      : address_(std::move(address)), timeout_(timeout), caller_(std::move(caller)) {}

  // Returns one answer for each known server, in ascending order of index; those without an index
  // come last. If there are more than kMostServers, there is one more answer: ResourceExhausted,
  // with the number of those that are left out. Connections are kept for the next call.
  std::vector<Answer> Ask();

 private:
  // A server to ask.
  struct Target {
    std::optional<uint32_t> index;
    std::string address;
  };

  Answer AskOne(Admin& admin);
  std::vector<Answer> AskAll(const std::vector<Target>& targets);
  // Returns the connection to this server, which is made if there is none.
  Admin& AdminOf(const std::string& address);
  // Remembers the servers in `answers` for the next call, and closes the connections to others.
  void Remember(const std::vector<Answer>& answers);
  // The servers that `answers` name and that are not among them.
  static std::vector<Target> Unasked(const std::vector<Answer>& answers);
  // Takes those of `targets` out for which there is no room beside `answers`, and returns them.
  static std::vector<Target> TakeExcess(const std::vector<Answer>& answers,
                                        std::vector<Target>& targets);

  const std::string address_;
  const absl::Duration timeout_;
  const Caller caller_;
  std::map<std::string, std::unique_ptr<Admin>> admins_;
  // The memory, in bytes, that the answers of this call take.
  std::atomic<size_t> received_ = 0;
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
