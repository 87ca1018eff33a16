#include "worker/nn/cuda/cuda_watchdog.h"

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "worker/base/hung_device.h"

namespace syncgrads::cuda {

CudaWatchdog::CudaWatchdog(std::string device, absl::Duration timeout)
    : device_(std::move(device)), timeout_(timeout), thread_([this] { Watch(); }) {}

CudaWatchdog::~CudaWatchdog() {
  {
    const MutexLock lock(mutex_);
    stops_ = true;
    stopped_.NotifyAll();
  }
  thread_.join();
}

void CudaWatchdog::Begin(const char* what) {
  const absl::Time now = MonotonicNow();
  const MutexLock lock(mutex_);
  call_ = what;
  began_ = now;
}

void CudaWatchdog::End() {
  const MutexLock lock(mutex_);
  call_ = nullptr;
}

void CudaWatchdog::Watch() {
  const MutexLock lock(mutex_);
  while (!stops_) {
    const absl::Time now = MonotonicNow();
    const absl::Time begin = call_ == nullptr ? now : began_;
    if (now - begin > timeout_) {
      EndHungProcess(absl::StrCat(device_, ": ", call_, " has not returned within ",
                                  absl::FormatDuration(timeout_),
                                  ": the device, or its driver, hangs"));
    }
    // A call that begins meanwhile has not timed out when this wait ends.
    stopped_.WaitUntil(mutex_, begin + timeout_ + absl::Milliseconds(1));
  }
}

}  // namespace syncgrads::cuda
