// ps-worker: one or several workers of a training job. worker/run/exit_code.h lists the
// exit codes.

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "client/api/tuned_setting.h"
#include "common/clock.h"
#include "common/http/http_server.h"
#include "common/log_level.h"
#include "common/names.h"
#include "common/net/address.h"
#include "common/process_setup.h"
#include "common/renamed_flags.h"
#include "common/rpc/build_info.h"
#include "common/rpc/credentials.h"
#include "common/secret.h"
#include "common/tls/tls_flags.h"
#include "third_party/grpc/pollers.h"
#include "worker/base/hung_device.h"
#include "worker/metrics/worker_metrics.h"
#include "worker/nn/cuda/cuda_accelerators.h"
#include "worker/run/exit_code.h"
#include "worker/run/own_server.h"
#include "worker/run/stop_signal.h"
#include "worker/run/worker.h"
#include "worker/run/workers.h"

ABSL_FLAG(std::string, job, "", "The job file: what to train (see proto/job.proto).");
ABSL_FLAG(std::string, server, "",
          "HOST:PORT of the job's first server (the coordinator), which provides the addresses of "
          "the other servers. Not needed for --evaluate and --predict with one worker.");
ABSL_FLAG(absl::optional<uint32_t>, serve, absl::nullopt,
          "In place of --server: the port of a server that this process runs for its own workers "
          "and for those of other processes; 0 picks a free port and prints it. Workers on other "
          "hosts need --tls_client_ca or --insecure. The server ends when no job is open any more, "
          "and keeps no state.");
ABSL_FLAG(
    std::string, token, "",
    "The job's secret token, which the first worker that joins the job sets; or, if the "
    "servers have a --tokens_file, a token in it. Other users can read a command line: prefer "
    "--token_file, or SYNCGRADS_TOKEN in the environment.");
ABSL_FLAG(std::string, token_file, "", "File with the token in its first line.");
ABSL_FLAG(std::string, tls_client_ca, "",
          "--serve, --serve_data and --metrics: PEM file with the certificates of the authorities "
          "that have "
          "signed the peers' certificates. If it is set, every peer must have one; probes need "
          "none.");
ABSL_FLAG(bool, insecure, false,
          "Let any host use --serve and --metrics without certificates, and --serve_data without a "
          "token and certificates. By default they then serve this host only.");
ABSL_FLAG(std::string, name, "",
          "This worker's name, unique in the job. Empty: the server assigns one.");
ABSL_FLAG(absl::optional<uint32_t>, rank, absl::nullopt,
          "This worker's rank, counted from 0. Default: the rank in the launcher's environment "
          "variables, or else assigned by the server.");
ABSL_FLAG(absl::optional<uint32_t>, world_size, absl::nullopt,
          "Number of workers in the job. Default: the world size in the launcher's environment "
          "variables, or else the number in the job file.");
ABSL_FLAG(uint32_t, workers_in_process, 1,
          "Number of workers that this process runs. Each has its own thread and, with "
          "--device=cuda, its own device. --rank is the rank of the first one; a launcher's rank "
          "and world size count processes, not workers.");
ABSL_FLAG(int, connections_per_server, 2, "Number of connections to each server for gradients.");
ABSL_FLAG(uint32_t, pollers, 0,
          "Number of gRPC polling threads, at most one per two processors. Default: one per four "
          "processors.");
ABSL_FLAG(
    std::string, congestion_control, "",
    "TCP congestion control algorithm of the connections for gradients. Default: the kernel's.");
ABSL_FLAG(bool, autotune, false,
          "Measure several chunk sizes before the first step, and several numbers of connections "
          "and polling threads and several sizes of the send window during the first steps; then "
          "use the fastest. All workers of the job must set this flag.");
ABSL_FLAG(std::string, device, "cpu",
          "Device to compute on. cpu; cuda: the CUDA device with the number of this worker's local "
          "rank, modulo the number of devices; cuda:2: CUDA device 2; cuda:0,2,3: like cuda, but "
          "only from these devices.");
ABSL_FLAG(
    std::string, precision, "",
    "Precision of F32 jobs on a CUDA device. f32; tf32: the inputs of matrix products have 11 "
    "significant bits; bf16: activations and gradients by them have 8. Parameters are always f32. "
    "Default: tf32 on a CUDA device, f32 on the processor.");
ABSL_FLAG(bool, cudnn, true, "Compute convolutions on a CUDA device by cuDNN, if it is installed.");
ABSL_FLAG(absl::optional<uint64_t>, seed, absl::nullopt, "Overrides the job file's seed.");
ABSL_FLAG(absl::optional<uint32_t>, batch_size, absl::nullopt,
          "Overrides the job file's batch_size.");
