// Does the same as ps-worker, for a job with generated data:
//
//   data { custom { kind: "made_up" settings { key: "images" value: "192" } ... } }
//
// The settings are images, channels, side and classes.

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/process_setup.h"
#include "common/status_macros.h"
#include "third_party/grpc/pollers.h"
#include "worker/base/hung_device.h"
#include "worker/base/random.h"
#include "worker/data/images/byte_images.h"
#include "worker/data/readers/custom_readers.h"
#include "worker/data/readers/labels.h"
#include "worker/nn/cuda/cuda_accelerators.h"
#include "worker/run/exit_code.h"
#include "worker/run/stop_signal.h"
#include "worker/run/worker.h"

ABSL_FLAG(std::string, job, "", "as ps-worker's");
ABSL_FLAG(std::string, server, "", "as ps-worker's");
ABSL_FLAG(std::string, device, "cpu", "as ps-worker's");
ABSL_FLAG(std::string, precision, "f32", "as ps-worker's");
ABSL_FLAG(int, connections_per_server, 2, "as ps-worker's");
ABSL_FLAG(uint32_t, pollers, 0, "as ps-worker's");
ABSL_FLAG(std::string, progress_log, "", "as ps-worker's");
ABSL_FLAG(std::string, trace, "", "as ps-worker's");
ABSL_FLAG(uint64_t, trace_steps, 100, "as ps-worker's");

namespace syncgrads {
namespace {

absl::StatusOr<size_t> Setting(const CustomReaderOptions& options, const std::string& name) {
  const auto it = options.settings.find(name);
  size_t number = 0;
  if (it == options.settings.end() || !absl::SimpleAtoi(it->second, &number) || number == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("made_up's setting ", name, " is missing, or is no number from 1"));
  }
  return number;
}

absl::StatusOr<Table> MakeUpImages(const CustomReaderOptions& options) {
  SYNCGRADS_ASSIGN_OR_RETURN(const size_t rows, Setting(options, "images"));
  SYNCGRADS_ASSIGN_OR_RETURN(const size_t channels, Setting(options, "channels"));
  SYNCGRADS_ASSIGN_OR_RETURN(const size_t side, Setting(options, "side"));
  SYNCGRADS_ASSIGN_OR_RETURN(const size_t classes, Setting(options, "classes"));
  const Shape shape = Shape::Image(static_cast<int64_t>(channels), static_cast<int64_t>(side),
                                   static_cast<int64_t>(side));
  const size_t size = channels * side * side;
  RandomStream random(1, {});
  std::string pixels(rows * size, '\0');
  for (char& pixel : pixels) pixel = static_cast<char>(random.NextBelow(256));
  std::vector<uint32_t> labels;
  for (size_t row = 0; row < rows; ++row) labels.push_back(static_cast<uint32_t>(row % classes));
  Table table;
  table.rows = rows;
  table.images = std::make_shared<ByteImages>(shape, std::move(pixels), /*stride=*/size,
                                              /*offset=*/0, "made up");
  SetLabels(
      labels, options.columns.target_kind,
      [](size_t row) { return absl::StrCat("made up: image ", row); }, table);
  return table;
}

}  // namespace
}  // namespace syncgrads

int main(int argc, char** argv) {
  syncgrads::StopSignal::Block();
  absl::ParseCommandLine(argc, argv);
  syncgrads::SetUpProcess();
  syncgrads::StopSignal stop;
  syncgrads::SetPollers(absl::GetFlag(FLAGS_pollers));
  syncgrads::WorkerOptions options;
  options.job = absl::GetFlag(FLAGS_job);
  options.server = absl::GetFlag(FLAGS_server);
  options.device = absl::GetFlag(FLAGS_device);
  options.precision = absl::GetFlag(FLAGS_precision);
  options.connections_per_server = absl::GetFlag(FLAGS_connections_per_server);
  options.progress_log = absl::GetFlag(FLAGS_progress_log);
  options.trace = absl::GetFlag(FLAGS_trace);
  options.trace_steps = absl::GetFlag(FLAGS_trace_steps);
  syncgrads::Extensions own;
  own.readers.Add("made_up", syncgrads::MakeUpImages);
  const syncgrads::WorkerOutcome outcome = syncgrads::RunWorker(
      options, {std::cout, /*out_is_terminal=*/false, stop, syncgrads::Clock::Real(),
                [](const char* name) -> const char* { return std::getenv(name); }, own,
                syncgrads::CudaAccelerators()});
  if (!outcome.status.ok()) std::cerr << "train_through_server: " << outcome.status << "\n";
  const int code = syncgrads::ExitCodeOf(outcome.status, outcome.membership);
  if (!syncgrads::IsHungDevice(outcome.status)) return code;
  // The driver's code that runs when a process exits normally would wait for the device.
  std::cout << std::flush;
  std::_Exit(code);
}
