// The times that a device takes for the layers of a model.

#ifndef SYNCGRADS_WORKER_NN_DEVICE_SPANS_H_
#define SYNCGRADS_WORKER_NN_DEVICE_SPANS_H_

#include <vector>

#include "absl/status/status.h"
#include "worker/base/trace.h"
#include "worker/nn/device_memory.h"

namespace syncgrads {

// Records in traces when a device does what the host has queued. Does nothing if no trace is
// recorded, or if the device computes in the host's memory: then the host's times are the device's.
//
// Not thread-safe.
class DeviceSpans {
 public:
  // `memory` must outlive the object.
  explicit DeviceSpans(DeviceMemory& memory) : memory_(memory) {}

  // Begins a span. It is recorded in `trace`, unless it is null, and in the recording of the
  // process, if one is in progress (common/trace/trace.h).
  void Begin(Trace* trace);
  // Ends the span, which includes what has been queued since its begin, and begins the next one.
  // `name` is an interned name (InternTraceName). The device's waits for copies from the host are
  // in the span too.
  void End(const char* name);
  // Waits for the device and records the spans since the last call. What follows is in no span
  // until Begin. Errors: those of DeviceMemory::TakeStamps.
  absl::Status Record();

 private:
  DeviceMemory& memory_;
  Trace* trace_ = nullptr;
  bool is_on_ = false;
  // For each stamp in memory_: the span that it ends, or null if it only begins one.
  std::vector<const char*> names_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_DEVICE_SPANS_H_
