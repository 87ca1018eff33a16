// ps-worker: one worker of a training job. Its exit codes are in
// worker/run/exit_code.h.

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "client/tuned_setting.h"
#include "common/clock.h"
#include "common/process_setup.h"
#include "third_party/grpc/pollers.h"
#include "worker/nn/cuda/cuda_accelerators.h"
#include "worker/run/exit_code.h"
#include "worker/run/stop_signal.h"
#include "worker/run/worker.h"
#include "worker/run/workers.h"

ABSL_FLAG(std::string, job, "", "The job file: what to train (see proto/job.proto).");
ABSL_FLAG(std::string, server, "",
          "HOST:PORT of the job's first server; the others are learnt from it. Not needed by "
          "--evaluate and --predict with one worker.");
ABSL_FLAG(std::string, token, "", "The job's secret; its first worker sets it.");
ABSL_FLAG(std::string, name, "", "The name to be known by. Empty: one is assigned.");
ABSL_FLAG(absl::optional<uint32_t>, rank, absl::nullopt,
          "This worker's rank, from 0. Default: what the launcher says, or assigned.");
ABSL_FLAG(absl::optional<uint32_t>, world_size, absl::nullopt,
          "Workers of the job. Default: what the launcher says, or else the job file.");
ABSL_FLAG(uint32_t, workers_in_process, 1,
          "Workers that this process runs, a thread and, with --device=cuda, a device for each. "
          "--rank is the first one's; a launcher's rank and world size count processes.");
ABSL_FLAG(int, connections_per_server, 2, "Connections for gradients to each server.");
ABSL_FLAG(uint32_t, pollers, 0,
          "Threads that poll the network, of as many as half the processors. Default: one for each "
          "four processors.");
ABSL_FLAG(std::string, congestion_control, "",
          "TCP congestion control of those connections. Default: the kernel's.");
ABSL_FLAG(
    bool, autotune, false,
    "Try chunk sizes before the first step, and in the first steps numbers of connections and of "
    "polling threads and sizes of the send window, and go on with what is faster. All workers of "
    "the job must have it.");
ABSL_FLAG(
    std::string, device, "cpu",
    "Where to compute: cpu; cuda: the CUDA device of this worker's local rank, modulo how many "
    "there are; cuda:2: that one; cuda:0,2,3: the same of a list.");
ABSL_FLAG(
    std::string, matrix_products, "f32",
    "What the factors of matrix products are rounded to on a CUDA device: f32, tf32 or bf16.");
ABSL_FLAG(absl::optional<uint64_t>, seed, absl::nullopt, "In place of the job file's seed.");
ABSL_FLAG(absl::optional<uint32_t>, batch_size, absl::nullopt,
          "In place of the job file's batch_size.");
ABSL_FLAG(absl::Duration, timeout, absl::Minutes(5),
          "How long to wait for the servers, and for other workers in each step.");
ABSL_FLAG(absl::Duration, stop_grace, absl::Seconds(5),
          "How long the step under way may take to end after SIGTERM, before this worker leaves "
          "without it.");
ABSL_FLAG(bool, only_running, false,
          "Join the job only if it is running, and do not begin it: for a worker that is started "
          "again.");
ABSL_FLAG(bool, resume, false,
          "Go on from the job's newest checkpoint, or begin if there is none. Without it a "
          "directory that has checkpoints is refused.");
ABSL_FLAG(absl::optional<uint32_t>, serve_data, absl::nullopt,
          "Serve the job's data on this port (0: one that is free), as data.served_from in the job "
          "file says, and do nothing else.");
ABSL_FLAG(std::string, trace, "",
          "Write where this worker's time goes in its first steps to this file, the worker's name "
          "put before the suffix, for ui.perfetto.dev or chrome://tracing.");
ABSL_FLAG(uint64_t, trace_steps, 100, "How many steps --trace shows.");
ABSL_FLAG(std::string, event_log, "",
          "A file that gets a line of JSON for each step: who contributed, and on which rows.");
ABSL_FLAG(
    uint64_t, log_every, 0,
    "Steps between the lines of the console, of --progress_log and of --tensorboard. 0: about "
    "twenty lines in all on the console, and every step in the files.");
ABSL_FLAG(std::string, progress_log, "",
          "A file that gets lines of JSON: the plan, losses and speed, what the model is worth in "
          "the end. Workers of a host may share it.");
ABSL_FLAG(std::string, tensorboard, "",
          "A directory in which each worker writes losses and speed for TensorBoard, in a folder "
          "with its name.");
ABSL_FLAG(std::string, output, "",
          "Where to write the trained model, as safetensors. Rank 0 does.");
ABSL_FLAG(bool, output_per_rank, false,
          "Every rank writes its own: out.safetensors becomes out.rank0.safetensors, ...");
ABSL_FLAG(std::string, evaluate, "",
          "A model that --output wrote: evaluates it on the job's data, and does not train.");
ABSL_FLAG(std::string, predict, "",
          "A model that --output wrote: writes its --predictions, or shows some, and does not "
          "train.");
ABSL_FLAG(std::string, predictions, "",
          "With --predict: the CSV file of predictions, in the order of the rows.");
