#include "client/psctl/diagnosis.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/psctl/status_text.h"
#include "common/shm/host.h"
#include "common/shm/pages.h"
#include "common/signals/protocol.h"

namespace syncgrads::client {
namespace {

// The default size of /dev/shm in a container.
constexpr uint64_t kContainersShm = uint64_t{64} << 20;

// A server that has this part of its connections is near its limit.
constexpr double kManyConnections = 0.9;

class Findings {
 public:
  void Wrong(std::string text) { all_.push_back({true, std::move(text)}); }
  void Fine(std::string text) { all_.push_back({false, std::move(text)}); }
  std::vector<Finding> Take() { return std::move(all_); }

 private:
  std::vector<Finding> all_;
};

// Returns the answer of the server with this index; null if it is not among `servers`.
const Answer* AnswerOf(const std::vector<ServerFacts>& servers, uint32_t index) {
  const auto found = std::find_if(servers.begin(), servers.end(), [index](const ServerFacts& one) {
    return one.answer.index == index;
  });
  return found == servers.end() ? nullptr : &found->answer;
}

// Returns the name of a server that has not answered, with a server that has its address as
// --coordinator, if there is one.
std::string NameOfSilent(const Answer& silent, const std::vector<ServerFacts>& servers) {
  const std::string name = NameOf(silent);
  for (const ServerFacts& other : servers) {
    if (silent.address.empty() || !other.answer.reply.ok() ||
        other.answer.reply->server().coordinator() != silent.address) {
      continue;
    }
    return absl::StrCat(name, " (the --coordinator of ", NameOf(other.answer), ")");
  }
  return name;
}

// Returns why a server has not answered, and a remedy.
std::string WhyNoAnswer(const ServerFacts& server, const std::vector<ServerFacts>& servers,
                        bool has_tls, absl::Duration timeout) {
  const Answer& answer = server.answer;
  const std::string name = NameOfSilent(answer, servers);
  if (!answer.was_asked) {
    return absl::StrCat(name, ": ", answer.reply.status().message(),
                        ": restart the coordinator if there are not so many");
  }
  if (answer.address.empty()) {
    return absl::StrCat(name, " has never connected to its coordinator: start it with --index=",
                        answer.index.value_or(0), " and --coordinator=HOST:PORT of server 0");
  }
  if (!server.resolve_error.empty()) {
    return absl::StrCat(name, ": the host in this address cannot be resolved (",
                        server.resolve_error,
                        "): correct the address, or make the name known to this host");
  }
  const absl::Status& status = answer.reply.status();
  if (server.port == ServerFacts::Port::kSilent) {
    return absl::StrCat(name, " does not accept a connection within ", DurationText(timeout),
                        ": open its port in the firewalls between this host and the server, or "
                        "correct the address if no host has it");
  }
  if (absl::IsPermissionDenied(status)) {
    return absl::StrCat(name, " does not show its status (", status.message(),
                        "): use a certificate or a token with the role viewer or operator");
  }
  const bool accepts = server.port == ServerFacts::Port::kAccepts;
  const bool is_late = absl::IsDeadlineExceeded(status);
  if (accepts || is_late) {
    return absl::StrCat(name, accepts ? " accepts connections, but" : "", " does not answer ",
                        is_late ? absl::StrCat("within ", DurationText(timeout))
                                : absl::StrCat("(", status.message(), ")"),
                        ": continue or restart the process if it is stopped or hangs, correct the "
                        "address if another program has this port, or ",
                        has_tls ? "correct --tls_ca, --tls_certificate and --tls_key"
                                : "set --tls_ca if the server has TLS");
  }
  if (absl::IsUnimplemented(status)) {
    return absl::StrCat(name, " is another program or an older version, without this request (",
                        status.message(), "): correct the address, or install this version there");
  }
  return absl::StrCat(name, " cannot be used (", status.message(),
                      "): start a ps-server there, correct the address, or open its port in the "
                      "firewalls");
}

// Returns by how much the server's clock is ahead of this host's at least; negative if it is
// behind. The request and the answer may have taken different times, so that half of the time of
// the call is unknown.
absl::Duration ClockSkew(const Answer& answer) {
  const absl::Duration ahead =
      absl::FromUnixMillis(static_cast<int64_t>(answer.reply->server().date_ms())) - answer.date;
  const absl::Duration unknown = answer.took / 2;
  if (ahead > unknown) return ahead - unknown;
  return ahead < -unknown ? ahead + unknown : absl::ZeroDuration();
}

void DiagnoseClock(const Answer& answer, const DoctorLimits& limits, Findings& findings) {
  const absl::Duration skew = ClockSkew(answer);
  if (absl::AbsDuration(skew) <= limits.max_clock_skew) return;
  findings.Wrong(absl::StrCat("the clock of ", NameOf(answer), " is ",
                              DurationText(absl::AbsDuration(skew)),
                              skew > absl::ZeroDuration() ? " ahead of" : " behind",
                              " this host's, so the times in their logs cannot be compared: "
                              "synchronise both with NTP"));
}

// Whether payloads of a worker on this host use the network.
bool IsRemote(const HostFacts& host, const v1::ServerStatus& server) {
  return host.host_id.empty() || server.host_id() != host.host_id ||
         server.network_namespace() != host.network_namespace;
}

// One direction of a link.
struct Direction {
  double rate = 0;
  std::string name;
};

std::string RateText(double rate) {
  return absl::StrCat(BytesText(static_cast<uint64_t>(rate)), "/s");
}

// The directions of a link that were measured.
std::vector<Direction> DirectionsOf(const ServerFacts& server) {
  std::vector<Direction> directions;
  const std::string name = NameOf(server.answer);
  if (server.rate_to.has_value()) directions.push_back({*server.rate_to, "to " + name});
  if (server.rate_from.has_value()) directions.push_back({*server.rate_from, "from " + name});
  return directions;
}

// The fastest direction of the links to servers on other hosts; a rate of 0 if none was measured.
Direction BestOf(const HostFacts& host, const std::vector<ServerFacts>& servers) {
  Direction best;
  for (const ServerFacts& server : servers) {
    if (!server.answer.reply.ok() || !IsRemote(host, server.answer.reply->server())) continue;
    for (Direction& one : DirectionsOf(server)) {
      if (one.rate > best.rate) best = std::move(one);
    }
  }
  return best;
}

// Returns, for example, 'the link to server 1, 10.0.0.1:7000 carries 9.1 MiB/s, and the one from
// server 1, 10.0.0.1:7000 1.0 MiB/s'. `directions` is not empty.
std::string LinksText(const std::vector<Direction>& directions) {
  std::vector<std::string> texts;
  for (const Direction& one : directions) {
    texts.push_back(absl::StrCat(texts.empty() ? "the link " : "the one ", one.name,
                                 texts.empty() ? " carries " : " ", RateText(one.rate)));
  }
  return absl::StrJoin(texts, ", and ");
}

// `best` is the fastest direction of the links to other hosts.
void DiagnoseLink(const HostFacts& host, const ServerFacts& server, const Direction& best,
                  const DoctorLimits& limits, Findings& findings) {
  const std::string name = NameOf(server.answer);
  if (server.answer.took > limits.max_latency) {
    findings.Wrong(absl::StrCat(name, " answers in ", DurationText(server.answer.took),
                                ", more than ", DurationText(limits.max_latency),
                                ": run servers and workers in one network, or free the processors "
                                "of the server's host"));
  }
  const std::vector<Direction> directions = DirectionsOf(server);
  if (directions.empty()) {
    findings.Fine(absl::StrCat(name, " answers in ", DurationText(server.answer.took),
                               "; the link was not measured: with roles, this is for workers and "
                               "operators"));
    return;
  }
  const auto slower_than = [&directions](double rate) {
    std::vector<Direction> slower = directions;
    std::erase_if(slower, [rate](const Direction& one) { return one.rate >= rate; });
    return slower;
  };
  const bool is_compared =
      limits.min_bandwidth > 0 && IsRemote(host, server.answer.reply->server());
  if (const auto slow = slower_than(limits.min_bandwidth); !slow.empty()) {
    findings.Wrong(absl::StrCat(LinksText(slow), ", less than ", RateText(limits.min_bandwidth),
                                ": use a faster network, or compression in the job file"));
  } else if (const auto slow = slower_than(limits.min_share_of_best * best.rate);
             is_compared && !slow.empty()) {
    findings.Wrong(absl::StrCat(
        LinksText(slow), ", less than ", 100 * limits.min_share_of_best, " % of the ",
        RateText(best.rate), " of the link ", best.name,
        ": find out what limits it, such as a network adapter, a switch port or the type of a "
        "virtual machine, or run the server elsewhere"));
  }
  findings.Fine(absl::StrCat(name, " answers in ", DurationText(server.answer.took), "; ",
                             LinksText(directions)));
}

void DiagnoseSharedMemory(const HostFacts& host, const Answer& answer, Findings& findings) {
  const v1::ServerStatus& server = answer.reply->server();
  const std::string name = NameOf(answer);
  if (host.host_id.empty() || server.host_id() != host.host_id) {
    findings.Fine(absl::StrCat(name, " is on another host: payloads use TCP"));
  } else if (!server.shares_memory()) {
    findings.Wrong(absl::StrCat(name,
                                " is on this host and shares no memory: start it without "
                                "--shared_memory=false, and look for the reason in its log"));
  } else if (server.user_id() != host.user_id) {
    findings.Wrong(absl::StrCat(name, " is on this host and runs as user ", server.user_id(),
                                ", not as ", host.user_id,
                                ": run servers and workers as the same user, so that they can "
                                "share memory"));
  } else if (server.network_namespace() != host.network_namespace) {
    findings.Wrong(absl::StrCat(
        name, " is on this host, but in the network namespace ", server.network_namespace(),
        ", not in ", host.network_namespace,
        ", so that they share no memory: run servers and workers of one host in one container or "
        "pod, or in containers that use the host's network"));
  } else {
    findings.Fine(absl::StrCat(
        name, " is on this host: payloads use shared memory",
        host.shared_memory_rate.has_value()
            ? absl::StrCat(", which one thread reads at ", RateText(*host.shared_memory_rate))
            : ""));
  }
}

// Returns why the free space is too small, for example ', no more than 64.0 MiB'; empty if it is
// not. `total` is 0 if it is not known.
std::string WhyTooSmall(uint64_t free, uint64_t total, const DoctorLimits& limits) {
  if (free <= limits.min_free) return absl::StrCat(", no more than ", BytesText(limits.min_free));
  const bool is_small =
      static_cast<double>(free) < limits.min_free_share * static_cast<double>(total);
  return is_small ? absl::StrCat(", less than ", 100 * limits.min_free_share, " %") : "";
}

std::string FreeText(uint64_t free, uint64_t total) {
  return total == 0 ? BytesText(free) : absl::StrCat(BytesText(free), " of ", BytesText(total));
}

void DiagnoseResources(const Answer& answer, const DoctorLimits& limits, Findings& findings) {
  const v1::ServerStatus& server = answer.reply->server();
  const std::string name = NameOf(answer);
  const std::string state =
      WhyTooSmall(server.state_free_bytes(), server.state_total_bytes(), limits);
  const std::string memory =
      WhyTooSmall(server.memory_free_bytes(), server.memory_total_bytes(), limits);
  if (!server.state_directory().empty() && !state.empty()) {
    findings.Wrong(absl::StrCat(
        "the state directory ", server.state_directory(), " of ", name, " has ",
        FreeText(server.state_free_bytes(), server.state_total_bytes()), " free", state,
        ": make room there, or start the server with --state on a larger "
        "file system"));
  } else if (!memory.empty()) {
    // The memory that is free for groups is never more than the space for their state.
    findings.Wrong(absl::StrCat(
        name, " has ", FreeText(server.memory_free_bytes(), server.memory_total_bytes()),
        " of memory free for groups", memory,
        ": end other programs, raise its memory limit or the size of its /dev/shm (--shm-size of "
        "a container), or use more servers"));
  }
  if (server.connections() > kManyConnections * server.max_connections()) {
    findings.Wrong(absl::StrCat(name, " has ", server.connections(), " of at most ",
                                server.max_connections(),
                                " connections: raise --max_connections and the limit of open "
                                "files, or close connections that are not used"));
  }
}

// Finds servers without a connection to the coordinator. One that does not answer is named for that
// instead.
void DiagnoseConnections(const Answer& answer, const std::vector<ServerFacts>& servers,
                         Findings& findings) {
  const v1::ServerStatus& server = answer.reply->server();
  const std::string name = NameOf(answer);
  const Answer* coordinator = AnswerOf(servers, 0);
  const bool is_silent = coordinator != nullptr && !coordinator->reply.ok() &&
                         coordinator->address == server.coordinator();
  if (!server.coordinator_reached() && !is_silent) {
    findings.Wrong(absl::StrCat(name, " has no connection to its coordinator at ",
                                server.coordinator(),
                                ": start server 0 there, correct --coordinator, or open the port "
                                "in the firewalls between the two; its log has the reason"));
  }
  for (const v1::ServerAddress& other : server.servers()) {
    if (other.connected() || other.address().empty()) continue;
    const Answer* lost = AnswerOf(servers, other.index());
    const bool is_named =
        lost != nullptr && (!lost->reply.ok() || !lost->reply->server().coordinator_reached());
    if (is_named) continue;
    findings.Wrong(absl::StrCat(name, ", the coordinator, has lost server ", other.index(), " at ",
                                other.address(), ": restart that server with the same flags"));
  }
}

void DiagnoseRole(const Answer& answer, Findings& findings) {
  const v1::ServerStatus& server = answer.reply->server();
  const std::string name = NameOf(answer);
  if (answer.index.has_value() && *answer.index != answer.reply->server_index()) {
    findings.Wrong(absl::StrCat("the address of ", name, " leads to server ",
                                answer.reply->server_index(),
                                ": set --advertise of both servers to addresses that differ"));
  }
  if (server.draining()) {
    findings.Wrong(
        absl::StrCat(name, " refuses new jobs because it was drained: restart it for new jobs"));
  }
}

void DiagnoseVersions(const std::vector<ServerFacts>& servers, const BuildInfo& build,
                      Findings& findings) {
  for (const ServerFacts& server : servers) {
    if (!server.answer.reply.ok()) continue;
    const std::string name = NameOf(server.answer);
    const uint32_t protocol = server.answer.reply->protocol_version();
    const v1::ServerStatus& status = server.answer.reply->server();
    const std::string version =
        status.version().empty() ? "an older version" : "version " + status.version();
    if (protocol != kProtocolVersion) {
      findings.Wrong(absl::StrCat(name, " uses protocol version ", protocol, ", this program ",
                                  kProtocolVersion, ": install the same version everywhere"));
    } else if (status.version() != build.version) {
      findings.Wrong(absl::StrCat(name, " is ", version, ", this program is version ",
                                  build.version, ": install the same version everywhere"));
    } else {
      std::string text = absl::StrCat(name, " is ", version, ", as this program");
      if (status.commit() != build.commit) {
        absl::StrAppend(&text, ", but built from commit ", status.commit(), ", not ", build.commit);
      }
      findings.Fine(absl::StrCat(text, "; its gRPC is ", status.grpc_version()));
    }
  }
}

void DiagnoseCongestionControl(const HostFacts& host, const std::vector<ServerFacts>& servers,
                               Findings& findings) {
  std::map<std::string, const Answer*> by_name;
  for (const ServerFacts& server : servers) {
    if (!server.answer.reply.ok()) continue;
    by_name.emplace(server.answer.reply->server().congestion_control(), &server.answer);
  }
  const auto text = [](const std::string& name) {
    return name.empty() ? std::string("its kernel's default") : name;
  };
  if (by_name.size() > 1) {
    const auto& [first, a] = *by_name.begin();
    const auto& [last, b] = *by_name.rbegin();
    findings.Wrong(absl::StrCat("the TCP congestion control of ", NameOf(*a), " is ", text(first),
                                " and that of ", NameOf(*b), " is ", text(last),
                                ": start all servers with the same --congestion_control"));
  }
  if (!host.congestion_control.empty()) {
    findings.Fine(absl::StrCat("the TCP congestion control of this host is ",
                               host.congestion_control, " by default"));
  }
}

void DiagnoseHost(const HostFacts& host, bool has_server_here, Findings& findings) {
  const bool is_unlimited = host.memlock_bytes == std::numeric_limits<uint64_t>::max();
  findings.Fine(absl::StrCat("this process may lock ",
                             is_unlimited ? "any amount" : BytesText(host.memlock_bytes),
                             " of memory; syncgrads locks none"));
  findings.Fine(host.has_huge_pages
                    ? "the kernel of this host makes huge pages of shared memory"
                    : "the kernel of this host makes no huge pages of shared memory, so large "
                      "models take longer: use Linux 6.1 or later, with transparent huge pages");
  findings.Fine(host.has_tls ? "the connections of this program are encrypted"
                             : "the connections of this program are not encrypted: run servers and "
                               "workers in a network that you trust, or use TLS");
  if (!host.dev_shm.has_value()) {
    findings.Wrong(
        "this host has no /dev/shm, where servers keep their state by default: mount a "
        "tmpfs there, or start servers here with --state=DIR");
  } else if (host.dev_shm->total <= kContainersShm) {
    findings.Wrong(absl::StrCat("/dev/shm of this host has ", BytesText(host.dev_shm->total),
                                ", which is what containers have by default: give the container "
                                "more (--shm-size, or a volume of medium Memory), or start servers "
                                "here with --state=DIR"));
  } else if (has_server_here && host.dev_shm->free <= kContainersShm) {
    findings.Wrong(absl::StrCat("/dev/shm of this host has ", BytesText(host.dev_shm->free),
                                " free of ", BytesText(host.dev_shm->total),
                                ": delete files that are not needed"));
  } else {
    findings.Fine(absl::StrCat("/dev/shm of this host has ", BytesText(host.dev_shm->free),
                               " free of ", BytesText(host.dev_shm->total)));
  }
}

}  // namespace

HostFacts ReadHostFacts() {
  HostFacts host;
  host.host_id = HostId();
  host.network_namespace = NetworkNamespace();
  host.user_id = geteuid();
  rlimit memlock = {};
  if (getrlimit(RLIMIT_MEMLOCK, &memlock) == 0 && memlock.rlim_cur != RLIM_INFINITY) {
    host.memlock_bytes = memlock.rlim_cur;
  }
  host.has_huge_pages = HasHugePages();
  struct statvfs shm = {};
  if (statvfs("/dev/shm", &shm) == 0) {
    host.dev_shm =
        Space{uint64_t{shm.f_blocks} * shm.f_frsize, uint64_t{shm.f_bavail} * shm.f_frsize};
  }
  std::ifstream("/proc/sys/net/ipv4/tcp_congestion_control") >> host.congestion_control;
  return host;
}

bool ShareMemory(const HostFacts& host, const v1::ServerStatus& server) {
  return !IsRemote(host, server) && server.shares_memory() && server.user_id() == host.user_id;
}

std::vector<Finding> Diagnose(const HostFacts& host, const std::vector<ServerFacts>& servers,
                              const DoctorLimits& limits, absl::Duration timeout,
                              const BuildInfo& build) {
  Findings findings;
  const Direction best = BestOf(host, servers);
  bool has_server_here = false;
  for (const ServerFacts& server : servers) {
    const Answer& answer = server.answer;
    if (!answer.reply.ok()) {
      findings.Wrong(WhyNoAnswer(server, servers, host.has_tls, timeout));
      continue;
    }
    has_server_here |= answer.reply->server().host_id() == host.host_id;
    DiagnoseRole(answer, findings);
    DiagnoseConnections(answer, servers, findings);
    DiagnoseClock(answer, limits, findings);
    DiagnoseResources(answer, limits, findings);
    DiagnoseSharedMemory(host, answer, findings);
    DiagnoseLink(host, server, best, limits, findings);
  }
  DiagnoseVersions(servers, build, findings);
  DiagnoseCongestionControl(host, servers, findings);
  DiagnoseHost(host, has_server_here, findings);
  return findings.Take();
}

}  // namespace syncgrads::client
