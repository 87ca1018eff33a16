// Ends the process if a call of CUDA never returns.

#ifndef SYNCGRADS_WORKER_NN_CUDA_CUDA_WATCHDOG_H_
#define SYNCGRADS_WORKER_NN_CUDA_CUDA_WATCHDOG_H_

#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace syncgrads::cuda {

// Times calls of CUDA. Almost any call can block while the device hangs: a launch does so as soon
// as the driver's queue is full. The thread that is blocked cannot be stopped, so if a call takes
// longer than the timeout, a thread of this object prints the device and the call to stderr, and
// ends the process with EndHungProcess.
//
// Time must not be called from several threads at once, or from within a timed call.
class CudaWatchdog {
 public:
  // `device` is the device's name in the message.
  CudaWatchdog(std::string device, absl::Duration timeout);
  ~CudaWatchdog();
  CudaWatchdog(const CudaWatchdog&) = delete;
  CudaWatchdog& operator=(const CudaWatchdog&) = delete;

  // Returns call(). `what` names the call, and must outlive it.
  template <typename Call>
  auto Time(const char* what, Call call) {
    Begin(what);
    const absl::Cleanup end = [this] { End(); };
    return call();
  }

 private:
  void Begin(const char* what);
  void End();
  void Watch();

  const std::string device_;
  const absl::Duration timeout_;
  Mutex mutex_;
  CondVar stopped_;
  bool stops_ ABSL_GUARDED_BY(mutex_) = false;
  // The call in progress; null if there is none.
  const char* call_ ABSL_GUARDED_BY(mutex_) = nullptr;
  absl::Time began_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace syncgrads::cuda

#endif  // SYNCGRADS_WORKER_NN_CUDA_CUDA_WATCHDOG_H_
