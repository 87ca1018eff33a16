#include "worker/nn/device_spans.h"

#include <cstddef>
#include <utility>

#include "absl/time/time.h"
#include "common/status_macros.h"
#include "common/trace/trace.h"

namespace syncgrads {

void DeviceSpans::Begin(Trace* trace) {
  trace_ = trace;
  is_on_ = !memory_.is_host() && (trace != nullptr || IsTracing());
  if (!is_on_) return;
  memory_.QueueStamp();
  names_.push_back(nullptr);
}

void DeviceSpans::End(const char* name) {
  if (!is_on_) return;
  memory_.QueueStamp();
  names_.push_back(name);
}

absl::Status DeviceSpans::Record() {
  // A forward pass of an evaluation, for example, is in no span.
  is_on_ = false;
  if (names_.empty()) return absl::OkStatus();
  const std::vector<const char*> names = std::exchange(names_, {});
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<absl::Time> times, memory_.TakeStamps());
  // After a lack of memory, stamps are missing.
  if (times.size() != names.size()) return absl::OkStatus();
  for (size_t i = 0; i < times.size(); ++i) {
    if (names[i] == nullptr) continue;
    if (trace_ != nullptr) trace_->Add(Trace::Row::kDevice, names[i], times[i - 1], times[i]);
    RecordTraceWait(names[i], times[i - 1], times[i], TraceArgs());
  }
  return absl::OkStatus();
}

}  // namespace syncgrads
