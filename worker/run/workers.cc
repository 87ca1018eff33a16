#include "worker/run/workers.h"

#include <exception>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "common/mutex.h"
#include "worker/base/file.h"
#include "worker/run/prefixed_lines.h"

namespace syncgrads {
namespace {

WorkerOptions OptionsOf(uint32_t number, uint32_t count, const WorkerOptions& options) {
  WorkerOptions own = options;
  own.in_process = {number, count};
  if (!own.name.empty()) absl::StrAppend(&own.name, ".", number);
  own.event_log = WithSuffix(own.event_log, absl::StrCat("worker", number));
  return own;
}

}  // namespace

std::vector<WorkerOutcome> RunWorkers(const WorkerOptions& options, uint32_t count,
                                      const WorkerDependencies& dependencies) {
  if (count == 1) return {RunWorker(options, dependencies)};
  const std::shared_ptr<client::Connections> connections =
      MakeConnections(options.tls, options.token);
  std::vector<WorkerOutcome> outcomes(count);
  std::vector<std::thread> threads;
  Mutex mutex;
  const auto run = [&](uint32_t i) {
    PrefixedLines lines(absl::StrCat("[worker ", i, "] "), dependencies.out, mutex);
    WorkerDependencies own = {lines,
                              /*out_is_terminal=*/false,
                              dependencies.stop,
                              dependencies.clock,
                              dependencies.getenv,
                              dependencies.extensions,
                              dependencies.accelerators};
    own.connections = connections;
    own.metrics = dependencies.metrics;
    // Settings of the process are shared, so only one worker tunes them.
    if (i == 0) own.tuned_settings = dependencies.tuned_settings;
    outcomes[i] = RunWorker(OptionsOf(i, count, options), own);
  };
  for (uint32_t i = 0; i < count; ++i) {
    try {
      threads.emplace_back(run, i);
    } catch (const std::exception& error) {
      outcomes[i].status = absl::ResourceExhaustedError(
          absl::StrCat("cannot start the thread of worker ", i, ": ", error.what()));
    }
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

}  // namespace syncgrads
