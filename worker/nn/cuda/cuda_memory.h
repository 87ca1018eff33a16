// The memory and the streams of a CUDA device.

#ifndef SYNCGRADS_WORKER_NN_CUDA_CUDA_MEMORY_H_
#define SYNCGRADS_WORKER_NN_CUDA_CUDA_MEMORY_H_

#include <cuda_runtime_api.h>

#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/base/hung_device.h"
#include "worker/nn/cuda/cuda_watchdog.h"
#include "worker/nn/device_memory.h"

namespace syncgrads::cuda {

// The memory of a CUDA device, with four streams, so that copies in both directions run in
// parallel with the computation:
//
//   compute   operations within the device
//   upload    waits for the computation queued so far, which may read the memory that it
//             overwrites (UploadPinnedAfterMark waits for less); computation queued later waits for
//             the upload
//   beside    uploads of UploadBeside, which wait for each other only; computation queued later
//             waits for them. A thread of CUDA copies the host's memory to a staging buffer.
//   download  waits for the computation queued so far
//
// The host waits only where the comments in DeviceMemory state it and, if all staging buffers
// are in use, in Upload and UploadBeside.
//
// Not thread-safe, but different threads may use it one after another.
class CudaMemory : public DeviceMemory {
 public:
  // Waits for the device end after `timeout`. If a call of CUDA takes longer than that, the process
  // ends: see CudaWatchdog. Errors: Internal, with CUDA's message; names the device.
  static absl::StatusOr<std::unique_ptr<CudaMemory>> Create(int index, absl::Duration timeout);
  // Waits for all queued operations, unless the device hangs.
  ~CudaMemory() override;

  bool is_host() const override { return false; }
  void* Allocate(size_t bytes) override;
  void Free(void* memory) override;
  void* AllocatePinned(size_t bytes) override;
  void FreePinned(void* host) override;
  absl::Status Pin(void* host, size_t bytes) override {
    return Register(host, bytes, cudaHostRegisterDefault);
  }
  absl::Status PinForReading(const void* host, size_t bytes) override {
    return Register(const_cast<void*>(host), bytes, cudaHostRegisterReadOnly);
  }
  void Unpin(const void* host) override;
  void Copy(const void* from, size_t bytes, void* to) override;
  void SetZero(void* memory, size_t bytes) override;
  void Upload(const void* host, size_t bytes, void* to) override;
  void UploadBeside(const void* host, size_t bytes, void* to) override;
  absl::Status AwaitRead() override;
  void UploadPinned(const void* host, size_t bytes, void* to) override;
  void SetMark() override;
  void UploadPinnedAfterMark(const void* host, size_t bytes, void* to) override;
  Download QueueDownload(const void* from, size_t bytes, void* host) override;
  bool HasEnded(Download download) override;
  absl::Status Wait(Download download) override;
  absl::Status DownloadNow(const void* from, size_t bytes, void* host) override;
  absl::Status Finish() override;
  void QueueStamp() override;
  absl::StatusOr<std::vector<absl::Time>> TakeStamps() override;
  void BeginRange(const char* name) override;
  void EndRange() override;
  absl::Status status() const override { return status_; }
  void ForgetExhaustion() override;

  // The stream to queue kernels on. Makes the device the current one of the calling thread.
  cudaStream_t compute();
  // Returns call(), which calls CUDA and is timed. `what` names the call, and must outlive it.
  template <typename Call>
  auto Time(const char* what, Call call) {
    return watchdog_.Time(what, call);
  }
  // Times call() and checks its result.
  template <typename Call>
  void Run(const char* what, Call call) {
    Check(Time(what, call), what);
  }
  // Sets status() if `error` is an error and the first one. `what` names the call that failed.
  // The device can be used again after running out of memory (ForgetExhaustion).
  void Check(cudaError_t error, const char* what);
  // Sets status() if `status` is an error and the first one.
  void Fail(const absl::Status& status);
  // Whether operations are still queued, which is the case until the first error.
  bool works() const { return status_.ok(); }
  // Whether a wait has timed out. CUDA must not be called any more.
  bool hangs() const { return IsHungDevice(status_); }