ABSL_FLAG(absl::Duration, timeout, absl::Minutes(5),
          "Timeout of waiting for the servers, and for other workers in each step.");
ABSL_FLAG(absl::Duration, stop_grace, absl::Seconds(5),
          "Grace period after SIGTERM, SIGINT or SIGUSR1: how long the current step may take to "
          "finish before this worker leaves the job without finishing it.");
ABSL_FLAG(
    bool, only_running, false,
    "Join the job only if it is already running; do not start it. For a worker that is restarted.");
ABSL_FLAG(bool, resume, false,
          "Resume from the job's newest checkpoint, or start from the beginning if there is none. "
          "Without this flag, the job does not start if the checkpoint directory already contains "
          "checkpoints.");
ABSL_FLAG(absl::optional<uint32_t>, serve_data, absl::nullopt,
          "Serve the job's data on this port (0: any free port) to workers whose job file has this "
          "address in data.served_from. With --server, this worker trains too; without it, it does "
          "nothing else.");
ABSL_FLAG(std::string, trace, "",
          "Write a timeline of this worker's first steps to this file, for ui.perfetto.dev or "
          "chrome://tracing. The worker's name is inserted before the file name's extension.");
ABSL_FLAG(uint64_t, trace_steps, 100, "Number of steps that --trace records.");
ABSL_FLAG(std::string, event_log, "",
          "Append one line of JSON per step to this file: which workers contributed, and which "
          "rows this worker used.");
ABSL_FLAG(
    syncgrads::LogLevel, log_level, syncgrads::LogLevel::kInfo,
    "How much is printed: debug (also the path of payloads to each server; about twenty lines "
    "of progress in total), info, or warning (no progress).");
ABSL_FLAG(
    uint64_t, log_every, 0,
    "Number of steps between two lines on the console, in --progress_log and in --tensorboard. 0: "
    "at most one line in a second on the console, and every step in the files.");
ABSL_FLAG(std::string, progress_log, "",
          "Append lines of JSON to this file: the training plan, losses, speed and the final "
          "evaluation. The workers of one host may share the file.");
ABSL_FLAG(std::string, tensorboard, "",
          "Directory for TensorBoard: each worker writes its losses and speed to a subdirectory "
          "with its name.");
ABSL_FLAG(
    std::string, metrics, "",
    "HOST:PORT to listen on for HTTP requests: the metrics of this process's workers (/metrics) "
    "and probes (/livez, /readyz). Port 0 picks a free port and prints it. Default: no HTTP.");
ABSL_FLAG(std::string, output, "",
          "Write the trained model to this file, in safetensors format. Only rank 0 writes it.");
ABSL_FLAG(
    bool, output_per_rank, false,
    "Every rank writes its own model file: out.safetensors becomes out.rank0.safetensors, ...");
ABSL_FLAG(std::string, evaluate, "",
          "Evaluate this model file (written by --output) on the job's data instead of training.");
ABSL_FLAG(std::string, predict, "",
          "Use this model file (written by --output) to write --predictions or to --show some, "
          "instead of training.");
ABSL_FLAG(std::string, predictions, "",
          "With --predict: write the predictions to this CSV file, in the order of the rows.");
ABSL_FLAG(uint32_t, show, 0,
          "With --predict: print the most probable classes of this number of rows, and mark the "
          "correct one.");
ABSL_FLAG(uint32_t, show_top, 5, "With --show: how many classes are printed for each row.");

namespace {

constexpr syncgrads::RenamedFlag kRenamedFlags[] = {{"matrix_products", "precision"}};

// Converts to std::optional. Flags support absl::optional only, which is a different type
// in some builds.
template <typename T>
std::optional<T> ToStd(const absl::optional<T>& value) {
  return value.has_value() ? std::optional<T>(*value) : std::nullopt;
}

// The number of polling threads as a setting for --autotune: starts from `pollers` (0:
// the default) and tries 1, 2 and the maximum.
syncgrads::TunedSetting PollersSetting(uint32_t pollers) {
  const int most = static_cast<int>(syncgrads::MostPollers());
  const int usual = static_cast<int>(pollers == 0 ? syncgrads::FewPollers() : pollers);
  return {"polling threads", "", {std::min(usual, most), 1, 2, most}, [](int count) {
            syncgrads::SetPollers(static_cast<uint32_t>(count));
          }};
}

// The text of an error for the terminal. A server may have sent it, so it may contain control
// characters, and may be long.
std::string ForTerminal(const absl::Status& status) {
  constexpr size_t kMostBytes = 4096;
  return syncgrads::Printable(status.ToString(), kMostBytes);
}

}  // namespace

