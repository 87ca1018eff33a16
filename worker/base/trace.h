// A timeline of a worker's work.

#ifndef SYNCGRADS_WORKER_BASE_TRACE_H_
#define SYNCGRADS_WORKER_BASE_TRACE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/trace/trace.h"
#include "worker/base/log_file.h"

namespace syncgrads {

// Writes a file in the Trace Event Format, which ui.perfetto.dev and chrome://tracing display.
// Times are measured on the host's thread; for work of a device this is the time of queuing it. The
// row kDevice has the times at which the device does it.
// Events have absolute times, so that the files of several workers can be compared.
//
// Not thread-safe.
class Trace {
 public:
  // The rows of the timeline, from top to bottom.
  enum class Row { kSteps, kCompute, kGradients, kResults, kDevice };

  // Records an event from construction to destruction of this object: in the trace, unless it is
  // null, and in the recording of the process, if one is in progress (common/trace/trace.h).
  class Span {
   public:
    // `name` is a literal or the result of InternTraceName. In the trace, the number of the step
    // is appended to it.
    Span(Trace* trace, Row row, const char* name, std::optional<uint64_t> step = std::nullopt);
    ~Span();
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    const TraceSpan recorded_;
    Trace* const trace_;
    const Row row_;
    std::string name_;
    absl::Time begin_;
  };

  // Creates the file. `worker` is the title of the timeline. Errors: those of LogFile::Open.
  static absl::StatusOr<std::unique_ptr<Trace>> Create(const std::string& path,
                                                       absl::string_view worker,
                                                       LogFile::Warn warn = nullptr);
  // Completes the file. An incomplete file can be displayed too.
  ~Trace();

  // Records an event with times on the clock of MonotonicNow().
  void Add(Row row, absl::string_view name, absl::Time begin, absl::Time end);

 private:
  explicit Trace(LogFile file) : file_(std::move(file)) {}
  void Write(absl::string_view event);

  LogFile file_;
  bool empty_ = true;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_TRACE_H_
