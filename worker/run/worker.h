// ps-worker, from its options to its exit.

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
#include "client/tuned_setting.h"
#include "common/clock.h"
#include "worker/nn/accelerators.h"
#include "worker/run/stop_signal.h"
#include "worker/train/extensions.h"

namespace syncgrads {

namespace client {
class Connections;
}

// Named as the flags of ps-worker, which say what they mean.
struct WorkerOptions {
  std::string job;
  std::string server;
  std::string token;
  std::string name;
  std::optional<uint32_t> rank;
  std::optional<uint32_t> world_size;
  // Of the workers that this process has, this is number `number` of `of`.
  struct InProcess {
    uint32_t number = 0;
    uint32_t of = 1;
  } in_process;
  int connections_per_server = 2;
  std::string congestion_control;
  bool autotune = false;
  std::string device = "cpu";
  std::string matrix_products = "f32";
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
  uint64_t log_every = 0;
  std::string progress_log;
  std::string tensorboard;
  std::optional<uint16_t> serve_data;
};

// What the process gives its worker; all outlive the call.
struct WorkerSurroundings {
  std::ostream& out;
  bool out_is_terminal;
  StopSignal& stop;
  const Clock& clock;
  // The environment, for what launchers say.
  std::function<const char*(const char*)> getenv;
  // What this program adds: see docs/extending.md.
  const Extensions& extensions = NoExtensions();
  // What --device can choose from besides the processor.
  const Accelerators& accelerators = NoAccelerators();
  // The process's own, for --autotune.
  std::vector<TunedSetting> tuned_settings = {};
  // To the servers, of all its workers; null: there is one worker.
  std::shared_ptr<client::Connections> connections = nullptr;
};

// What became of a worker.
struct WorkerOutcome {
  absl::Status status;
  // Not OK if the servers have ended this worker's membership.
  absl::Status membership;
};

// Trains, evaluates, predicts, or serves data. Returns when it has left the job.
WorkerOutcome RunWorker(const WorkerOptions& options, const WorkerSurroundings& surroundings);

// "out.safetensors" becomes "out.rank2.safetensors".
std::string OutputOfRank(const std::string& output, uint32_t rank);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_RUN_WORKER_H_
