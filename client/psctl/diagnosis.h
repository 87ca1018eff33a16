// Finds problems of servers, of the links to them, and of this host, and proposes remedies.

#ifndef SYNCGRADS_CLIENT_PSCTL_DIAGNOSIS_H_
#define SYNCGRADS_CLIENT_PSCTL_DIAGNOSIS_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/psctl/cluster_query.h"
#include "common/rpc/build_info.h"

namespace syncgrads::client {

struct Space {
  uint64_t total = 0;
  uint64_t free = 0;
};

// The limits of this process, in bytes, and the settings of this host.
struct HostFacts {
  // See HostId.
  std::string host_id;
  // See NetworkNamespace.
  uint64_t network_namespace = 0;
  uint32_t user_id = 0;
  // The limit of locked memory. The maximum of the type: no limit.
  uint64_t memlock_bytes = std::numeric_limits<uint64_t>::max();
  // See HasHugePages.
  bool has_huge_pages = false;
  // The file system /dev/shm; nullopt if there is none.
  std::optional<Space> dev_shm;
  // The kernel's default TCP congestion control; empty if it cannot be read.
  std::string congestion_control;
  // Whether this process connects with TLS.
  bool has_tls = false;
  // See MeasureSharedMemory; nullopt if it was not measured.
  std::optional<double> shared_memory_rate;
};

// Reads the facts of this host.
HostFacts ReadHostFacts();

// One server, and the link to it from this host.
struct ServerFacts {
  // The fastest of several answers.
  Answer answer;
  // Why the host in its address was not resolved; empty if it was.
  std::string resolve_error;
  // What its port does with TCP connections. Known only if it could be examined, and the server did
  // not answer.
  enum class Port { kUnknown, kRefuses, kSilent, kAccepts };
  Port port = Port::kUnknown;
  // The throughput of the link in bytes per second, in each direction; nullopt if it could not be
  // measured.
  std::optional<double> rate_to;
  std::optional<double> rate_from;
};

// True if payloads between this process and the server use shared memory.
bool ShareMemory(const HostFacts& host, const v1::ServerStatus& server);

// A value that exceeds its maximum or is below its minimum is a finding.
struct DoctorLimits {
  absl::Duration max_latency = absl::Milliseconds(10);
  // In bytes per second: a link of 100 Mbit/s. If it is 0, links are not compared with each other
  // either.
  double min_bandwidth = 12.5e6;
  // A part of the throughput of the fastest link to another host.
  double min_share_of_best = 0.25;
  absl::Duration max_clock_skew = absl::Seconds(1);
  // In bytes. This much, which an empty /dev/shm of a container has, is too little.
  uint64_t min_free = uint64_t{64} << 20;
  // A part of the size of the file system.
  double min_free_share = 0.05;
};

struct Finding {
  // False: information, not a problem.
  bool is_wrong = false;
  // One sentence; for a problem, it includes the remedy.
  std::string text;

  friend bool operator==(const Finding&, const Finding&) = default;
};

// `servers` are in ascending order of index. `timeout`: how long each server had to answer. `build`
// is that of this program.
std::vector<Finding> Diagnose(const HostFacts& host, const std::vector<ServerFacts>& servers,
                              const DoctorLimits& limits, absl::Duration timeout,
                              const BuildInfo& build = ThisBuild());

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_PSCTL_DIAGNOSIS_H_
