#include "tests/fault/schedule.h"

#include <algorithm>
#include <random>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace syncgrads::fault {
namespace {

// The distributions of the standard library differ between implementations. This class gives the
// same numbers everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) {
    std::seed_seq sequence = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    engine_.seed(sequence);
  }
  // Returns a number from 0 to below `bound`.
  uint64_t Below(uint64_t bound) { return engine_() % bound; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  // Returns a duration between the two, in whole milliseconds.
  absl::Duration Between(absl::Duration least, absl::Duration most) {
    return least + absl::Milliseconds(Below(absl::ToInt64Milliseconds(most - least) + 1));
  }
  template <typename T>
  const T& OneOf(const std::vector<T>& choices) {
    return choices[Below(choices.size())];
  }

 private:
  std::mt19937_64 engine_;
};

// Draws when a fault begins: before the first step (if from_the_start), at any step, or after the
// last one.
void DrawMoment(Random& random, bool from_the_start, Fault& fault) {
  switch (random.Below(12)) {
    case 0:
      if (!from_the_start) break;
      fault.after = random.Between(absl::ZeroDuration(), absl::Milliseconds(150));
      return;
    case 1:
      fault.step = kSteps;
      fault.after = random.Between(absl::ZeroDuration(), absl::Milliseconds(20));
      return;
    default:
      break;
  }
  fault.step = 1 + random.Below(kSteps - 1);
  fault.after = absl::Microseconds(random.Below(3000));
}

// Draws a time that is shorter than any lease or grace.
absl::Duration DrawShortTime(Random& random) {
  return random.Between(absl::Milliseconds(5), absl::Milliseconds(400));
}

Fault DrawServerKill(Random& random) {
  Fault fault;
  DrawMoment(random, /*from_the_start=*/true, fault);
  fault.targets = random.OneOf<std::vector<ProcessId>>(
      {{ServerId(0)}, {ServerId(1)}, {ServerId(0), ServerId(1)}});
  if (!random.OneIn(3)) fault.lasts = random.Between(absl::ZeroDuration(), absl::Milliseconds(200));
  return fault;
}

void DrawLinkFault(Random& random, Fault& fault) {
  fault.kind = random.OneOf<FaultKind>(
      {FaultKind::kCut, FaultKind::kBlackHole, FaultKind::kDelay, FaultKind::kThrottle});
  fault.delay = random.Between(absl::Milliseconds(1), absl::Milliseconds(15));
  fault.bytes_per_second = 20'000 + static_cast<int64_t>(random.Below(400'000));
}

// Draws a fault that is too short to end a membership.
Fault DrawNuisance(Random& random, Network network) {
  Fault fault;
  DrawMoment(random, /*from_the_start=*/true, fault);
  fault.targets = {random.OneIn(2) ? ServerId(static_cast<int>(random.Below(kServers)))
                                   : WorkerId(static_cast<int>(random.Below(kWorkers)))};
  fault.lasts = DrawShortTime(random);
  fault.kind = FaultKind::kStop;
  if (network == Network::kProxy && !random.OneIn(4)) DrawLinkFault(random, fault);
  return fault;
}

Fault DrawWorkerFault(Random& random, const Schedule& schedule) {
  Fault fault;
  DrawMoment(random, /*from_the_start=*/false, fault);
  if (random.OneIn(2)) fault.after += random.Between(absl::ZeroDuration(), absl::Milliseconds(40));
  int worker = 0;
  do {
    worker = static_cast<int>(random.Below(kWorkers));
  } while (worker == schedule.survivor);
  fault.targets = {WorkerId(worker)};
  switch (random.Below(schedule.network == Network::kProxy ? 8 : 6)) {
    case 0:
      fault.kind = FaultKind::kStop;
      fault.lasts = random.Between(absl::Milliseconds(50), 2 * LeaseOf(schedule));
      break;
    case 1:
      fault.kind = FaultKind::kTerminate;
      fault.lasts = random.Between(absl::ZeroDuration(), absl::Milliseconds(500));
      break;
    case 6:
    case 7:
      DrawLinkFault(random, fault);
      fault.lasts = random.Between(absl::Milliseconds(50), 2 * LeaseOf(schedule));
      break;
    default:
      fault.kind = FaultKind::kKill;
      fault.lasts = random.OneIn(6) ? absl::InfiniteDuration()
                                    : random.Between(absl::ZeroDuration(), absl::Seconds(1));
      break;
  }
  return fault;
}

