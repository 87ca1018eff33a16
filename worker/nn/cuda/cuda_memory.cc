#include "worker/nn/cuda/cuda_memory.h"

#include <nvtx3/nvToolsExt.h>

#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "worker/base/out_of_memory.h"

namespace syncgrads::cuda {
namespace {

// A wait polls for kSpin, which is longer than a layer takes: a nap ends up to 0.1 ms late, and the
// first layer's gradient is what the next step waits for. Then it sleeps for kNap between polls to
// free the processor.
constexpr absl::Duration kSpin = absl::Milliseconds(2);
constexpr absl::Duration kNap = absl::Microseconds(50);
// The number of staging buffers: uploads in progress while the host fills the next buffer. They
// are a batch and its targets, for the current and the previous part of a batch.
constexpr size_t kStagings = 4;
// As CUDA's pinned memory at least.
constexpr size_t kPageableAlignment = 64;
// The clocks of device and host drift apart, so they are compared again after this time.
constexpr absl::Duration kClockInterval = absl::Seconds(10);

}  // namespace

absl::StatusOr<std::unique_ptr<CudaMemory>> CudaMemory::Create(int index, absl::Duration timeout) {
  auto memory = absl::WrapUnique(new CudaMemory(index, timeout));
  SYNCGRADS_RETURN_IF_ERROR(memory->Open());
  return memory;
}

absl::Status CudaMemory::Open() {
  Run("cudaSetDevice", [&] { return cudaSetDevice(index_); });
  for (cudaStream_t* stream : {&compute_, &upload_, &beside_, &download_}) {
    Run("cudaStreamCreateWithFlags",
        [&] { return cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking); });
  }
  staging_.resize(kStagings);
  for (cudaEvent_t* event : {&computed_, &uploaded_, &uploaded_beside_, &host_read_, &mark_}) {
    *event = NewEvent(cudaEventDisableTiming);
  }
  for (Staging& staging : staging_) staging.read = NewEvent(cudaEventDisableTiming);
  return status_;
}

CudaMemory::~CudaMemory() {
  for (void* host : pageable_) std::free(host);
  if (!hangs()) Time("the end of its use", [this] { return Close(); });
}

cudaError_t CudaMemory::Close() {
  cudaSetDevice(index_);
  for (cudaStream_t stream : {compute_, upload_, beside_, download_}) {
    if (stream == nullptr) continue;
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
  for (Staging& staging : staging_) {
    if (staging.read != nullptr) cudaEventDestroy(staging.read);
    if (staging.host != nullptr) cudaFreeHost(staging.host);
  }
  if (fetched_.host != nullptr) cudaFreeHost(fetched_.host);
  for (cudaEvent_t event : {computed_, uploaded_, uploaded_beside_, host_read_, mark_, base_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  for (cudaEvent_t event : downloads_) cudaEventDestroy(event);
  for (const auto& events : {spare_events_, stamps_, spare_stamps_}) {
    for (cudaEvent_t event : events) cudaEventDestroy(event);
  }
  return cudaSuccess;
}

cudaEvent_t CudaMemory::NewEvent(unsigned flags) {
  cudaEvent_t event = nullptr;
  Run("cudaEventCreateWithFlags", [&] { return cudaEventCreateWithFlags(&event, flags); });
  return event;
}

std::string CudaMemory::name() const { return absl::StrCat("device cuda:", index_); }

cudaStream_t CudaMemory::compute() {
  Run("cudaSetDevice", [this] { return cudaSetDevice(index_); });
  return compute_;
}

void CudaMemory::Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error; otherwise the next launch of a kernel reports it
    return Fail(OutOfMemoryError(absl::StrCat(name(), " has not enough memory for ", what)));
  }
  Fail(absl::InternalError(absl::StrCat(name(), ": ", what, ": ", cudaGetErrorString(error))));
}

void CudaMemory::Fail(const absl::Status& status) {
  if (status_.ok()) status_ = status;
}

void CudaMemory::ForgetExhaustion() {
  if (absl::IsResourceExhausted(status_)) status_ = absl::OkStatus();
}

void* CudaMemory::Allocate(size_t bytes) {
  if (!works()) return nullptr;
  compute();
  void* memory = nullptr;
  const cudaError_t error = Time("cudaMalloc", [&] { return cudaMalloc(&memory, bytes); });
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error; otherwise the next launch of a kernel reports it
    size_t free = 0, total = 0;
    Time("cudaMemGetInfo", [&] { return cudaMemGetInfo(&free, &total); });
    Fail(OutOfMemoryError(absl::StrCat(name(), " has not enough free memory for ", bytes,
                                       " bytes: of its ", total, " bytes, ", free, " are free")));
    return nullptr;
  }
  Check(error, "cudaMalloc");
  return memory;
}

