// Where a worker's time goes, as a picture.

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

// A file in the Trace Event Format, which ui.perfetto.dev and chrome://tracing show.
// Times are those of the host's thread: work for a device is queued then. Each event has
// the time of day, so that files of several workers can be laid side by side.
//
// Not thread-safe.
class Trace {
 public:
  // Of the picture, from above.
  enum class Row { kSteps, kCompute, kGradients, kResults };

  // From its construction to its destruction; nothing without a trace.
  class Span {
   public:
    // It is called "WHAT NAME".
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

  // Errors:
  //   PermissionDenied  the file cannot be written
  static absl::StatusOr<std::unique_ptr<Trace>> Create(const std::string& path,
                                                       absl::string_view worker);
  // Ends the file. One that is not ended can be read too.
  ~Trace();

 private:
  Trace() = default;
  void Write(absl::string_view event);

  std::ofstream file_;
  bool empty_ = true;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_TRACE_H_
