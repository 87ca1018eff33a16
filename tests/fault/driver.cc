#include "tests/fault/driver.h"

#include <signal.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"

namespace syncgrads::fault {
namespace {

// The exit code of a server that has not reached its coordinator for too long.
constexpr int kCoordinatorLost = 4;

// The interval at which logs and processes are checked.
constexpr absl::Duration kPoll = absl::Milliseconds(1);

// The delay until an action that was not possible is tried again.
constexpr absl::Duration kRetry = absl::Milliseconds(5);

// The time that a worker has to end by itself after the servers have ended: one that was started
// too late to make a step, and one that has made steps. One that has made the last step of the job
// needs no server any more, and has no limit.
constexpr absl::Duration kFarewellToLate = absl::Seconds(2);
constexpr absl::Duration kFarewell = absl::Seconds(10);

bool HasOnlyKillsOfServers(const Schedule& schedule) {
  return schedule.network == Network::kDirect &&
         absl::c_all_of(schedule.faults, [](const Fault& fault) {
           return fault.kind == FaultKind::kKill &&
                  fault.targets.front().role == ProcessId::Role::kServer;
         });
}

// Returns the last lines of an output, for messages. The whole output is in a file.
std::string LastLines(const std::string& output) {
  constexpr size_t kLines = 6;
  const std::vector<std::string> lines = absl::StrSplit(output, '\n');
  const size_t first = lines.size() - std::min(lines.size(), kLines);
  return absl::StrJoin(lines.begin() + static_cast<ptrdiff_t>(first), lines.end(), "\n");
}

bool IsServer(ProcessId process) { return process.role == ProcessId::Role::kServer; }

}  // namespace

Driver::Driver(const Schedule& schedule, Cluster& cluster, FaultyNetwork& network)
    : schedule_(schedule),
      cluster_(cluster),
      network_(network),
      measures_outages_(HasOnlyKillsOfServers(schedule)),
      progress_(schedule.faults.size()) {
  for (int worker = 0; worker < kWorkers; ++worker) {
    workers_[worker].log.emplace(cluster.life(WorkerId(worker)).events);
  }
}

absl::Status Driver::RunToEnd(absl::Time deadline) {
  const absl::Duration long_gap = std::min(LeaseOf(schedule_), GraceOf(schedule_)) / 2;
  absl::Time last_round = absl::Now();
  while (true) {
    const absl::Time now = absl::Now();
    if (now - std::exchange(last_round, now) > long_gap) leases_may_have_ended_ = true;
    ReadLogs();
    SYNCGRADS_RETURN_IF_ERROR(WatchServers());
    NoteStep();
    SYNCGRADS_RETURN_IF_ERROR(BeginDueFaults());
    SYNCGRADS_RETURN_IF_ERROR(RunDueActions());
    if (AllAreDone()) return absl::OkStatus();
    DismissWorkersWithoutServers();
    StopIdleServers();
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("after step ", step_, " still running: ", StillRunning()));
    }
    absl::SleepFor(kPoll);
  }
}

void Driver::ReadLogs() {
  bool somebody_has_state = false;
  for (int index = 0; index < kWorkers; ++index) {
    Worker& worker = workers_[index];
    const size_t lives = cluster_.lives(WorkerId(index)).size();
    if (worker.life != lives) {
      worker.life = lives;
      worker.log.emplace(cluster_.life(WorkerId(index)).events);
    }
    if (worker.log->Read() && worker.faults == 0 && worker.log->step() > worker.stale) {
      worker.has_state = true;
    }
    step_ = std::max(step_, worker.log->step());
    somebody_has_state = somebody_has_state || worker.has_state;
  }
  anybody_had_state_ = anybody_had_state_ || somebody_has_state;
  if (anybody_had_state_ && !somebody_has_state) state_may_be_lost_ = true;
}

