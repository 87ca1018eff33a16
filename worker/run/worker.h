// One worker of ps-worker, from its options to its result.

#ifndef SYNCGRADS_WORKER_RUN_WORKER_H_
#define SYNCGRADS_WORKER_RUN_WORKER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/api/tuned_setting.h"
#include "common/clock.h"
#include "common/log_level.h"
#include "common/tls/tls_options.h"
#include "worker/nn/accelerators.h"
#include "worker/run/stop_signal.h"
#include "worker/train/extensions.h"

namespace syncgrads {

namespace client {
class Connections;
}
class WorkerMetrics;

// The flags of ps-worker, under the same names; ps_worker_main.cc documents them.
struct WorkerOptions {
  std::string job;
  std::string server;
  std::string token;
  TlsOptions tls;
  bool insecure = false;
  std::string name;
  std::optional<uint32_t> rank;
  std::optional<uint32_t> world_size;
  // The position of this worker among the `of` workers of its process
  // (--workers_in_process).
  struct InProcess {
    uint32_t number = 0;
    uint32_t of = 1;
  } in_process;
  int connections_per_server = 2;
  std::string congestion_control;
  bool autotune = false;
  std::string device = "cpu";
  std::string precision;
  std::optional<uint64_t> seed;
  std::optional<uint32_t> batch_size;
  absl::Duration timeout = absl::Minutes(5);
  absl::Duration stop_grace = absl::Seconds(5);
  bool only_running = false;
  bool resume = false;
  std::string event_log;
  std::string trace;
  uint64_t trace_steps = 100;
  std::string output;
  bool output_per_rank = false;
  std::string evaluate;
  std::string predict;
  std::string predictions;
  uint32_t show = 0;
  uint32_t show_top = 5;
  LogLevel log_level = LogLevel::kInfo;
  uint64_t log_every = 0;
  std::string progress_log;
  std::string tensorboard;
  std::optional<uint16_t> serve_data;
};

// What a worker needs from its process, injected for tests. All of it outlives RunWorker.
struct WorkerDependencies {
  std::ostream& out;
  bool out_is_terminal;
  StopSignal& stop;
  const Clock& clock;
  // Reads an environment variable; launchers set rank and world size in the environment.
  std::function<const char*(const char*)> getenv;
  // Layers, losses, readers, loggers and callbacks that the program adds: see docs/extending.md.
  const Extensions& extensions = NoExtensions();
  // The devices that --device can choose besides the CPU.
  const Accelerators& accelerators = NoAccelerators();
  // Additional settings of the process that --autotune tries.
  std::vector<TunedSetting> tuned_settings = {};
  // The connections to the servers, shared by all workers of the process. Null if there
  // is one worker.
  std::shared_ptr<client::Connections> connections = nullptr;
  // Receives the progress of every worker of the process. Null: nobody reads metrics.
  WorkerMetrics* metrics = nullptr;
};

// The result of a worker.
struct WorkerOutcome {
  absl::Status status;
  // Not OK if this worker's membership in the job is over.
  absl::Status membership;
};

// Trains, evaluates, predicts, or serves data. Returns after the worker has left the job. If
// IsHungDevice is true for the outcome's status, the process should end with _Exit.
WorkerOutcome RunWorker(const WorkerOptions& options, const WorkerDependencies& dependencies);

// Inserts the rank: "out.safetensors" becomes "out.rank2.safetensors".
std::string OutputOfRank(const std::string& output, uint32_t rank);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_RUN_WORKER_H_
