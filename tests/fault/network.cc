#include "tests/fault/network.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "common/status_macros.h"
#include "tests/fault/port_owner.h"

namespace syncgrads::fault {
namespace {

// The numbers of the proxies' clients: workers by their index, then servers.
int NumberOf(ProcessId process) {
  return process.role == ProcessId::Role::kWorker ? process.index : kWorkers + process.index;
}

void Add(const Fault& fault, LinkState& link) {
  switch (fault.kind) {
    case FaultKind::kCut:
      link.cut = true;
      break;
    case FaultKind::kBlackHole:
      link.black_hole = true;
      break;
    case FaultKind::kDelay:
      link.delay = std::max(link.delay, fault.delay);
      break;
    case FaultKind::kThrottle:
      link.bytes_per_second = fault.bytes_per_second;
      break;
    default:
      break;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<FaultyNetwork>> FaultyNetwork::Create(const Schedule& schedule) {
  auto network = absl::WrapUnique(new FaultyNetwork);
  for (int server = 0; server < kServers; ++server) {
    if (schedule.network == Network::kProxy) {
      SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<TcpProxy> proxy,
                                 TcpProxy::Start([network = network.get(), server](uint16_t port) {
                                   return network->ClientOf(server, port);
                                 }));
      network->proxies_.push_back(std::move(proxy));
    } else if (schedule.network == Network::kRelay) {
      SYNCGRADS_ASSIGN_OR_RETURN(
          std::unique_ptr<MessageRelay> relay,
          MessageRelay::Start(RandomFates(schedule.messages, schedule.seed + server)));
      network->relays_.push_back(std::move(relay));
    }
  }
  return network;
}

uint16_t FaultyNetwork::PortOf(int server) const {
  if (!proxies_.empty()) return proxies_[server]->port();
  if (!relays_.empty()) return relays_[server]->port();
  return 0;
}

void FaultyNetwork::SetUpstream(int server, uint16_t port) {
  if (!proxies_.empty()) proxies_[server]->SetUpstream(port);
  if (!relays_.empty()) relays_[server]->SetUpstream(port);
}

void FaultyNetwork::SetProcess(ProcessId process, pid_t pid) {
  std::lock_guard lock(mutex_);
  processes_[process] = pid;
}

int FaultyNetwork::ClientOf(int server, uint16_t port) const {
  std::vector<pid_t> pids(kWorkers + kServers, 0);
  {
    std::lock_guard lock(mutex_);
    for (const auto& [process, pid] : processes_) pids[NumberOf(process)] = pid;
  }
  return FindOwner(port, PortOf(server), pids);
}

void FaultyNetwork::Begin(const Fault& fault) {
  {
    std::lock_guard lock(mutex_);
    faults_.push_back(&fault);
  }
  Apply();
}

void FaultyNetwork::End(const Fault& fault) {
  {
    std::lock_guard lock(mutex_);
    faults_.erase(std::remove(faults_.begin(), faults_.end(), &fault), faults_.end());
  }
  Apply();
}

void FaultyNetwork::Apply() {
  std::vector<const Fault*> faults;
  {
    std::lock_guard lock(mutex_);
    faults = faults_;
  }
  for (int server = 0; server < static_cast<int>(proxies_.size()); ++server) {
    // -1 is the client of connections whose process could not be found, because they were already
    // closed.
    for (int client = -1; client < kWorkers + kServers; ++client) {
      LinkState link;
      for (const Fault* fault : faults) {
        for (const ProcessId target : fault->targets) {
          if (target == ServerId(server) || NumberOf(target) == client) Add(*fault, link);
        }
      }
      proxies_[server]->SetLink(client, link);
    }
  }
}

}  // namespace syncgrads::fault