 private:
  // A pinned buffer through which uploads go.
  struct Staging {
    void* host = nullptr;
    size_t bytes = 0;
    cudaEvent_t read = nullptr;    // recorded after the last upload from it
    const void* source = nullptr;  // of UploadBeside
    size_t source_bytes = 0;
  };

  CudaMemory(int index, absl::Duration timeout)
      : index_(index), timeout_(timeout), watchdog_(name(), timeout) {}
  absl::Status Open();
  // Waits for all streams and frees what is left.
  cudaError_t Close();
  std::string name() const;
  void* AllocatePageable(size_t bytes);
  // Pins memory; `flags` are those of cudaHostRegister. Errors: those of Pin.
  absl::Status Register(void* host, size_t bytes, unsigned flags);
  cudaEvent_t NewEvent(unsigned flags);
  // Notes the time of a stamp, to which later ones are related.
  void BeginStamps();
  // Waits until the device has reached `event`. HungDeviceError if that takes too long.
  absl::Status WaitFor(cudaEvent_t event);
  // Queues an upload from pinned memory on `stream`; computation queued later waits for it.
  // Overwrites the event `mark`, which is the stream's own.
  void QueueUpload(cudaStream_t stream, cudaEvent_t mark, const void* pinned, size_t bytes,
                   void* to);
  // Fills a Staging from its source. Runs on a thread of CUDA.
  static void Fill(void* staging);
  // Makes `then` wait for what is queued on `first` now. Overwrites the event `mark`.
  void Order(cudaStream_t first, cudaEvent_t mark, cudaStream_t then);
  void Record(cudaEvent_t mark, cudaStream_t stream);
  void Await(cudaStream_t stream, cudaEvent_t mark);
  cudaError_t Query(cudaEvent_t event);
  // Waits for the next staging buffer and gives it room for `bytes`. Returns null after an
  // error.
  Staging* NextStaging(size_t bytes);

  // Gives a pinned buffer room for `bytes`. The buffer must not be in use.
  void Grow(Staging& buffer, size_t bytes);

  const int index_;
  const absl::Duration timeout_;
  CudaWatchdog watchdog_;
  absl::Status status_;
  cudaStream_t compute_ = nullptr;
  cudaStream_t upload_ = nullptr;
  cudaStream_t beside_ = nullptr;
  cudaStream_t download_ = nullptr;
  cudaEvent_t computed_ = nullptr;
  cudaEvent_t uploaded_ = nullptr;
  cudaEvent_t uploaded_beside_ = nullptr;
  cudaEvent_t host_read_ = nullptr;  // recorded after the last Fill
  cudaEvent_t mark_ = nullptr;
  bool has_mark_ = false;
  std::vector<Staging> staging_;
  size_t next_staging_ = 0;
  Staging fetched_;  // for DownloadNow
  // downloads_ has an event for each download from number first_download_ on. spare_events_ are
  // for later downloads.
  std::deque<cudaEvent_t> downloads_;
  uint64_t first_download_ = 1;
  std::vector<cudaEvent_t> spare_events_;
  // The events of stamps: stamps_ are queued, spare_stamps_ are for later ones. base_ was reached
  // at base_time_, which follows from the host's clock at host_time_.
  std::vector<cudaEvent_t> stamps_;
  std::vector<cudaEvent_t> spare_stamps_;
  cudaEvent_t base_ = nullptr;
  absl::Time base_time_;
  absl::Time host_time_;
  // Memory that AllocatePinned has returned for a device that hangs.
  std::set<void*> pageable_;
};

}  // namespace syncgrads::cuda

#endif  // SYNCGRADS_WORKER_NN_CUDA_CUDA_MEMORY_H_
