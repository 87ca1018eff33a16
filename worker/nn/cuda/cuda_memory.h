// A CUDA device's memory and streams.

#ifndef SYNCGRADS_WORKER_NN_CUDA_CUDA_MEMORY_H_
#define SYNCGRADS_WORKER_NN_CUDA_CUDA_MEMORY_H_

#include <cuda_runtime_api.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/nn/device_memory.h"

namespace syncgrads::cuda {

// Three streams: operations are queued on `compute`; uploads and downloads have one
// each, so that copies both ways go on beside the computation.
//
//   upload     begins when what was queued before it has been computed, since that
//              may read what it overwrites, but for UploadBeside; what is computed
//              later waits for it
//   download   begins when what was queued before it has been computed
//
// The host waits only where it is said in DeviceMemory.
//
// Not thread-safe; may be used from one thread after the other.
class CudaMemory : public DeviceMemory {
 public:
  // InvalidArgument or Internal, as CUDA has it; names the device.
  static absl::StatusOr<std::unique_ptr<CudaMemory>> Create(int index);
  // Waits for what is queued.
  ~CudaMemory() override;

  bool is_host() const override { return false; }
  void* Allocate(size_t bytes) override;
  void Free(void* memory) override;
  void* AllocatePinned(size_t bytes) override;
  void FreePinned(void* host) override;
  absl::Status Pin(void* host, size_t bytes) override;
  void Unpin(void* host) override;
  void Copy(const void* from, size_t bytes, void* to) override;
  void SetZero(void* memory, size_t bytes) override;
  void Upload(const void* host, size_t bytes, void* to) override;
  void UploadBeside(const void* host, size_t bytes, void* to) override;
  void UploadPinned(const void* host, size_t bytes, void* to) override;
  Download QueueDownload(const void* from, size_t bytes, void* host) override;
  bool HasEnded(Download download) override;
  absl::Status Wait(Download download) override;
  absl::Status DownloadNow(const void* from, size_t bytes, void* host) override;
  absl::Status Finish() override;
  absl::Status status() const override { return status_; }
  void ForgetExhaustion() override;

  // For kernels to be queued on; makes the device the calling thread's current one.
  cudaStream_t compute();
  // Keeps `what`'s error, if it is one and the first.
  void Check(cudaError_t error, const char* what);
  // The same of an error that is not the runtime's.
  void Fail(const absl::Status& status);
  // Whether an operation is to be queued: there was no error.
  bool works() const { return status_.ok(); }

 private:
  // Pinned memory that what is to be uploaded goes through.
  struct Staging {
    void* host = nullptr;
    size_t bytes = 0;
    cudaEvent_t read = nullptr;  // by the last upload
  };

  explicit CudaMemory(int index) : index_(index) {}
  absl::Status Open();
  std::string name() const;
  // Waits, with a deadline, until the device has come to `event`.
  absl::Status WaitFor(cudaEvent_t event);
  // What is queued for computing from now on finds the upload done.
  void QueueUpload(const void* pinned, size_t bytes, void* to);
  // `then` goes on when `first` has come to where it is now; `mark` is overwritten.
  void Order(cudaStream_t first, cudaEvent_t mark, cudaStream_t then);
  // The next place for an upload, free, with room; null after an error.
  Staging* NextStaging(size_t bytes);

  const int index_;
  absl::Status status_;
  cudaStream_t compute_ = nullptr;
  cudaStream_t upload_ = nullptr;
  cudaStream_t download_ = nullptr;
  cudaEvent_t computed_ = nullptr;
  cudaEvent_t uploaded_ = nullptr;
  std::vector<Staging> staging_;
  size_t next_staging_ = 0;
  Staging fetched_;  // for DownloadNow
  // Events of the downloads from number first_download_ on, and events for others.
  std::deque<cudaEvent_t> downloads_;
  uint64_t first_download_ = 1;
  std::vector<cudaEvent_t> spare_events_;
};

}  // namespace syncgrads::cuda

#endif  // SYNCGRADS_WORKER_NN_CUDA_CUDA_MEMORY_H_