void CudaMemory::Free(void* memory) {
  if (memory == nullptr || hangs()) return;
  compute();
  // cudaFree waits for everything that is queued on the device.
  Run("cudaFree", [&] { return cudaFree(memory); });
}

void* CudaMemory::AllocatePinned(size_t bytes) {
  if (hangs()) return AllocatePageable(bytes);
  compute();
  void* host = nullptr;
  const cudaError_t error =
      Time("cudaMallocHost", [&] { return cudaMallocHost(&host, bytes > 0 ? bytes : 1); });
  if (error != cudaErrorMemoryAllocation) Check(error, "cudaMallocHost");
  // Also if the device has failed: it copies nothing then, but callers still write to the memory,
  // so it must exist.
  if (host == nullptr) {
    cudaGetLastError();  // as in Check
    throw OutOfMemory(absl::StrCat(name(), ": not enough memory for ", bytes,
                                   " bytes of pinned host memory: ", cudaGetErrorString(error)));
  }
  return host;
}

void* CudaMemory::AllocatePageable(size_t bytes) {
  void* host = std::aligned_alloc(
      kPageableAlignment, bytes / kPageableAlignment * kPageableAlignment + kPageableAlignment);
  if (host == nullptr) throw OutOfMemory(absl::StrCat("not enough memory for ", bytes, " bytes"));
  pageable_.insert(host);
  return host;
}

void CudaMemory::FreePinned(void* host) {
  if (host == nullptr) return;
  if (pageable_.erase(host) > 0) return std::free(host);
  Finish().IgnoreError();  // status() keeps the error
  if (hangs()) return;
  compute();
  Run("cudaFreeHost", [&] { return cudaFreeHost(host); });
}

absl::Status CudaMemory::Register(void* host, size_t bytes, unsigned flags) {
  if (hangs()) return status_;
  compute();
  const cudaError_t error =
      Time("cudaHostRegister", [&] { return cudaHostRegister(host, bytes, flags); });
  if (error == cudaSuccess) return status_;
  cudaGetLastError();  // clears the error; otherwise the next launch of a kernel reports it
  return absl::ResourceExhaustedError(absl::StrCat(
      name(), ": ", bytes, " bytes of host memory cannot be pinned: ", cudaGetErrorString(error)));
}

void CudaMemory::Unpin(const void* host) {
  Finish().IgnoreError();  // status() keeps the error
  if (hangs()) return;
  compute();
  Run("cudaHostUnregister", [&] { return cudaHostUnregister(const_cast<void*>(host)); });
}

void CudaMemory::Copy(const void* from, size_t bytes, void* to) {
  if (!works() || bytes == 0 || from == to) return;
  const cudaStream_t stream = compute();
  Run("cudaMemcpyAsync",
      [&] { return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream); });
}

void CudaMemory::SetZero(void* memory, size_t bytes) {
  if (!works() || bytes == 0) return;
  const cudaStream_t stream = compute();
  Run("cudaMemsetAsync", [&] { return cudaMemsetAsync(memory, 0, bytes, stream); });
}

void CudaMemory::Order(cudaStream_t first, cudaEvent_t mark, cudaStream_t then) {
  Record(mark, first);
  Await(then, mark);
}

void CudaMemory::Await(cudaStream_t stream, cudaEvent_t mark) {
  Run("cudaStreamWaitEvent", [&] { return cudaStreamWaitEvent(stream, mark, 0); });
}

