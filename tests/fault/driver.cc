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

// What a server that follows ends with when it has looked for its coordinator for long.
constexpr int kCoordinatorLost = 4;

// How often logs and processes are looked at.
constexpr absl::Duration kPoll = absl::Milliseconds(1);

// Until what could not be done yet is tried again.
constexpr absl::Duration kRetry = absl::Milliseconds(5);

// For workers to end by themselves when the servers have.
constexpr absl::Duration kFarewell = absl::Seconds(2);

bool HasOnlyKillsOfServers(const Schedule& schedule) {
  return schedule.network == Network::kDirect &&
         absl::c_all_of(schedule.faults, [](const Fault& fault) {
           return fault.kind == FaultKind::kKill &&
                  fault.targets.front().role == ProcessId::Role::kServer;
         });
}

// The end of it, for messages; files have it all.
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
  while (true) {
    ReadLogs();
    SYNCGRADS_RETURN_IF_ERROR(WatchServers());
    NoteStep();
    SYNCGRADS_RETURN_IF_ERROR(BeginDueFaults());
    SYNCGRADS_RETURN_IF_ERROR(RunDueActions());
    if (AllAreDone()) return absl::OkStatus();
    DismissWorkersWithoutServers();
    StopServersWithoutJob();
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
        // Steps that were closed before are in the logs by now, but for the one that
        // was under way.
        ReadLogs();
        outage_->listened = absl::Now();
        outage_->step = step_;
      }
    }
    if (!cluster_.HasEnded(process)) continue;
    const Life& life = cluster_.life(process);
    if (*life.exit == testing::ExitCode(0)) continue;
    // Out of reach at the end of the job, and for long after it.
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
  if (EndsMembership(schedule_, fault)) {
    Worker& worker = workers_[target.index];
    worker.has_state = false;
    ++worker.faults;
    if (fault.lasts != absl::InfiniteDuration()) {
      At(absl::Now() + fault.lasts, [this, &worker] {
        --worker.faults;
        // What it logs late may still be of before.
        worker.stale = step_;
        return absl::OkStatus();
      });
    }
  }
  switch (fault.kind) {
    case FaultKind::kKill:
      return Kill(fault);
    case FaultKind::kStop:
      cluster_.Signal(target, SIGSTOP);
      // Not if it has been killed since: the signal is for this life.
      At(absl::Now() + fault.lasts, [this, target, &life = cluster_.life(target)] {
        if (&life == &cluster_.life(target)) cluster_.Signal(target, SIGCONT);
        return absl::OkStatus();
      });
      return absl::OkStatus();
    case FaultKind::kTerminate:
      return Terminate(fault);
    default:
      network_.Begin(fault);
      At(absl::Now() + fault.lasts, [this, &fault] {
        network_.End(fault);
        return absl::OkStatus();
      });
      return absl::OkStatus();
  }
}

absl::Status Driver::Terminate(const Fault& fault) {
  const ProcessId target = fault.targets.front();
  // The signal could meet it before its handler; there is nothing to end in order yet.
  if (IsServer(target) && starting_.count(target.index) > 0) {
    At(absl::Now() + kRetry, [this, &fault] { return Terminate(fault); });
    return absl::OkStatus();
  }
  cluster_.Signal(target, SIGTERM);
  if (fault.lasts == absl::InfiniteDuration()) return absl::OkStatus();
  away_.insert(target);
  At(absl::Now() + fault.lasts, [this, target] {
    // Some have been told, and do not want to wait.
    if (!cluster_.HasEnded(target)) SYNCGRADS_RETURN_IF_ERROR(cluster_.Kill(target));
    return Restart(target);
  });
  return absl::OkStatus();
}

absl::Status Driver::Kill(const Fault& fault) {
  std::vector<ProcessId> killed;
  for (const ProcessId target : fault.targets) {
    // What has ended by itself was done.
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
      if (!outage_.has_value() || outage_->servers.empty()) outage_.emplace();
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
  // It was done, or there is nothing left for it to do.
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

// Nobody trains, and somebody has finished, or nobody will come back.
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

bool Driver::HasFinished(ProcessId process) {
  return cluster_.HasEnded(process) && *cluster_.life(process).exit == testing::ExitCode(0);
}

bool Driver::ServersAreDone() {
  for (int server = 0; server < kServers; ++server) {
    if (away_.count(ServerId(server)) > 0 || !cluster_.HasEnded(ServerId(server))) return false;
  }
  return true;
}

bool Driver::AllAreDone() { return WorkersAreDone() && ServersAreDone(); }

// Who comes back when the servers have gone would look for them until its timeout.
void Driver::DismissWorkersWithoutServers() {
  if (!ServersAreDone()) {
    servers_done_.reset();
  } else if (!servers_done_.has_value()) {
    servers_done_ = absl::Now();
  } else if (absl::Now() - *servers_done_ > kFarewell) {
    for (int worker = 0; worker < kWorkers; ++worker) {
      if (cluster_.HasEnded(WorkerId(worker))) continue;
      cluster_.life(WorkerId(worker)).found_no_servers = true;
      cluster_.Signal(WorkerId(worker), SIGTERM);
    }
  }
}

// A job that never began is no reason for servers to end.
void Driver::StopServersWithoutJob() {
  if (servers_stopped_ || anybody_had_state_ || !WorkersAreDone()) return;
  if (!away_.empty() || !starting_.empty()) return;
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
  return text;
}

}  // namespace syncgrads::fault