absl::Status Driver::WatchServers() {
  for (int server = 0; server < kServers; ++server) {
    const ProcessId process = ServerId(server);
    const bool is_away = away_.count(process) > 0;
    if ((is_away || starting_.count(server) > 0) &&
        absl::Now() - killed_at_[server] > LeaseOf(schedule_) / 2) {
      leases_may_have_ended_ = true;
    }
    if (is_away) continue;
    if (starting_.count(server) > 0) {
      SYNCGRADS_ASSIGN_OR_RETURN(const bool listens, cluster_.Listens(server));
      if (!listens) continue;
      starting_.erase(server);
      if (outage_.has_value() && outage_->servers.erase(server) > 0 && outage_->servers.empty()) {
        // All steps that were closed before are in the logs now, except the one in progress.
        ReadLogs();
        outage_->listened = absl::Now();
        outage_->step = step_;
      }
    }
    if (!cluster_.HasEnded(process)) continue;
    const Life& life = cluster_.life(process);
    if (*life.exit == testing::ExitCode(0)) continue;
    // The server could not reach the coordinator at the end of the job and for a long time after
    // it.
    if (*life.exit == testing::ExitCode(kCoordinatorLost) && HasFinished(ServerId(0))) continue;
    return absl::UnavailableError(absl::StrCat(ToString(process), " has ended by itself:\n",
                                               LastLines(life.process->output())));
  }
  return absl::OkStatus();
}

void Driver::NoteStep() {
  if (!outage_.has_value() || !outage_->servers.empty() || step_ < outage_->step + 2) return;
  if (measures_outages_) outages_.push_back(absl::Now() - outage_->listened);
  outage_.reset();
}

absl::Status Driver::BeginDueFaults() {
  for (size_t i = 0; i < schedule_.faults.size(); ++i) {
    const Fault& fault = schedule_.faults[i];
    Progress& progress = progress_[i];
    if (progress.begun || step_ < fault.step) continue;
    if (progress.due == absl::InfiniteFuture()) progress.due = absl::Now() + fault.after;
    if (progress.due > absl::Now()) continue;
    progress.begun = true;
    SYNCGRADS_RETURN_IF_ERROR(Begin(fault));
  }
  return absl::OkStatus();
}

absl::Status Driver::Begin(const Fault& fault) {
  const ProcessId target = fault.targets.front();
  for (const int index : MayBeDropped(schedule_, fault)) {
    Worker& worker = workers_[index];
    worker.has_state = false;
    ++worker.faults;
    if (fault.lasts != absl::InfiniteDuration()) {
      At(absl::Now() + fault.lasts, [this, &worker] {
        --worker.faults;
        // Steps that it logs from now on may have been made before the fault.
        worker.stale = step_;
        return absl::OkStatus();
      });
    }
  }
  switch (fault.kind) {
    case FaultKind::kKill:
      return Kill(fault);
    case FaultKind::kStop:
      for (const ProcessId stopped : fault.targets) {
        cluster_.Signal(stopped, SIGSTOP);
        // The signal is for the life that was stopped, not for a later one.
        At(absl::Now() + fault.lasts, [this, stopped, &life = cluster_.life(stopped)] {
          if (&life == &cluster_.life(stopped)) cluster_.Signal(stopped, SIGCONT);
          return absl::OkStatus();
        });
      }
      return absl::OkStatus();
    case FaultKind::kTerminate:
      return Terminate(fault);
    case FaultKind::kFillState:
      At(absl::Now() + fault.lasts, [this, target] { return FreeStateOnceVisited(target.index); });
      state_is_full_ = true;
      return cluster_.FillState(target.index);
    case FaultKind::kDescriptors:
      At(absl::Now() + fault.lasts, [this, target] {
        cluster_.GiveDescriptorsBack(target.index);
        return absl::OkStatus();
      });
      return cluster_.TakeDescriptors(target.index);
    case FaultKind::kBlockLog:
      At(absl::Now() + fault.lasts, [this, target] {
        cluster_.UnblockLog(target.index);
        return absl::OkStatus();
      });
      return cluster_.BlockLog(target.index);
    case FaultKind::kVisit:
      // A visit that must succeed is postponed until there is room again.
      if (state_is_full_ && !fault.may_be_refused) {
        At(absl::Now() + kRetry, [this, &fault] { return Begin(fault); });
        return absl::OkStatus();
      }
      return cluster_.StartVisit(fault);
    default:
      network_.Begin(fault);
      At(absl::Now() + fault.lasts, [this, &fault] {
        network_.End(fault);
        return absl::OkStatus();
      });
      return absl::OkStatus();
  }
}