int main(int argc, char** argv) {
  syncgrads::StopSignal::Block();
  syncgrads::AnswerVersionAndHelp("ps-worker");
  absl::SetProgramUsageMessage(
      "trains the model of a job file, together with the job's other workers.\n"
      "  ps-worker --job=iris.job --server=HOST:PORT\n"
      "\n"
      "Exit codes (128 and above: worth a retry):\n"
      "  0    trained, evaluated or predicted; or served data until a signal\n"
      "  1    any other error\n"
      "  2    a flag, the job file or a table is wrong, or gradients are bad\n"
      "  3    a file is missing\n"
      "  4    another protocol version or world size; or checkpoints exist, and --resume is "
      "missing\n"
      "  5    the token is wrong, or a file may not be read\n"
      "  6    this build or this machine does not have the device\n"
      "  7    the name or the rank is taken\n"
      "  8    data is damaged, or replicas differ\n"
      "  143  stopped by SIGTERM, SIGINT or SIGUSR1\n"
      "  200  no server can be reached, or the process that serves the data is gone\n"
      "  201  a server, or other workers, took too long\n"
      "  202  the job has ended, or was restarted\n"
      "  203  the job has all its workers, a disk is full, or memory was short\n"
      "  204  the worker's membership has ended");
  const absl::Status names =
      syncgrads::CheckRenamedFlags(absl::MakeConstSpan(argv, argc), kRenamedFlags);
  if (!names.ok()) {
    std::cerr << "ps-worker: " << names.message() << "\n";
    return 2;
  }
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1) {
    std::cerr << "ps-worker: unexpected argument \"" << rest[1] << "\"; all options are flags\n";
    return 2;
  }
  // These come before any other thread is started.
  syncgrads::RequireTls13();
  syncgrads::SetUpProcess();
  if (absl::GetFlag(FLAGS_serve_data).has_value() || absl::GetFlag(FLAGS_serve).has_value()) {
    syncgrads::RaiseDescriptorLimit();
  }
  syncgrads::StopSignal stop;
  syncgrads::SetPollers(absl::GetFlag(FLAGS_pollers));

  syncgrads::WorkerOptions options;
  options.job = absl::GetFlag(FLAGS_job);
  options.server = absl::GetFlag(FLAGS_server);
  if (!options.server.empty()) {
    const absl::Status address = syncgrads::CheckServerAddress("--server", options.server);
    if (!address.ok()) {
      std::cerr << "ps-worker: " << address.message() << "\n";
      return 2;
    }
  }
  const absl::StatusOr<std::string> token =
      syncgrads::ReadSecret({"token", absl::GetFlag(FLAGS_token), absl::GetFlag(FLAGS_token_file),
                             std::getenv("SYNCGRADS_TOKEN")});
  if (!token.ok()) {
    std::cerr << "ps-worker: " << token.status().message() << "\n";
    return 2;
  }
  options.token = *token;
  options.tls = syncgrads::TlsFromFlags();
  options.tls.client_ca = absl::GetFlag(FLAGS_tls_client_ca);
  options.insecure = absl::GetFlag(FLAGS_insecure);
  options.name = absl::GetFlag(FLAGS_name);
  options.rank = ToStd(absl::GetFlag(FLAGS_rank));
  options.world_size = ToStd(absl::GetFlag(FLAGS_world_size));
  options.connections_per_server = absl::GetFlag(FLAGS_connections_per_server);
  options.congestion_control = absl::GetFlag(FLAGS_congestion_control);
  options.autotune = absl::GetFlag(FLAGS_autotune);
  options.device = absl::GetFlag(FLAGS_device);
  options.precision = absl::GetFlag(FLAGS_precision);
  options.seed = ToStd(absl::GetFlag(FLAGS_seed));
  options.batch_size = ToStd(absl::GetFlag(FLAGS_batch_size));
  options.timeout = absl::GetFlag(FLAGS_timeout);
  options.stop_grace = absl::GetFlag(FLAGS_stop_grace);
  options.only_running = absl::GetFlag(FLAGS_only_running);
  options.resume = absl::GetFlag(FLAGS_resume);
  options.event_log = absl::GetFlag(FLAGS_event_log);
  options.trace = absl::GetFlag(FLAGS_trace);
  options.trace_steps = absl::GetFlag(FLAGS_trace_steps);
  options.log_level = absl::GetFlag(FLAGS_log_level);
  options.log_every = absl::GetFlag(FLAGS_log_every);
  options.progress_log = absl::GetFlag(FLAGS_progress_log);
  options.tensorboard = absl::GetFlag(FLAGS_tensorboard);
  options.show = absl::GetFlag(FLAGS_show);
  options.show_top = absl::GetFlag(FLAGS_show_top);
  options.output = absl::GetFlag(FLAGS_output);
  options.output_per_rank = absl::GetFlag(FLAGS_output_per_rank);
  options.evaluate = absl::GetFlag(FLAGS_evaluate);
  options.predict = absl::GetFlag(FLAGS_predict);
  options.predictions = absl::GetFlag(FLAGS_predictions);

  if (const std::optional<uint32_t> port = ToStd(absl::GetFlag(FLAGS_serve_data))) {
    if (*port > std::numeric_limits<uint16_t>::max()) {
      std::cerr << "ps-worker: --serve_data is " << *port
                << ", must be a port number from 0 to 65535\n";
      return 2;
    }
    options.serve_data = static_cast<uint16_t>(*port);
  }
  std::unique_ptr<syncgrads::OwnServer> own_server;
  if (const std::optional<uint32_t> port = ToStd(absl::GetFlag(FLAGS_serve))) {
    if (*port > std::numeric_limits<uint16_t>::max() || !options.server.empty() ||
        options.serve_data.has_value()) {
      std::cerr << "ps-worker: --serve is " << *port
                << ", must be a port number from 0 to 65535, without --server and --serve_data\n";
      return 2;
    }
    auto started = syncgrads::OwnServer::Start(
        {static_cast<uint16_t>(*port), options.tls, options.insecure, options.log_level});
    if (!started.ok()) {
      std::cerr << "ps-worker: --serve=" << *port << ": " << started.status() << "\n";
      return syncgrads::ExitCodeOf(started.status(), absl::OkStatus());
    }
    own_server = *std::move(started);
    options.server = own_server->address();
    std::cout << "ps-worker serves workers on port " << own_server->port() << std::endl;
  }
  const uint32_t count = absl::GetFlag(FLAGS_workers_in_process);
  if (count == 0) {
    std::cerr << "ps-worker: --workers_in_process is 0, must be at least 1\n";
    return 2;
  }
  syncgrads::WorkerMetrics metrics;
  std::unique_ptr<syncgrads::HttpServer> metrics_server;
  if (const std::string flag = absl::GetFlag(FLAGS_metrics); !flag.empty()) {
    const auto address = syncgrads::ParseListenAddress("--metrics", flag);
    if (!address.ok()) {
      std::cerr << "ps-worker: " << address.status().message() << "\n";
      return 2;
    }
    if (!syncgrads::IsLoopback(address->host) && options.tls.client_ca.empty() &&
        !options.insecure) {
      std::cerr << "ps-worker: --metrics is " << flag << ", which other hosts may reach, without "
                << "authentication: set --tls_certificate, --tls_key and --tls_client_ca, or "
                << "--insecure\n";
      return 2;
    }
    syncgrads::HttpSecurity security = syncgrads::SecurityOf(options.tls);
    security.warn = [](const std::string& line) {
      std::cerr << "ps-worker: " << line << std::endl;
    };
    auto started = syncgrads::HttpServer::Start(*address, syncgrads::WorkerPages(metrics), {},
                                                std::move(security));
    if (!started.ok()) {
      std::cerr << "ps-worker: " << started.status() << "\n";
      return syncgrads::ExitCodeOf(started.status(), absl::OkStatus());
    }
    metrics_server = *std::move(started);
    std::cout << "ps-worker serves metrics on http"
              << (options.tls.certificate.empty() ? "://" : "s://")
              << syncgrads::ToString(metrics_server->address()) << "/metrics" << std::endl;
  }
  const std::vector<syncgrads::WorkerOutcome> outcomes =
      syncgrads::RunWorkers(options, count,
                            {std::cout,
                             isatty(STDOUT_FILENO) != 0,
                             stop,
                             syncgrads::Clock::Real(),
                             [](const char* name) -> const char* { return std::getenv(name); },
                             syncgrads::NoExtensions(),
                             syncgrads::CudaAccelerators(absl::GetFlag(FLAGS_cudnn)),
                             {PollersSetting(absl::GetFlag(FLAGS_pollers))},
                             /*connections=*/nullptr,
                             metrics_server == nullptr ? nullptr : &metrics});
  if (own_server != nullptr) own_server->Finish(stop, std::cout);
  std::vector<int> codes;
  bool hangs = false;
  for (uint32_t i = 0; i < count; ++i) {
    const auto& [status, membership] = outcomes[i];
    const std::string who = count == 1 ? "" : "worker " + std::to_string(i) + ": ";
    if (!status.ok()) std::cerr << "ps-worker: " << who << ForTerminal(status) << "\n";
    if (!membership.ok()) std::cerr << "ps-worker: " << who << ForTerminal(membership) << "\n";
    codes.push_back(syncgrads::ExitCodeOf(status, membership));
    hangs = hangs || syncgrads::IsHungDevice(status);
  }
  const int code = syncgrads::WorstExitCode(codes);
  if (!hangs) return code;
  // The driver's code that runs when a process exits normally would wait for the device.
  std::cout << std::flush;
  std::_Exit(code);
}
