// A timeline of a worker's work.

#ifndef SYNCGRADS_WORKER_BASE_TRACE_H_
#define SYNCGRADS_WORKER_BASE_TRACE_H_

#include <fstream>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace syncgrads {

// Writes a file in the Trace Event Format, which ui.perfetto.dev and chrome://tracing display.
// Times are measured on the host's thread; for work of a device this is the time of queuing it.
// Events have absolute times, so that the files of several workers can be compared.
//
// Not thread-safe.
class Trace {
 public:
  // The rows of the timeline, from top to bottom.
  enum class Row { kSteps, kCompute, kGradients, kResults };

  // Records an event from construction to destruction of this object. Does nothing if the trace
  // is null.
  class Span {
   public:
    // The event's name is "WHAT NAME".
    Span(Trace* trace, Row row, absl::string_view what, const absl::AlphaNum& name);
    ~Span();
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    Trace* const trace_;
    const Row row_;
    std::string name_;
    absl::Time begin_;
  };

  // Creates the file. `worker` is the title of the timeline.
  //
  // Errors:
  //   PermissionDenied  the file cannot be written
  static absl::StatusOr<std::unique_ptr<Trace>> Create(const std::string& path,
                                                       absl::string_view worker);
  // Completes the file. An incomplete file can be displayed too.
  ~Trace();

 private:
  Trace() = default;
  void Write(absl::string_view event);

  std::ofstream file_;
  bool empty_ = true;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_TRACE_H_