void DrawServerFaults(Random& random, Schedule& schedule) {
  for (uint64_t kills = 1 + random.Below(4); kills > 0; --kills) {
    schedule.faults.push_back(DrawServerKill(random));
  }
  if (random.OneIn(8)) {
    // A server that receives SIGTERM ends when the job has ended.
    Fault fault;
    fault.kind = FaultKind::kTerminate;
    fault.targets = {ServerId(static_cast<int>(random.Below(kServers)))};
    DrawMoment(random, /*from_the_start=*/false, fault);
    fault.lasts = absl::InfiniteDuration();
    schedule.faults.push_back(fault);
  }
}

// A server is away during another fault. A worker that dies then has contributed to the other
// server and not to this one.
Fault DrawAbsenceDuring(Random& random, const Fault& during) {
  Fault fault;
  fault.targets = {ServerId(static_cast<int>(random.Below(kServers)))};
  fault.step = during.step;
  fault.lasts = random.Between(absl::Milliseconds(50), absl::Milliseconds(300));
  return fault;
}

// Moves all faults into a short period, so that each occurs during the recovery from others.
void BunchUp(Random& random, std::vector<Fault>& faults) {
  const uint64_t step = 1 + random.Below(kSteps - 1);
  const absl::Duration moment = random.Between(absl::Milliseconds(50), absl::Seconds(1));
  for (Fault& fault : faults) {
    fault.step = step;
    fault.after = random.Between(absl::ZeroDuration(), moment);
  }
  // The first process that comes back is killed once more.
  Fault again = faults.front();
  if (again.kind != FaultKind::kKill || again.lasts == absl::InfiniteDuration()) return;
  again.after += again.lasts + random.Between(absl::ZeroDuration(), absl::Milliseconds(200));
  faults.push_back(again);
}

// Half of the jobs have a trait. Traits with which a worker's death would end the job, or whose
// replay would need data that workers have not sent yet, are only for schedules in which no worker
// dies.
Trait DrawTrait(Random& random, const Schedule& schedule) {
  if (random.OneIn(2)) return Trait::kNone;
  std::vector<Trait> traits = {Trait::kCheckpoints, Trait::kQuorum};
  if (schedule.servers_only) {
    traits.insert(traits.end(), {Trait::kNotElastic, Trait::kFloat16, Trait::kInt8, Trait::kTopK,
                                 Trait::kOneBit});
  }
  const Trait trait = random.OneOf(traits);
  // data.mode DYNAMIC needs an elastic job and does not work with a quorum.
  if (schedule.job.dynamic && (trait == Trait::kQuorum || trait == Trait::kNotElastic)) {
    return Trait::kNone;
  }
  return trait;
}

// Draws a time that is longer than the schedule's lease.
absl::Duration DrawLongTime(Random& random, const Schedule& schedule) {
  const absl::Duration lease = LeaseOf(schedule);
  return random.Between(lease + lease / 10, 2 * lease + lease / 2);
}

// Draws which processes are stopped for longer than a lease.
void DrawLongStop(Random& random, Schedule& schedule, Fault& fault) {
  fault.kind = FaultKind::kStop;
  std::vector<ProcessId> servers, workers;
  for (int server = 0; server < kServers; ++server) servers.push_back(ServerId(server));
  for (int worker = 0; worker < kWorkers; ++worker) workers.push_back(WorkerId(worker));
  switch (random.Below(6)) {
    case 0:
      fault.targets = {ServerId(0)};
      break;
    case 1:
      fault.targets = {ServerId(1 + static_cast<int>(random.Below(kServers - 1)))};
      break;
    case 2:
      fault.targets = servers;
      break;
    case 3:
      fault.targets = servers;
      fault.targets.insert(fault.targets.end(), workers.begin(), workers.end());
      break;
    case 4:
      fault.targets = {WorkerId(static_cast<int>(random.Below(kWorkers)))};
      schedule.survivor = (fault.targets[0].index + 1) % kWorkers;
      break;
    default:
      fault.targets = workers;
      break;
  }
  schedule.servers_only = fault.targets.front().role == ProcessId::Role::kServer;
  fault.lasts = DrawLongTime(random, schedule);
}

// Draws whose connections are disturbed for longer than a lease. Workers wait for a server that
// keeps its connections and does not answer.
void DrawLongCut(Random& random, Schedule& schedule, Fault& fault) {
  fault.kind = random.OneIn(2) ? FaultKind::kCut : FaultKind::kBlackHole;
  switch (random.Below(3)) {
    case 0:
      fault.targets = {ServerId(0)};
      break;
    case 1:
      fault.targets = {ServerId(1 + static_cast<int>(random.Below(kServers - 1)))};
      schedule.servers_only = fault.kind == FaultKind::kBlackHole;
      break;
    default:
      fault.targets = {WorkerId(static_cast<int>(random.Below(kWorkers)))};
      schedule.survivor = (fault.targets[0].index + 1) % kWorkers;
      break;
  }
  fault.lasts = DrawLongTime(random, schedule);
  // A server that does not reach its coordinator for two leases ends.
  const absl::Duration lease = LeaseOf(schedule);
  fault.lasts = std::min(fault.lasts, lease + lease / 2);
}

