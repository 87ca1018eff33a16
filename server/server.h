// A ps-server as an object: what the program starts, and what tests and a worker
// that serves itself start in their own process.

#ifndef SYNCGRADS_SERVER_SERVER_H_
#define SYNCGRADS_SERVER_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "server/core/journal.h"

namespace syncgrads::server {

struct ServerOptions {
  // The address to listen on, and the port; 0 picks one.
  std::string bind = "0.0.0.0";
  uint16_t port = 0;
  // This server's position among its job's servers; 0 coordinates.
  uint32_t index = 0;
  // On server 0: how many servers there are.
  uint32_t servers = 1;
  // On the others: host:port of server 0.
  std::string coordinator;
  // host:port that workers reach this server at; empty: the port, on the host
  // that it is seen from.
  std::string advertise;
  // What servers say to each other.
  std::string server_token;
  absl::Duration heartbeat = absl::Seconds(2);
  absl::Duration lease = absl::Seconds(30);
  absl::Duration stream_grace = absl::Seconds(5);
  absl::Duration join_timeout = absl::Minutes(1);
  absl::Duration stall_warning = absl::Seconds(10);
  // Of a server that follows: for so long it looks for a coordinator whose plan it has.
  absl::Duration coordinator_patience = absl::InfiniteDuration();
  // Threads that close large rounds; 0: one for each processor.
  int closing_threads = 0;
  // Whether workers on this host may hand payloads over in shared memory.
  bool shared_memory = true;
  // Whether workers on this host may open their streams at a unix socket.
  bool unix_socket = true;
  // The TCP congestion control of streams; empty: the kernel's default.
  std::string congestion_control;
  // The directory in which state is kept over a crash; empty: it is not.
  std::string state;
  // On server 0: the least generation of a job that its state does not know. Where
  // it grows from start to start, so do generations whose state was lost.
  uint64_t first_generation = 1;
};

// Thread-safe.
class Server {
 public:
  // Listens. `journal` gets the events that people read; it and `clock` must
  // outlive the server.
  //
  // Errors:
  //   InvalidArgument     options that do not go together; a congestion control that
  //   PermissionDenied    there is not, or that this process may not choose
  //   FailedPrecondition  another server keeps its state in this directory
  //   Unavailable         the address cannot be listened on, or the state
  //   ResourceExhausted   cannot be written
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       Journal& journal,
                                                       const Clock& clock = Clock::Real());
  // Ends all jobs and streams; a server that follows leaves those that are open to
  // its next start.
  virtual ~Server() = default;

  virtual uint16_t port() const = 0;

  // No new jobs; those that are open go on.
  virtual void Drain() = 0;
  virtual bool has_open_jobs() const = 0;
  // There was a job, and now there is none.
  virtual bool all_jobs_done() const = 0;
  // Not OK when the server cannot go on: its coordinator will not have it, or
  // (DeadlineExceeded) has been out of reach for too long; or state cannot be kept
  // (ResourceExhausted, Unavailable).
  virtual absl::Status status() const = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVER_H_