void CudaMemory::Record(cudaEvent_t mark, cudaStream_t stream) {
  Run("cudaEventRecord", [&] { return cudaEventRecord(mark, stream); });
}

void CudaMemory::QueueUpload(cudaStream_t stream, cudaEvent_t mark, const void* pinned,
                             size_t bytes, void* to) {
  Run("cudaMemcpyAsync",
      [&] { return cudaMemcpyAsync(to, pinned, bytes, cudaMemcpyHostToDevice, stream); });
  Order(stream, mark, compute_);
}

void CudaMemory::UploadPinned(const void* host, size_t bytes, void* to) {
  if (!works() || bytes == 0) return;
  Order(compute(), computed_, upload_);
  QueueUpload(upload_, uploaded_, host, bytes, to);
}

void CudaMemory::SetMark() {
  if (!works()) return;
  Record(mark_, compute());
  has_mark_ = true;
}

void CudaMemory::UploadPinnedAfterMark(const void* host, size_t bytes, void* to) {
  if (!works() || bytes == 0) return;
  compute();
  if (has_mark_) Await(upload_, mark_);
  QueueUpload(upload_, uploaded_, host, bytes, to);
}

CudaMemory::Staging* CudaMemory::NextStaging(size_t bytes) {
  Staging& staging = staging_[next_staging_];
  next_staging_ = (next_staging_ + 1) % staging_.size();
  Fail(WaitFor(staging.read));
  if (works()) Grow(staging, bytes);
  return works() ? &staging : nullptr;
}

void CudaMemory::Grow(Staging& buffer, size_t bytes) {
  if (buffer.bytes >= bytes) return;
  if (buffer.host != nullptr) Run("cudaFreeHost", [&] { return cudaFreeHost(buffer.host); });
  buffer.host = nullptr;
  buffer.bytes = 0;
  Check(Time("cudaMallocHost", [&] { return cudaMallocHost(&buffer.host, bytes); }),
        absl::StrCat(bytes, " bytes of pinned host memory").c_str());
  if (buffer.host != nullptr) buffer.bytes = bytes;
}

void CudaMemory::Upload(const void* host, size_t bytes, void* to) {
  if (!works() || bytes == 0) return;
  Order(compute(), computed_, upload_);
  Staging* staging = NextStaging(bytes);
  if (staging == nullptr) return;
  std::memcpy(staging->host, host, bytes);
  QueueUpload(upload_, uploaded_, staging->host, bytes, to);
  Record(staging->read, upload_);
}

void CudaMemory::Fill(void* staging) {
  const auto& to = *static_cast<Staging*>(staging);
  std::memcpy(to.host, to.source, to.source_bytes);
}

void CudaMemory::UploadBeside(const void* host, size_t bytes, void* to) {
  if (!works() || bytes == 0) return;
  compute();
  Staging* staging = NextStaging(bytes);
  if (staging == nullptr) return;
  staging->source = host;
  staging->source_bytes = bytes;
  Run("cudaLaunchHostFunc", [&] { return cudaLaunchHostFunc(beside_, Fill, staging); });
  Record(host_read_, beside_);
  QueueUpload(beside_, uploaded_beside_, staging->host, bytes, to);
  Record(staging->read, beside_);
}

absl::Status CudaMemory::AwaitRead() {
  // Also after an error: the caller will change or free the memory.
  if (!hangs()) Fail(WaitFor(host_read_));
  return status_;
}

DeviceMemory::Download CudaMemory::QueueDownload(const void* from, size_t bytes, void* host) {
  if (!works()) return Download{};
  cudaEvent_t event = nullptr;
  if (spare_events_.empty()) {
    compute();
    event = NewEvent(cudaEventDisableTiming);
  } else {
    event = spare_events_.back();
    spare_events_.pop_back();
  }
  Order(compute(), event, download_);
  Run("cudaMemcpyAsync",
      [&] { return cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, download_); });
  Record(event, download_);
  downloads_.push_back(event);
  return Download{first_download_ + downloads_.size() - 1};
}