ABSL_FLAG(uint32_t, show, 0,
          "With --predict: print the most probable classes of so many rows, the right one marked.");

namespace {

// Flags know Abseil's optional only, which is not the standard one in every build.
template <typename T>
std::optional<T> ToStd(const absl::optional<T>& value) {
  return value.has_value() ? std::optional<T>(*value) : std::nullopt;
}

// Of `pollers` threads, of which autotune tries other numbers.
syncgrads::TunedSetting PollersSetting(uint32_t pollers) {
  const int most = static_cast<int>(syncgrads::MostPollers());
  const int usual = static_cast<int>(pollers == 0 ? syncgrads::FewPollers() : pollers);
  return {"polling threads", "", {std::min(usual, most), 1, 2, most}, [](int count) {
            syncgrads::SetPollers(static_cast<uint32_t>(count));
          }};
}

}  // namespace

int main(int argc, char** argv) {
  syncgrads::StopSignal::Block();
  absl::SetProgramUsageMessage(
      "trains the model of a job file, in step with the job's other workers.\n"
      "  ps-worker --job=iris.job --server=HOST:PORT");
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1) {
    std::cerr << "ps-worker: \"" << rest[1] << "\" is no flag; all options are flags\n";
    return 2;
  }
  // Both before any other thread is started.
  syncgrads::SetUpProcess();
  syncgrads::StopSignal stop;
  syncgrads::SetPollers(absl::GetFlag(FLAGS_pollers));

  syncgrads::WorkerOptions options;
  options.job = absl::GetFlag(FLAGS_job);
  options.server = absl::GetFlag(FLAGS_server);
  options.token = absl::GetFlag(FLAGS_token);
  options.name = absl::GetFlag(FLAGS_name);
  options.rank = ToStd(absl::GetFlag(FLAGS_rank));
  options.world_size = ToStd(absl::GetFlag(FLAGS_world_size));
  options.connections_per_server = absl::GetFlag(FLAGS_connections_per_server);
  options.congestion_control = absl::GetFlag(FLAGS_congestion_control);
  options.autotune = absl::GetFlag(FLAGS_autotune);
  options.device = absl::GetFlag(FLAGS_device);
  options.matrix_products = absl::GetFlag(FLAGS_matrix_products);
  options.seed = ToStd(absl::GetFlag(FLAGS_seed));
  options.batch_size = ToStd(absl::GetFlag(FLAGS_batch_size));
  options.timeout = absl::GetFlag(FLAGS_timeout);
  options.stop_grace = absl::GetFlag(FLAGS_stop_grace);
  options.only_running = absl::GetFlag(FLAGS_only_running);
  options.resume = absl::GetFlag(FLAGS_resume);
  options.event_log = absl::GetFlag(FLAGS_event_log);
  options.trace = absl::GetFlag(FLAGS_trace);
  options.trace_steps = absl::GetFlag(FLAGS_trace_steps);
  options.log_every = absl::GetFlag(FLAGS_log_every);
  options.progress_log = absl::GetFlag(FLAGS_progress_log);
  options.tensorboard = absl::GetFlag(FLAGS_tensorboard);
  options.show = absl::GetFlag(FLAGS_show);
  options.output = absl::GetFlag(FLAGS_output);
  options.output_per_rank = absl::GetFlag(FLAGS_output_per_rank);
  options.evaluate = absl::GetFlag(FLAGS_evaluate);
  options.predict = absl::GetFlag(FLAGS_predict);
  options.predictions = absl::GetFlag(FLAGS_predictions);

  if (const std::optional<uint32_t> port = ToStd(absl::GetFlag(FLAGS_serve_data))) {
    if (*port > std::numeric_limits<uint16_t>::max()) {
      std::cerr << "ps-worker: --serve_data is " << *port << ", which is no port\n";
      return 2;
    }
    options.serve_data = static_cast<uint16_t>(*port);
  }
  const uint32_t count = absl::GetFlag(FLAGS_workers_in_process);
  if (count == 0) {
    std::cerr << "ps-worker: --workers_in_process is 0, must be at least 1\n";
    return 2;
  }
  const std::vector<syncgrads::WorkerOutcome> outcomes =
      syncgrads::RunWorkers(options, count,
                            {std::cout,
                             isatty(STDOUT_FILENO) != 0,
                             stop,
                             syncgrads::Clock::Real(),
                             [](const char* name) -> const char* { return std::getenv(name); },
                             syncgrads::NoExtensions(),
                             syncgrads::CudaAccelerators(),
                             {PollersSetting(absl::GetFlag(FLAGS_pollers))}});
  std::vector<int> codes;
  for (uint32_t i = 0; i < count; ++i) {
    const auto& [status, membership] = outcomes[i];
    const std::string who = count == 1 ? "" : "worker " + std::to_string(i) + ": ";
    if (!status.ok()) std::cerr << "ps-worker: " << who << status << "\n";
    if (!membership.ok()) std::cerr << "ps-worker: " << who << membership << "\n";
    codes.push_back(syncgrads::ExitCodeOf(status, membership));
  }
  return syncgrads::WorstExitCode(codes);
}
