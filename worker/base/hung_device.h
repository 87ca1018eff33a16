// A device that no longer answers: as a status, and as the end of the process.

#ifndef SYNCGRADS_WORKER_BASE_HUNG_DEVICE_H_
#define SYNCGRADS_WORKER_BASE_HUNG_DEVICE_H_

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace syncgrads {

inline constexpr absl::string_view kHungDeviceUrl = "syncgrads/hung_device";

// Makes an error one that IsHungDevice distinguishes from others. After such an error, calls of the
// device's driver may never return, so a program should end with _Exit.
inline void MarkHungDevice(absl::Status& status) {
  status.SetPayload(kHungDeviceUrl, absl::Cord());
}

// Returns a DeadlineExceeded for which IsHungDevice is true.
inline absl::Status HungDeviceError(absl::string_view message) {
  absl::Status status = absl::DeadlineExceededError(message);
  MarkHungDevice(status);
  return status;
}

inline bool IsHungDevice(const absl::Status& status) {
  return status.GetPayload(kHungDeviceUrl).has_value();
}

// The exit code of a process that cannot continue because a device hangs. It is retryable: see
// worker/run/exit_code.h.
inline constexpr int kHungDeviceExitCode = 201;

// Prints `reason` to stderr and ends the process with _Exit, because a thread is blocked in a call
// of the device's driver.
[[noreturn]] inline void EndHungProcess(absl::string_view reason) {
  const std::string line = absl::StrCat(reason, "; this process ends\n");
  std::fputs(line.c_str(), stderr);
  std::_Exit(kHungDeviceExitCode);
}

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_HUNG_DEVICE_H_