absl::Status Driver::FreeStateOnceVisited(int server) {
  // The number of steps before the end of the job at which the state is freed, because the end
  // itself needs room.
  constexpr uint64_t kLeftForTheEnd = 200;
  const bool visited = !cluster_.visits().empty() && cluster_.VisitsHaveEnded();
  if (visited || step_ + kLeftForTheEnd >= StepsOf(schedule_.job)) {
    cluster_.FreeState(server);
    state_is_full_ = false;
  } else {
    At(absl::Now() + kRetry, [this, server] { return FreeStateOnceVisited(server); });
  }
  return absl::OkStatus();
}

absl::Status Driver::Terminate(const Fault& fault) {
  const ProcessId target = fault.targets.front();
  // A SIGTERM that arrives before the server has installed its handler would kill it, so it is sent
  // later.
  if (IsServer(target) && starting_.count(target.index) > 0) {
    At(absl::Now() + kRetry, [this, &fault] { return Terminate(fault); });
    return absl::OkStatus();
  }
  cluster_.Signal(target, SIGTERM);
  if (fault.lasts == absl::InfiniteDuration()) return absl::OkStatus();
  away_.insert(target);
  At(absl::Now() + fault.lasts, [this, target] {
    // Some processes end only after a long time.
    if (!cluster_.HasEnded(target)) SYNCGRADS_RETURN_IF_ERROR(cluster_.Kill(target));
    return Restart(target);
  });
  return absl::OkStatus();
}

absl::Status Driver::Kill(const Fault& fault) {
  std::vector<ProcessId> killed;
  for (const ProcessId target : fault.targets) {
    // A process that has ended by itself has finished its work.
    if (away_.count(target) > 0 || cluster_.HasEnded(target)) continue;
    cluster_.Signal(target, SIGKILL);
    killed.push_back(target);
  }
  for (const ProcessId target : killed) {
    SYNCGRADS_RETURN_IF_ERROR(cluster_.Kill(target));
    if (*cluster_.life(target).exit != testing::KilledBy(SIGKILL)) continue;
    if (IsServer(target)) {
      starting_.erase(target.index);
      killed_at_[target.index] = absl::Now();
      if (!outage_.has_value() || outage_->servers.empty()) outage_.emplace(Outage{});
      outage_->servers.insert(target.index);
    }
    if (fault.lasts == absl::InfiniteDuration()) continue;
    away_.insert(target);
    At(absl::Now() + fault.lasts, [this, target] { return Restart(target); });
  }
  return absl::OkStatus();
}

absl::Status Driver::Restart(ProcessId process) {
  away_.erase(process);
  if (!cluster_.HasEnded(process)) return absl::OkStatus();
  const testing::Exit& exit = *cluster_.life(process).exit;
  // The process has finished its work, or there is no more work for it.
  if (exit == testing::ExitCode(0) || exit == testing::ExitCode(kCoordinatorLost)) {
    return absl::OkStatus();
  }
  if (!IsServer(process) && WorkersAreDone()) return absl::OkStatus();
  if (IsServer(process)) starting_.insert(process.index);
  return cluster_.Restart(process);
}

void Driver::At(absl::Time time, std::function<absl::Status()> action) {
  actions_.emplace(time, std::move(action));
}

absl::Status Driver::RunDueActions() {
  while (!actions_.empty() && actions_.begin()->first <= absl::Now()) {
    const std::function<absl::Status()> action = std::move(actions_.begin()->second);
    actions_.erase(actions_.begin());
    SYNCGRADS_RETURN_IF_ERROR(action());
  }
  return absl::OkStatus();
}