// Returns a visit by a client of another job, `after` the beginning of `fault`.
Fault VisitAfter(const Fault& fault, absl::Duration after, uint64_t bytes) {
  Fault visit;
  visit.kind = FaultKind::kVisit;
  for (int server = 0; server < kServers; ++server) visit.targets.push_back(ServerId(server));
  visit.step = fault.step;
  visit.after = fault.after + after;
  visit.bytes = bytes;
  return visit;
}

constexpr uint64_t kSmallVisit = 64 << 10;

void DrawTrouble(Random& random, Schedule& schedule) {
  Fault fault;
  fault.step = 1 + random.Below(kSteps / 2);
  fault.after = absl::Microseconds(random.Below(3000));
  switch (schedule.trouble) {
    case Trouble::kBase:
      return;
    case Trouble::kStopLong:
      DrawLongStop(random, schedule, fault);
      schedule.faults = {fault};
      return;
    case Trouble::kCutLong:
      DrawLongCut(random, schedule, fault);
      schedule.faults = {fault};
      return;
    case Trouble::kFullState:
      fault.kind = FaultKind::kFillState;
      fault.targets = {ServerId(static_cast<int>(random.Below(kServers)))};
      // The least duration: the driver also waits until the first visit is over.
      fault.lasts = random.Between(absl::Milliseconds(200), absl::Milliseconds(800));
      schedule.faults = {fault, VisitAfter(fault, absl::ZeroDuration(), kSmallVisit),
                         VisitAfter(fault, fault.lasts + absl::Milliseconds(100), kSmallVisit)};
      schedule.faults[1].may_be_refused = true;
      // Several visits, because their records must need more room than is left in the last page.
      schedule.faults[1].times = 8;
      break;
    case Trouble::kDescriptors:
      fault.kind = FaultKind::kDescriptors;
      fault.targets = {ServerId(static_cast<int>(random.Below(kServers)))};
      fault.lasts = random.Between(absl::Milliseconds(500), absl::Seconds(2));
      schedule.faults = {fault,
                         VisitAfter(fault, fault.lasts + absl::Milliseconds(100), kSmallVisit)};
      break;
    case Trouble::kBlockedLog:
      fault.kind = FaultKind::kBlockLog;
      fault.targets = {ServerId(static_cast<int>(random.Below(kServers)))};
      fault.lasts = DrawLongTime(random, schedule);
      schedule.faults = {fault, VisitAfter(fault, absl::Milliseconds(100), kSmallVisit)};
      break;
    case Trouble::kBigGroup:
      schedule.faults = {
          VisitAfter(fault, absl::ZeroDuration(), (512 + random.Below(513)) * (1 << 20))};
      break;
  }
  schedule.servers_only = true;
}

Schedule DrawTroubled(uint64_t seed, Trouble trouble) {
  // Differs from the random numbers of DrawSchedule(seed).
  Random random(seed ^ 0x9e3779b97f4a7c15);
  Schedule schedule;
  schedule.seed = seed;
  schedule.trouble = trouble;
  schedule.job = {random.OneIn(2), random.OneIn(2), random.OneIn(2)};
  schedule.connections = 1 + static_cast<int>(random.Below(3));
  if (trouble == Trouble::kCutLong || random.OneIn(4)) schedule.network = Network::kProxy;
  DrawTrouble(random, schedule);
  schedule.job.trait = DrawTrait(random, schedule);
  // A quorum stores a set in each step, so a full state directory may end the job.
  if (trouble == Trouble::kFullState && schedule.job.trait == Trait::kQuorum) {
    schedule.job.trait = Trait::kNone;
  }
  // After a long stop or cut, few steps are enough. All other troubles must happen while the job
  // trains.
  schedule.job.longer = trouble != Trouble::kStopLong && trouble != Trouble::kCutLong;
  return schedule;
}

struct NamedTrouble {
  Trouble trouble;
  const char* name;
};
constexpr NamedTrouble kTroubles[] = {
    {Trouble::kBase, "base"},
    {Trouble::kStopLong, "stop_long"},
    {Trouble::kCutLong, "cut_long"},
    {Trouble::kFullState, "full_state"},
    {Trouble::kDescriptors, "descriptors"},
    {Trouble::kBlockedLog, "blocked_log"},
    {Trouble::kBigGroup, "big_group"},
};

