// A ps-server as an object. The ps-server program starts one; tests, and workers that serve
// themselves, start one in their own process.

#ifndef SYNCGRADS_SERVER_SERVER_H_
#define SYNCGRADS_SERVER_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/tls/tls_options.h"
#include "server/core/plan/journal.h"

namespace syncgrads::v1 {
class Curves;
class EventsReply;
class GetStatusReply;
}  // namespace syncgrads::v1

namespace syncgrads::server {

struct ServerOptions {
  // The address and the port to listen on. Port 0: the port stored in `state` if there is one,
  // otherwise a free port that the kernel picks.
  std::string bind = "127.0.0.1";
  uint16_t port = 0;
  // This server's index among the servers; server 0 is the coordinator.
  uint32_t index = 0;
  // Server 0 only: the number of servers, including this one.
  uint32_t servers = 1;
  // host:port of server 0. For server 0: empty, or the same as `advertise`.
  std::string coordinator;
  // HOST or HOST:PORT at which workers connect to this server. Without a port, the port is the
  // one that the server listens on. Empty: that port, on the host that the coordinator (for
  // server 0: the worker) sees as this server's host.
  std::string advertise;
  // The files for TLS; empty: connections are plain text. A server that follows, and one with a
  // client CA, need all of them.
  TlsOptions tls;
  // The servers' shared secret. The coordinator rejects a server whose token differs.
  std::string server_token;
  // The file with the rules about who may do what; see AccessRule. Empty: none.
  std::string tokens_file;
  // The five fields from here to abandoned_job_ttl are used on server 0 only; see
  // MembershipOptions.
  absl::Duration heartbeat_interval = absl::Seconds(2);
  absl::Duration lease = absl::Seconds(30);
  absl::Duration stream_grace = absl::Seconds(5);
  absl::Duration join_timeout = absl::Minutes(1);
  absl::Duration abandoned_job_ttl = absl::Minutes(10);
  // A round that has been open for this long is reported; see StallWatch.
  absl::Duration stall_warning = absl::Seconds(10);
  // Servers that follow only: once this server has applied a part of a plan, how long it keeps
  // trying to reach its coordinator before status() is DeadlineExceeded.
  absl::Duration coordinator_timeout = absl::InfiniteDuration();
  // The number of threads that close large rounds; 0: one for each processor.
  int closing_threads = 0;
  // Whether workers on this host may pass payloads in shared memory.
  bool shared_memory = true;
  // Whether workers on this host may open their streams on a unix socket.
  bool unix_socket = true;
  // Whether anybody may ask for the services and their messages (gRPC reflection). Not with rules.
  bool reflection = false;
  // The TCP congestion control of streams; empty: the kernel's default.
  std::string congestion_control;
  // The timeout for the first message of a stream or call, and for a peer to read a stream's end,
  // an answer, or a message of an optimizer's state.
  absl::Duration hello_timeout = absl::Seconds(10);
  // The maximum number of open connections: of all, and of TCP connections from one address.
  // See ConnectionLimits.
  uint32_t max_connections = 10000;
  uint32_t max_connections_per_peer = 2000;
  // Whether other users of this host are admitted to nothing, if there are no rules.
  bool only_own_user = false;
  // The memory of this server in bytes, from which the limit of received messages follows. 0: what
  // is available at the start.
  uint64_t memory = 0;
  // The directory that keeps state across a crash; empty: state is not kept.
  std::string state;
  // Server 0 only: the smallest generation given to a job that is not in the stored state. If
  // the caller passes a larger value at each start, a job's generation grows even if the state
  // was lost.
  uint64_t first_generation = 1;
  // Server 0 only: the limits of one job, on its groups (each name of a collective is a group)
  // and on the chunks of all its groups.
  uint32_t max_groups = 1024;
  uint64_t max_chunks = 262'144;
  // Server 0 only: the maximum number of open jobs.
  uint32_t max_jobs = 1000;
  // Server 0 only: the maximum number of workers for which a job may be opened.
  uint32_t max_workers = 4096;
};

// A running server. Thread-safe.
class Server {
 public:
  // Opens or creates the state, listens, and starts to serve. The server writes its log to
  // `journal`, which must outlive the server; so must `clock`.
  //
  // Errors:
  //   InvalidArgument     options contradict each other, an address is malformed, a file for TLS
  //                       or with rules cannot be used, or the kernel does not have the congestion
  //                       control
  //   PermissionDenied    this process may not use the congestion control
  //   FailedPrecondition  another server uses the state directory
  //   Unavailable         the address cannot be listened on, or the state directory cannot be
  //                       read or written
  //   ResourceExhausted   there is no space for the state, or it cannot be mapped
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       Journal& journal,
                                                       const Clock& clock = Clock::Real());
  // Ends all streams. On server 0, ends all jobs. On a server that follows, jobs that are open
  // stay in the state, and the next start restores them.
  virtual ~Server() = default;

  virtual uint16_t port() const = 0;

  // Decides whether someone may see the pages of this server: `peer` is the address, `names` are
  // those in a verified certificate.
  //
  // Errors: those of Access::Check
  virtual absl::Status CheckPage(const std::string& peer, const std::vector<std::string>& names,
                                 const std::string& token) = 0;

  // Fills in the state of this server and of its jobs, as for Admin.GetStatus.
  virtual void FillStatus(v1::GetStatusReply& reply) const = 0;
  // Fills in the fields of FillStatus that ReadinessOf needs, without a look at any job.
  virtual void FillReadiness(v1::GetStatusReply& reply) const = 0;
  // Makes the answers of grpc.health about readiness those of ReadinessOf. The server does so
  // itself as long as it looks after its jobs.
  virtual void ReportReadiness() = 0;
  // Fills in the curves of this server's jobs. They remain empty on a server that follows.
  virtual void FillCurves(v1::Curves& curves) const = 0;
  // Fills in the newest events of this server, at most kShownEvents.
  static constexpr size_t kShownEvents = 300;
  virtual void FillEvents(v1::EventsReply& events) const = 0;

  // Refuses new jobs from now on. Open jobs continue.
  virtual void Drain() = 0;
  virtual bool has_open_jobs() const = 0;
  // True if a job has run and no job is open any more.
  virtual bool all_jobs_done() const = 0;
  // Not OK once the server cannot continue; it then stays not OK.
  //
  // Errors:
  //   DeadlineExceeded                the coordinator has been unreachable for longer than
  //                                   coordinator_timeout
  //   ResourceExhausted, Unavailable  not even the end of a job could be stored
  //   others                          the coordinator has rejected this server, or has sent a
  //                                   change that this version does not support
  virtual absl::Status status() const = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVER_H_