// Returns true if no worker runs, and at least one has finished or none will be restarted.
bool Driver::WorkersAreDone() {
  bool finished = false, away = false;
  for (int worker = 0; worker < kWorkers; ++worker) {
    const ProcessId process = WorkerId(worker);
    if (!cluster_.HasEnded(process)) return false;
    away = away || away_.count(process) > 0;
    for (const auto& life : cluster_.lives(process)) {
      finished = finished || *life->exit == testing::ExitCode(0);
    }
  }
  return finished || !away;
}

bool Driver::VisitsAreDone() {
  const auto visits = absl::c_count_if(
      schedule_.faults, [](const Fault& fault) { return fault.kind == FaultKind::kVisit; });
  return static_cast<size_t>(visits) == cluster_.visits().size() && cluster_.VisitsHaveEnded();
}

bool Driver::HasFinished(ProcessId process) {
  return cluster_.HasEnded(process) && *cluster_.life(process).exit == testing::ExitCode(0);
}

bool Driver::ServersAreDone() {
  for (int server = 0; server < kServers; ++server) {
    if (away_.count(ServerId(server)) > 0 || !cluster_.HasEnded(ServerId(server))) return false;
  }
  return true;
}

bool Driver::AllAreDone() {
  return WorkersAreDone() && ServersAreDone() && cluster_.VisitsHaveEnded();
}

bool Driver::StateIsLost() const {
  // The exit code for DATA_LOSS; see worker/run/exit_code.h.
  const testing::Exit data_loss = testing::ExitCode(8);
  for (int worker = 0; worker < kWorkers; ++worker) {
    if (cluster_.life(WorkerId(worker)).exit == data_loss) return true;
  }
  return false;
}

// A worker that is restarted after the servers have ended would try to reach them until its
// timeout.
void Driver::DismissWorkersWithoutServers() {
  if (!ServersAreDone()) {
    servers_done_.reset();
  } else if (!servers_done_.has_value()) {
    servers_done_ = absl::Now();
  } else {
    const absl::Duration waited = absl::Now() - *servers_done_;
    for (int worker = 0; worker < kWorkers; ++worker) {
      if (cluster_.HasEnded(WorkerId(worker))) continue;
      const uint64_t step = workers_[worker].log->step();
      if (step >= StepsOf(schedule_.job)) continue;
      if (waited <= (step == 0 ? kFarewellToLate : kFarewell)) continue;
      cluster_.life(WorkerId(worker)).found_no_servers = true;
      cluster_.Signal(WorkerId(worker), SIGTERM);
    }
  }
}

// The servers do not end by themselves if the job never began, if it was closed because its state
// was lost, or if there were visits.
void Driver::StopIdleServers() {
  if (servers_stopped_ || !WorkersAreDone()) return;
  if (anybody_had_state_ && !StateIsLost() && !Has(schedule_, FaultKind::kVisit)) return;
  if (!away_.empty() || !starting_.empty() || !VisitsAreDone() || !actions_.empty()) return;
  servers_stopped_ = true;
  for (int server = 0; server < kServers; ++server) {
    if (!cluster_.HasEnded(ServerId(server))) cluster_.Signal(ServerId(server), SIGTERM);
  }
}

std::string Driver::StillRunning() {
  std::string text;
  const auto add = [&](ProcessId process) {
    if (cluster_.HasEnded(process)) return;
    absl::StrAppend(&text, "\n", ToString(process), ":\n",
                    LastLines(cluster_.life(process).process->output()));
  };
  for (int server = 0; server < kServers; ++server) add(ServerId(server));
  for (int worker = 0; worker < kWorkers; ++worker) add(WorkerId(worker));
  for (const Visit& visit : cluster_.visits()) {
    if (visit.life->exit.has_value()) continue;
    absl::StrAppend(&text, "\na visit:\n", LastLines(visit.life->process->output()));
  }
  return text;
}

}  // namespace syncgrads::fault
