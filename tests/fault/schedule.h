// What happens to the processes of one run, and when: drawn from a seed, the same
// each time.

#ifndef SYNCGRADS_TESTS_FAULT_SCHEDULE_H_
#define SYNCGRADS_TESTS_FAULT_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace syncgrads::fault {

inline constexpr int kServers = 2;
inline constexpr int kWorkers = 3;
// Of each run's job.
inline constexpr uint64_t kSteps = 400;

// What is unusual about a job.
enum class Trait {
  kNone,
  kNotElastic,   // its members are those that it begins with
  kCheckpoints,  // it keeps some
  kQuorum,       // its steps take the first two workers' contributions
  // It sends this codec's bytes.
  kFloat16,
  kInt8,
  kTopK,
  kOneBit,
};
inline bool IsCompressed(Trait trait) { return trait >= Trait::kFloat16; }

// What is trained. Each kind has one undisturbed run to compare with.
struct JobKind {
  bool dealt = false;             // rows are dealt to the members; else cut into shards
  bool servers_optimize = false;  // else the workers do
  bool shared_memory = false;     // wide layers in shared memory; else small chunks over streams
  Trait trait = Trait::kNone;
  friend auto operator<=>(const JobKind&, const JobKind&) = default;
};
std::string ToString(const JobKind& kind);

struct ProcessId {
  enum class Role { kServer, kWorker };
  Role role = Role::kServer;
  int index = 0;
  friend auto operator<=>(const ProcessId&, const ProcessId&) = default;
};
inline ProcessId ServerId(int index) { return {ProcessId::Role::kServer, index}; }
inline ProcessId WorkerId(int index) { return {ProcessId::Role::kWorker, index}; }
std::string ToString(ProcessId process);

enum class FaultKind {
  kKill,       // SIGKILL; started again after `lasts`
  kStop,       // SIGSTOP; SIGCONT after `lasts`
  kTerminate,  // SIGTERM; a worker is started again after `lasts`, a server is not
  // Of every connection between the target and the servers (from a server: between
  // it and everybody), until `lasts` is over:
  kCut,        // broken, and new ones are broken at once
  kBlackHole,  // nothing gets through
  kDelay,      // each byte takes `delay`
  kThrottle,   // so many bytes a second each way
};

struct Fault {
  FaultKind kind = FaultKind::kKill;
  std::vector<ProcessId> targets;
  // When the first worker has made this step; 0: when the workers have been started.
  uint64_t step = 0;
  absl::Duration after;  // ... and so much later
  // InfiniteDuration: to the end of the run.
  absl::Duration lasts;
  absl::Duration delay;
  int64_t bytes_per_second = 0;
};
std::string ToString(const Fault& fault);

// What processes speak through.
enum class Network {
  kDirect,  // nothing in between
  kProxy,   // a TcpProxy before each server
  kRelay,   // a MessageRelay before each server
};

// What a MessageRelay does, of each message the probability.
struct MessageFaults {
  double drop = 0;  // and then the stream breaks
  double duplicate = 0;
  double reorder = 0;
};

struct Schedule {
  uint64_t seed = 0;
  JobKind job;
  // Of each worker to each server.
  int connections = 1;
  Network network = Network::kDirect;
  MessageFaults messages;
  // By the time of their beginning.
  std::vector<Fault> faults;
  // Only servers die, and nobody is out of reach for a lease: the membership must not
  // change, and the parameters must be those of the undisturbed run. (But not with a
  // quorum: who is late is chance.)
  bool servers_only = false;
  // A worker that nothing happens to that could end its membership; -1: there is
  // none, and the job's state may be lost with its workers.
  int survivor = -1;
};

// Half of the schedules, those of even seeds, are servers_only.
Schedule DrawSchedule(uint64_t seed);
// One with no faults.
Schedule Undisturbed(const JobKind& job);

// The lease and the grace that the schedule's servers are started with.
absl::Duration LeaseOf(const Schedule& schedule);
absl::Duration GraceOf(const Schedule& schedule);
// Whether the fault can end its target's membership.
bool EndsMembership(const Schedule& schedule, const Fault& fault);

// In one line: the job, the network, the faults.
std::string ToString(const Schedule& schedule);

}  // namespace syncgrads::fault

#endif  // SYNCGRADS_TESTS_FAULT_SCHEDULE_H_
