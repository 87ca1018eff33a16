#include "tests/fault/schedule.h"

#include <algorithm>
#include <random>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace syncgrads::fault {
namespace {

// The standard's distributions differ between libraries; this one does not.
class Random {
 public:
  explicit Random(uint64_t seed) {
    std::seed_seq sequence = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    engine_.seed(sequence);
  }
  // From 0 to below `bound`.
  uint64_t Below(uint64_t bound) { return engine_() % bound; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  // Between the two, in milliseconds.
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

// Any step, and what comes before the first and after the last.
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

// Less than any lease or grace.
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

// What no membership ends by.
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
    // It is told to go, and goes when the job has ended.
    Fault fault;
    fault.kind = FaultKind::kTerminate;
    fault.targets = {ServerId(static_cast<int>(random.Below(kServers)))};
    DrawMoment(random, /*from_the_start=*/false, fault);
    fault.lasts = absl::InfiniteDuration();
    schedule.faults.push_back(fault);
  }
}

// A server is away while the fault comes: what a worker had contributed to the other
// one is there, what it had for this one is not.
Fault DrawAbsenceDuring(Random& random, const Fault& during) {
  Fault fault;
  fault.targets = {ServerId(static_cast<int>(random.Below(kServers)))};
  fault.step = during.step;
  fault.lasts = random.Between(absl::Milliseconds(50), absl::Milliseconds(300));
  return fault;
}

// All within a moment, so that each comes while others are being recovered from.
void BunchUp(Random& random, std::vector<Fault>& faults) {
  const uint64_t step = 1 + random.Below(kSteps - 1);
  const absl::Duration moment = random.Between(absl::Milliseconds(50), absl::Seconds(1));
  for (Fault& fault : faults) {
    fault.step = step;
    fault.after = random.Between(absl::ZeroDuration(), moment);
  }
  // One that comes back is met again.
  Fault again = faults.front();
  if (again.kind != FaultKind::kKill || again.lasts == absl::InfiniteDuration()) return;
  again.after += again.lasts + random.Between(absl::ZeroDuration(), absl::Milliseconds(200));
  faults.push_back(again);
}

// Every other job has a trait. Those that a worker's death would end, or whose replay
// would need what workers have not sent yet, are for schedules in which none dies.
Trait DrawTrait(Random& random, const Schedule& schedule) {
  if (random.OneIn(2)) return Trait::kNone;
  std::vector<Trait> traits = {Trait::kCheckpoints, Trait::kQuorum};
  if (schedule.servers_only) {
    traits.insert(traits.end(), {Trait::kNotElastic, Trait::kFloat16, Trait::kInt8, Trait::kTopK,
                                 Trait::kOneBit});
  }
  const Trait trait = random.OneOf(traits);
  // Dealt rows are for jobs in which every contribution counts.
  if (schedule.job.dealt && (trait == Trait::kQuorum || trait == Trait::kNotElastic)) {
    return Trait::kNone;
  }
  return trait;
}

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

Schedule Undisturbed(const JobKind& job) {
  Schedule schedule;
  schedule.job = job;
  schedule.servers_only = true;
  return schedule;
}

absl::Duration LeaseOf(const Schedule& schedule) {
  return schedule.servers_only ? absl::Seconds(30) : absl::Seconds(3);
}

absl::Duration GraceOf(const Schedule& schedule) {
  return schedule.servers_only ? absl::Seconds(20) : absl::Milliseconds(1200);
}

bool EndsMembership(const Schedule& schedule, const Fault& fault) {
  if (fault.targets.front().role == ProcessId::Role::kServer) return false;
  switch (fault.kind) {
    case FaultKind::kKill:
    case FaultKind::kTerminate:
      return true;
    default:
      // Half of it, for what a busy machine adds.
      return fault.lasts >= std::min(LeaseOf(schedule), GraceOf(schedule)) / 2;
  }
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
  return absl::StrCat(kind.dealt ? "dealt rows" : "shards", ", optimizer on the ",
                      kind.servers_optimize ? "servers" : "workers", ", ",
                      kind.shared_memory ? "shared memory" : "streams",
                      kind.trait == Trait::kNone ? "" : ", ", ToString(kind.trait));
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
  }
  return absl::StrCat(text, " at step ", fault.step, " + ", absl::FormatDuration(fault.after));
}

std::string ToString(const Schedule& schedule) {
  std::string text = absl::StrCat(schedule.servers_only ? "servers only" : "workers too", ", ",
                                  ToString(schedule.job));
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
