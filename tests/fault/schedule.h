// The faults of the processes of one run, with their times. A schedule is drawn from a seed, and is
// the same each time.

#ifndef SYNCGRADS_TESTS_FAULT_SCHEDULE_H_
#define SYNCGRADS_TESTS_FAULT_SCHEDULE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace syncgrads::fault {

inline constexpr int kServers = 2;
inline constexpr int kWorkers = 3;
// The numbers of steps of a job: the normal and the longer one.
inline constexpr uint64_t kSteps = 400;
inline constexpr uint64_t kLongSteps = 1200;

// The subject of a schedule's faults; the names are those of --faults.
enum class Trouble {
  kBase,         // "base": kills, short stops, faults of links and messages
  kStopLong,     // "stop_long": processes are stopped for longer than a lease
  kCutLong,      // "cut_long": links are cut for longer than a lease
  kFullState,    // "full_state": a server's state directory is full for some time
  kDescriptors,  // "descriptors": a server has no free file descriptor for some time
  kBlockedLog,   // "blocked_log": a server's log is not read for longer than a lease
  kBigGroup,     // "big_group": another job registers a group of hundreds of megabytes
};
const std::vector<Trouble>& AllTroubles();
std::string ToString(Trouble trouble);
std::optional<Trouble> TroubleOf(absl::string_view name);

// A special property of a job.
enum class Trait {
  kNone,
  kNotElastic,   // the job keeps the members that it starts with
  kCheckpoints,  // the job writes checkpoints
  kQuorum,       // a step uses the contributions of the first two workers
  // The job compresses what is sent with this codec.
  kFloat16,
  kInt8,
  kTopK,
  kOneBit,
};
inline bool IsCompressed(Trait trait) { return trait >= Trait::kFloat16; }

// The job that is trained. For each kind there is one undisturbed run to compare with.
struct JobKind {
  bool dynamic = false;           // data.mode is DYNAMIC; otherwise SHARDS
  bool servers_optimize = false;  // optimizer_placement is SERVERS; otherwise WORKERS
  bool shared_memory = false;  // wide layers in shared memory; otherwise small chunks over streams
  Trait trait = Trait::kNone;
  bool longer = false;  // kLongSteps steps; otherwise kSteps
  friend auto operator<=>(const JobKind&, const JobKind&) = default;
};
std::string ToString(const JobKind& kind);
inline uint64_t StepsOf(const JobKind& kind) { return kind.longer ? kLongSteps : kSteps; }

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
  kKill,       // SIGKILL; the process is restarted after `lasts`
  kStop,       // SIGSTOP; SIGCONT after `lasts`
  kTerminate,  // SIGTERM; a worker is restarted after `lasts`, a server is not
  // Faults of links: they apply for the time `lasts` to every connection between the target and the
  // servers. If the target is a server, they apply to all of its connections.
  kCut,        // connections break, and new ones break at once
  kBlackHole,  // no bytes pass
  kDelay,      // each byte is delayed by `delay`
  kThrottle,   // each direction passes at most bytes_per_second
  // Faults of the target server, for the time `lasts`:
  kFillState,    // its state directory, a small file system, is full
  kDescriptors,  // it has no free file descriptors, and many connections arrive
  kBlockLog,     // its log is a full pipe that is not read
  // A client creates another job on the target servers, registers a group of `bytes`, and leaves.
  kVisit,
};

struct Fault {
  FaultKind kind = FaultKind::kKill;
  std::vector<ProcessId> targets;
  // When the fault begins: the time `after` has passed since the first worker made this step. Step
  // 0: since the workers were started.
  uint64_t step = 0;
  absl::Duration after;
  // InfiniteDuration: until the end of the run.
  absl::Duration lasts;
  absl::Duration delay;
  int64_t bytes_per_second = 0;
  // kVisit only: the size of the group in bytes, and the number of visits.
  uint64_t bytes = 0;
  int times = 1;
  bool may_be_refused = false;  // kVisit: an error that names the missing resource is permitted
};
std::string ToString(const Fault& fault);

// The connections between the processes.
enum class Network {
  kDirect,  // direct connections
  kProxy,   // a TcpProxy before each server
  kRelay,   // a MessageRelay before each server
};

// The probabilities with which a MessageRelay disturbs a message.
struct MessageFaults {
  double drop = 0;  // the stream then breaks too
  double duplicate = 0;
  double reorder = 0;
};

struct Schedule {
  uint64_t seed = 0;
  Trouble trouble = Trouble::kBase;
  JobKind job;
  // The number of connections from each worker to each server.
  int connections = 1;
  Network network = Network::kDirect;
  MessageFaults messages;
  // In the order in which they begin.
  std::vector<Fault> faults;
  // Only servers die, and no process is unreachable for a lease. Then the membership must not
  // change, and the model must be that of the undisturbed run. (With a quorum the model may differ,
  // because it is random which workers are late.)
  bool servers_only = false;
  // A worker whose membership no fault can end. -1: there is none, and the job's state may be lost
  // with its workers.
  int survivor = -1;
};

// Draws a schedule with Trouble::kBase. Schedules of even seeds are servers_only.
Schedule DrawSchedule(uint64_t seed);
// Draws one of `troubles` and a schedule for it. If kBase is drawn, the result is
// DrawSchedule(seed).
Schedule DrawSchedule(uint64_t seed, const std::vector<Trouble>& troubles);
// Returns a schedule without faults.
Schedule Undisturbed(const JobKind& job);

// The lease and the stream grace with which the servers of the schedule are started.
absl::Duration LeaseOf(const Schedule& schedule);
absl::Duration GraceOf(const Schedule& schedule);
// Returns the workers whose membership the fault can end.
std::vector<int> MayBeDropped(const Schedule& schedule, const Fault& fault);
bool EndsMembership(const Schedule& schedule, const Fault& fault);
// Returns whether the schedule has a fault of this kind.
bool Has(const Schedule& schedule, FaultKind kind);

// One line with the job, the network and the faults.
std::string ToString(const Schedule& schedule);

}  // namespace syncgrads::fault

#endif  // SYNCGRADS_TESTS_FAULT_SCHEDULE_H_
