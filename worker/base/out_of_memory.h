// Out of memory as a status, which can be passed from one thread to another.

#ifndef SYNCGRADS_WORKER_BASE_OUT_OF_MEMORY_H_
#define SYNCGRADS_WORKER_BASE_OUT_OF_MEMORY_H_

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace syncgrads {

inline constexpr absl::string_view kOutOfMemoryUrl = "syncgrads/out_of_memory";

// Returns a ResourceExhausted that IsOutOfMemory distinguishes from others.
inline absl::Status OutOfMemoryError(absl::string_view message) {
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kOutOfMemoryUrl, absl::Cord());
  return status;
}

inline bool IsOutOfMemory(const absl::Status& status) {
  return status.GetPayload(kOutOfMemoryUrl).has_value();
}

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_OUT_OF_MEMORY_H_