std::string Lasting(absl::Duration duration) {
  return duration == absl::InfiniteDuration()
             ? "for good"
             : absl::StrCat("for ", absl::FormatDuration(duration));
}

}  // namespace

Schedule DrawSchedule(uint64_t seed) {
  Random random(seed);
  Schedule schedule;
  schedule.seed = seed;
  schedule.servers_only = seed % 2 == 0;
  schedule.job = {random.OneIn(2), random.OneIn(2), random.OneIn(2)};
  schedule.connections = 1 + static_cast<int>(random.Below(3));
  const uint64_t network = random.Below(10);
  if (network < (schedule.servers_only ? 2 : 4)) {
    schedule.network = Network::kProxy;
  } else if (network >= 8) {
    schedule.network = Network::kRelay;
    schedule.messages = {.drop = 2e-4, .duplicate = 0.01, .reorder = 0.01};
  }
  if (schedule.servers_only) {
    DrawServerFaults(random, schedule);
    const uint64_t nuisances = schedule.network == Network::kProxy ? 1 + random.Below(3)
                               : random.OneIn(4)                   ? 1
                                                                   : 0;
    for (uint64_t i = 0; i < nuisances; ++i) {
      schedule.faults.push_back(DrawNuisance(random, schedule.network));
    }
  } else {
    if (!random.OneIn(8)) schedule.survivor = static_cast<int>(random.Below(kWorkers));
    for (uint64_t faults = 1 + random.Below(3); faults > 0; --faults) {
      schedule.faults.push_back(DrawWorkerFault(random, schedule));
    }
    if (random.OneIn(2)) DrawServerFaults(random, schedule);
    if (random.OneIn(3)) schedule.faults.push_back(DrawAbsenceDuring(random, schedule.faults[0]));
  }
  if (random.OneIn(3)) BunchUp(random, schedule.faults);
  schedule.job.trait = DrawTrait(random, schedule);
  std::stable_sort(schedule.faults.begin(), schedule.faults.end(),
                   [](const Fault& a, const Fault& b) {
                     return std::tie(a.step, a.after) < std::tie(b.step, b.after);
                   });
  return schedule;
}

Schedule DrawSchedule(uint64_t seed, const std::vector<Trouble>& troubles) {
  Random random(seed + 0x632be59bd9b4e019);
  const Trouble trouble = random.OneOf(troubles);
  return trouble == Trouble::kBase ? DrawSchedule(seed) : DrawTroubled(seed, trouble);
}

const std::vector<Trouble>& AllTroubles() {
  static const auto* const all = [] {
    auto* troubles = new std::vector<Trouble>;
    for (const NamedTrouble& named : kTroubles) troubles->push_back(named.trouble);
    return troubles;
  }();
  return *all;
}

std::string ToString(Trouble trouble) {
  for (const NamedTrouble& named : kTroubles) {
    if (named.trouble == trouble) return named.name;
  }
  return "";
}

std::optional<Trouble> TroubleOf(absl::string_view name) {
  for (const NamedTrouble& named : kTroubles) {
    if (name == named.name) return named.trouble;
  }
  return std::nullopt;
}

Schedule Undisturbed(const JobKind& job) {
  Schedule schedule;
  schedule.job = job;
  schedule.servers_only = true;
  return schedule;
}

absl::Duration LeaseOf(const Schedule& schedule) {
  const bool is_long = schedule.servers_only && schedule.trouble == Trouble::kBase;
  return is_long ? absl::Seconds(30) : absl::Seconds(3);
}

absl::Duration GraceOf(const Schedule& schedule) {
  if (schedule.trouble != Trouble::kBase && schedule.servers_only) return LeaseOf(schedule);
  return schedule.servers_only ? absl::Seconds(20) : absl::Milliseconds(1200);
}

std::vector<int> MayBeDropped(const Schedule& schedule, const Fault& fault) {
  const bool of_server = fault.targets.front().role == ProcessId::Role::kServer;
  // If the coordinator receives nothing, it drops its workers. If a server refuses connections for
  // longer than a lease, workers give it up. If workers are stopped together with the coordinator,
  // they are not dropped.
  const bool cuts = fault.kind == FaultKind::kCut ||
                    (fault.kind == FaultKind::kBlackHole && fault.targets.front() == ServerId(0));
  if (of_server && !cuts) return {};
  const bool dies = fault.kind == FaultKind::kKill || fault.kind == FaultKind::kTerminate;
  // Half of the lease or grace, because a busy machine adds delays.
  if (!dies && fault.lasts < std::min(LeaseOf(schedule), GraceOf(schedule)) / 2) return {};
  std::vector<int> workers;
  if (of_server) {
    for (int worker = 0; worker < kWorkers; ++worker) workers.push_back(worker);
  } else {
    for (const ProcessId target : fault.targets) workers.push_back(target.index);
  }
  return workers;
}

