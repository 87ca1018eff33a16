// A device that no longer answers, as a status.

#ifndef SYNCGRADS_WORKER_BASE_HUNG_DEVICE_H_
#define SYNCGRADS_WORKER_BASE_HUNG_DEVICE_H_

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace syncgrads {

inline constexpr absl::string_view kHungDeviceUrl = "syncgrads/hung_device";

// Returns a DeadlineExceeded that IsHungDevice distinguishes from others. After this error, calls
// of the device's driver may never return, so a program should end with _Exit.
inline absl::Status HungDeviceError(absl::string_view message) {
  absl::Status status = absl::DeadlineExceededError(message);
  status.SetPayload(kHungDeviceUrl, absl::Cord());
  return status;
}

inline bool IsHungDevice(const absl::Status& status) {
  return status.GetPayload(kHungDeviceUrl).has_value();
}

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_HUNG_DEVICE_H_
