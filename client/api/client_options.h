// The options of a client.

#ifndef SYNCGRADS_CLIENT_API_CLIENT_OPTIONS_H_
#define SYNCGRADS_CLIENT_API_CLIENT_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/api/tuned_setting.h"
#include "common/tls/tls_options.h"

namespace syncgrads {

namespace client {
class Connections;
}  // namespace client

struct ClientOptions {
  // Address of server 0 of the job, as host:port or "unix:/path".
  std::string coordinator;
  // Name of the job: at most 255 bytes of printable UTF-8.
  std::string job;
  // The job's secret. The first worker that joins sets it.
  std::string token;
  // The files for TLS; empty: connections are plain text. With `connections`, those of that object.
  TlsOptions tls;
  // This worker's name in the job, with the same limits as `job`. If empty, the coordinator assigns
  // one.
  std::string name;
  // The requested rank. Members are ranked by it, then by name.
  std::optional<uint32_t> rank;
  // This worker's number among those on its host, as the launcher sets it; see DetectPlacement
  // (client/placement).
  std::optional<uint32_t> local_rank;
  // Number of members that the job starts with. All workers of a job agree on it.
  uint32_t world_size = 1;
  // Elastic jobs: the maximum number of members. If it is not 0, the job is elastic: workers may
  // join while it runs (Group::RegisterState). All workers of a job agree on this field and the
  // next two.
  uint32_t max_workers = 0;
  // Elastic jobs only: training pauses while fewer workers than this are present.
  uint32_t min_workers = 0;
  // Elastic jobs only: a worker that has been behind the other workers' steps for longer than this
  // is dropped. Zero: never.
  absl::Duration step_timeout;
  // If true, Join fails if no job of this name is running, and creates none.
  bool only_running = false;
  // How long a server may be unreachable before this worker's membership ends with Unavailable.
  // The job's lease is used if that is longer. A server that was paused, or that restarts with its
  // state, continues where it was.
  absl::Duration server_timeout = absl::Minutes(5);
  // Number of data streams to each server, each on its own connection.
  int connections_per_server = 2;
  // TCP congestion control of the data streams. Empty: the kernel's default.
  std::string congestion_control;
  // Connections that this client shares with all clients of this process that are given the same
  // object: one set of connections to each server for all of them, instead of one set for each
  // client. Null: the client has its own.
  std::shared_ptr<client::Connections> connections;
  // If true, settings are tried, and those that make a step clearly faster are used. All workers of
  // the job must set it to the same value. Before the first step, Register tries chunk sizes if the
  // spec has none. In the first steps of the first group, each worker tries by itself several
  // numbers of connections, then several sizes of the send window, and then `tuned_settings`.
  bool autotune = false;
  // Further settings, of the program, that autotune tries.
  std::vector<TunedSetting> tuned_settings;
  // Called with each result of autotune, as a line of text. Runs on the thread that calls Register
  // or Group::WaitStep.
  std::function<void(const std::string&)> on_tuned;
  // If true, payloads go through shared memory to servers on this host.
  bool shared_memory = true;
  // If true, streams to a server on this host use its unix socket if it has one that can be
  // reached. Otherwise they use TCP.
  bool unix_socket = true;
  // Called for each server with a line of text that says how payloads go to it (shared memory, unix
  // socket, or TCP) and why. May be called on any thread. Must not call the client.
  std::function<void(const std::string&)> on_path;
  // Called with one line of text that says how payloads go to all servers, once that is known, and
  // again when it changes. May be called on any thread. Must not call the client.
  std::function<void(const std::string&)> on_paths;
  // Called with a line of text when a codec of a group (GroupSpec::compression) loses too much and
  // a milder one replaces it. May be called on any thread. Must not call the client.
  std::function<void(const std::string&)> on_codec_replaced;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_CLIENT_API_CLIENT_OPTIONS_H_