bool EndsMembership(const Schedule& schedule, const Fault& fault) {
  return !MayBeDropped(schedule, fault).empty();
}

bool Has(const Schedule& schedule, FaultKind kind) {
  return absl::c_any_of(schedule.faults, [kind](const Fault& fault) { return fault.kind == kind; });
}

std::string ToString(Trait trait) {
  switch (trait) {
    case Trait::kNone:
      return "";
    case Trait::kNotElastic:
      return "not elastic";
    case Trait::kCheckpoints:
      return "checkpoints";
    case Trait::kQuorum:
      return "quorum";
    case Trait::kFloat16:
      return "float16";
    case Trait::kInt8:
      return "int8";
    case Trait::kTopK:
      return "top-k";
    case Trait::kOneBit:
      return "one-bit";
  }
  return "";
}

std::string ToString(const JobKind& kind) {
  return absl::StrCat(kind.dynamic ? "dynamic rows" : "shards", ", optimizer on the ",
                      kind.servers_optimize ? "servers" : "workers", ", ",
                      kind.shared_memory ? "shared memory" : "streams",
                      kind.longer ? ", longer" : "", kind.trait == Trait::kNone ? "" : ", ",
                      ToString(kind.trait));
}

std::string ToString(ProcessId process) {
  return absl::StrCat(process.role == ProcessId::Role::kServer ? "server " : "worker ",
                      process.index);
}

std::string ToString(const Fault& fault) {
  const std::string targets =
      absl::StrJoin(fault.targets, " and ",
                    [](std::string* out, ProcessId process) { *out += ToString(process); });
  std::string text;
  switch (fault.kind) {
    case FaultKind::kKill:
      text = absl::StrCat("kill ", targets, ", away ", Lasting(fault.lasts));
      break;
    case FaultKind::kStop:
      text = absl::StrCat("stop ", targets, " ", Lasting(fault.lasts));
      break;
    case FaultKind::kTerminate:
      text = absl::StrCat("terminate ", targets, ", away ", Lasting(fault.lasts));
      break;
    case FaultKind::kCut:
      text = absl::StrCat("cut ", targets, " off ", Lasting(fault.lasts));
      break;
    case FaultKind::kBlackHole:
      text = absl::StrCat("black-hole ", targets, " ", Lasting(fault.lasts));
      break;
    case FaultKind::kDelay:
      text = absl::StrCat("delay ", targets, " by ", absl::FormatDuration(fault.delay), " ",
                          Lasting(fault.lasts));
      break;
    case FaultKind::kThrottle:
      text = absl::StrCat("throttle ", targets, " to ", fault.bytes_per_second / 1000, " kB/s ",
                          Lasting(fault.lasts));
      break;
    case FaultKind::kFillState:
      text = absl::StrCat("fill the state of ", targets, " ", Lasting(fault.lasts));
      break;
    case FaultKind::kDescriptors:
      text = absl::StrCat("leave ", targets, " no descriptors ", Lasting(fault.lasts));
      break;
    case FaultKind::kBlockLog:
      text = absl::StrCat("block the log of ", targets, " ", Lasting(fault.lasts));
      break;
    case FaultKind::kVisit:
      text = absl::StrCat("another job registers ", fault.bytes >> 10, " KiB");
      break;
  }
  return absl::StrCat(text, " at step ", fault.step, " + ", absl::FormatDuration(fault.after));
}

std::string ToString(const Schedule& schedule) {
  std::string text = absl::StrCat(
      schedule.trouble == Trouble::kBase ? "" : absl::StrCat(ToString(schedule.trouble), ", "),
      schedule.servers_only ? "servers only" : "workers too", ", ", ToString(schedule.job));
  if (schedule.connections > 1) absl::StrAppend(&text, ", ", schedule.connections, " connections");
  if (schedule.network == Network::kProxy) text += ", through proxies";
  if (schedule.network == Network::kRelay) text += ", through message relays";
  if (!schedule.servers_only && schedule.survivor < 0) text += ", no survivor";
  absl::StrAppend(&text, ": ",
                  absl::StrJoin(schedule.faults, "; ", [](std::string* out, const Fault& fault) {
                    *out += ToString(fault);
                  }));
  return text;
}

}  // namespace syncgrads::fault