bool CudaMemory::HasEnded(Download download) {
  const uint64_t number = static_cast<uint64_t>(download);
  if (!works() || number < first_download_) return true;
  return Query(downloads_[number - first_download_]) != cudaErrorNotReady;
}

absl::Status CudaMemory::Wait(Download download) {
  const uint64_t number = static_cast<uint64_t>(download);
  while (works() && first_download_ <= number) {
    Fail(WaitFor(downloads_.front()));
    spare_events_.push_back(downloads_.front());
    downloads_.pop_front();
    ++first_download_;
  }
  return status_;
}

cudaError_t CudaMemory::Query(cudaEvent_t event) {
  return Time("cudaEventQuery", [&] { return cudaEventQuery(event); });
}

absl::Status CudaMemory::WaitFor(cudaEvent_t event) {
  const absl::Time begin = MonotonicNow();
  while (true) {
    const cudaError_t error = Query(event);
    if (error != cudaErrorNotReady) {
      Check(error, "queued work");
      return status_;
    }
    const absl::Duration waited = MonotonicNow() - begin;
    if (waited > timeout_) {
      return HungDeviceError(absl::StrCat(name(), " has not finished its queued work within ",
                                          absl::FormatDuration(timeout_),
                                          ": the device, or its driver, hangs"));
    }
    if (waited < kSpin) {
      std::this_thread::yield();
    } else {
      absl::SleepFor(kNap);
    }
  }
}

absl::Status CudaMemory::DownloadNow(const void* from, size_t bytes, void* host) {
  if (!works() || bytes == 0) return status_;
  compute();
  Grow(fetched_, bytes);
  if (!works()) return status_;
  SYNCGRADS_RETURN_IF_ERROR(Wait(QueueDownload(from, bytes, fetched_.host)));
  std::memcpy(host, fetched_.host, bytes);
  return absl::OkStatus();
}

absl::Status CudaMemory::Finish() {
  if (!works()) return status_;
  // The compute stream waits for uploads, so this event comes after them too.
  Record(computed_, compute());
  Fail(WaitFor(computed_));
  if (works() && !downloads_.empty()) {
    return Wait(Download{first_download_ + downloads_.size() - 1});
  }
  return status_;
}

void CudaMemory::BeginStamps() {
  if (base_ != nullptr && MonotonicNow() - host_time_ < kClockInterval) return;
  if (base_ == nullptr) base_ = NewEvent(cudaEventDefault);
  if (!works()) return;
  Record(base_, compute());
  Fail(WaitFor(base_));
  base_time_ = host_time_ = MonotonicNow();
}

void CudaMemory::QueueStamp() {
  if (!works()) return;
  compute();
  if (stamps_.empty()) BeginStamps();
  if (spare_stamps_.empty()) spare_stamps_.push_back(NewEvent(cudaEventDefault));
  if (!works()) return;
  stamps_.push_back(spare_stamps_.back());
  spare_stamps_.pop_back();
  Record(stamps_.back(), compute());
}

absl::StatusOr<std::vector<absl::Time>> CudaMemory::TakeStamps() {
  std::vector<absl::Time> times;
  if (works() && !stamps_.empty()) Fail(WaitFor(stamps_.back()));
  for (cudaEvent_t stamp : stamps_) {
    float milliseconds = 0;
    if (works()) {
      Run("cudaEventElapsedTime",
          [&] { return cudaEventElapsedTime(&milliseconds, base_, stamp); });
    }
    times.push_back(base_time_ + absl::Milliseconds(milliseconds));
    spare_stamps_.push_back(stamp);
  }
  stamps_.clear();
  SYNCGRADS_RETURN_IF_ERROR(status_);
  if (times.empty()) return times;
  std::swap(base_, spare_stamps_.back());
  base_time_ = times.back();
  return times;
}

void CudaMemory::BeginRange(const char* name) { nvtxRangePushA(name); }

void CudaMemory::EndRange() { nvtxRangePop(); }

}  // namespace syncgrads::cuda
