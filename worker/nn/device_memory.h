// The memory of a device, and copies between it and the host's memory.

#ifndef SYNCGRADS_WORKER_NN_DEVICE_MEMORY_H_
#define SYNCGRADS_WORKER_NN_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"

namespace syncgrads {

// The memory of a device, and its queue. A device executes operations in the order in which they
// were called. A call may return before its operation is executed; such an operation is
// *queued*.
//
// Not thread-safe.
class DeviceMemory {
 public:
  // Identifies a queued download. Downloads end in the order in which they were queued.
  enum class Download : uint64_t {};

  virtual ~DeviceMemory() = default;

  // Whether the device's memory is the host's. If so, each operation is executed before its call
  // returns, and a copy from an address to itself does nothing.
  virtual bool is_host() const = 0;

  // Allocates `bytes` of unspecified contents, aligned for any operation. If there is no room,
  // returns null and sets status().
  virtual void* Allocate(size_t bytes) = 0;
  // Frees `memory` after all queued operations have ended. Null is allowed.
  virtual void Free(void* memory) = 0;

  // Allocates *pinned* memory of the host, which the device can read and write without the CPU.
  // Throws OutOfMemory, which has the number of bytes, if there is no room.
  virtual void* AllocatePinned(size_t bytes) = 0;
  // Frees pinned memory after all queued operations have ended. Null is allowed.
  virtual void FreePinned(void* host) = 0;

  // Pins memory of the host that was allocated elsewhere, until Unpin. It must consist of whole
  // pages.
  //
  // Errors:
  //   ResourceExhausted  the memory cannot be pinned; the device still works
  //   others             the error of status()
  virtual absl::Status Pin(void* host, size_t bytes) = 0;
  // The same for memory that the device will only read. It may be mapped for reading only.
  virtual absl::Status PinForReading(const void* host, size_t bytes) = 0;
  // Unpins memory after all queued operations have ended. The memory itself is not freed.
  virtual void Unpin(const void* host) = 0;

  // Queues a copy within the device's memory.
  virtual void Copy(const void* from, size_t bytes, void* to) = 0;
  virtual void SetZero(void* memory, size_t bytes) = 0;

  // Queues a copy from the host. Operations queued later see the bytes that `host` has now; the
  // caller may change them after the call.
  virtual void Upload(const void* host, size_t bytes, void* to) = 0;
  // Queues a copy from the host that runs in parallel with the caller and with what is queued: it
  // waits for earlier calls of UploadBeside only. Operations queued later see the bytes. `host`
  // must not change until AwaitRead has returned, and what is queued must not use `to`.
  virtual void UploadBeside(const void* host, size_t bytes, void* to) = 0;
  // Waits until UploadBeside has read the memory of the host, in all calls so far. Errors: those of
  // Wait.
  virtual absl::Status AwaitRead() = 0;
  // Queues a copy from pinned memory of the host. The memory must not change until Finish(), or
  // a download that is queued later, has ended.
  virtual void UploadPinned(const void* host, size_t bytes, void* to) = 0;
  // Marks what has been queued so far, for UploadPinnedAfterMark. Replaces the mark before.
  virtual void SetMark() = 0;
  // Queues a copy as UploadPinned does, but it runs in parallel with what was queued after the
  // mark, which must not use `to`. Without a mark it waits for earlier uploads only.
  virtual void UploadPinnedAfterMark(const void* host, size_t bytes, void* to) = 0;

  // Queues a copy of `from`, as operations queued earlier leave it, to pinned memory of the
  // host. Operations queued later must not change `from` until the download has ended.
  virtual Download QueueDownload(const void* from, size_t bytes, void* host) = 0;
  // Whether the download has ended, successfully or with an error.
  virtual bool HasEnded(Download download) = 0;
  // Waits for the download.
  //
  // Errors:
  //   DeadlineExceeded  the device does not finish it in time; names the device
  //   others            the error of status()
  virtual absl::Status Wait(Download download) = 0;

  // Copies to memory of the host, which need not be pinned, and waits for it. Errors: those of
  // Wait.
  virtual absl::Status DownloadNow(const void* from, size_t bytes, void* host) = 0;

  // Waits for all queued operations. Errors: those of Wait.
  virtual absl::Status Finish() = 0;

  // Queues a stamp: the device notes the time at which all operations before it have ended.
  virtual void QueueStamp() = 0;
  // Returns the times of all stamps since the last call, in the order in which they were queued, on
  // the clock of MonotonicNow(). Waits for the last of them. Errors: those of Wait.
  virtual absl::StatusOr<std::vector<absl::Time>> TakeStamps() = 0;

  // The name of what is queued until EndRange, in profilers of the device. Ranges can nest. `name`
  // must outlive the object.
  virtual void BeginRange(const char* name) = 0;
  virtual void EndRange() = 0;

  // The first error. After an error, operations do nothing.
  //
  // Errors:
  //   ResourceExhausted  there was no room, in Allocate or for what an operation needs itself
  //                      (OutOfMemoryError); names the bytes, as far as they are known
  //   DeadlineExceeded   a wait for the device timed out (HungDeviceError); from then on, calls
  //                      of the device's driver might never return, so none is made: memory is
  //                      no longer freed
  //   Internal           the device failed; what was queued is lost
  virtual absl::Status status() const = 0;
  // Clears a ResourceExhausted, after which the device can be used again. Other errors stay.
  virtual void ForgetExhaustion() = 0;
};

// The memory of a device that computes in the host's memory. Operations are not queued but
// executed at once. Allocate throws OutOfMemory.
class HostMemory : public DeviceMemory {
 public:
  bool is_host() const override { return true; }
  void* Allocate(size_t bytes) override;
  void Free(void* memory) override;
  void* AllocatePinned(size_t bytes) override { return Allocate(bytes); }
  void FreePinned(void* host) override { Free(host); }
  absl::Status Pin(void*, size_t) override { return absl::OkStatus(); }
  absl::Status PinForReading(const void*, size_t) override { return absl::OkStatus(); }
  void Unpin(const void*) override {}
  void Copy(const void* from, size_t bytes, void* to) override;
  void SetZero(void* memory, size_t bytes) override;
  void Upload(const void* host, size_t bytes, void* to) override { Copy(host, bytes, to); }
  void UploadBeside(const void* host, size_t bytes, void* to) override { Copy(host, bytes, to); }
  absl::Status AwaitRead() override { return absl::OkStatus(); }
  void UploadPinned(const void* host, size_t bytes, void* to) override { Copy(host, bytes, to); }
  void SetMark() override {}
  void UploadPinnedAfterMark(const void* host, size_t bytes, void* to) override {
    Copy(host, bytes, to);
  }
  Download QueueDownload(const void* from, size_t bytes, void* host) override {
    Copy(from, bytes, host);
    return Download{};
  }
  bool HasEnded(Download) override { return true; }
  absl::Status Wait(Download) override { return absl::OkStatus(); }
  absl::Status DownloadNow(const void* from, size_t bytes, void* host) override {
    Copy(from, bytes, host);
    return absl::OkStatus();
  }
  absl::Status Finish() override { return absl::OkStatus(); }
  void QueueStamp() override { stamps_.push_back(MonotonicNow()); }
  absl::StatusOr<std::vector<absl::Time>> TakeStamps() override {
    return std::exchange(stamps_, {});
  }
  void BeginRange(const char*) override {}
  void EndRange() override {}
  absl::Status status() const override { return absl::OkStatus(); }
  void ForgetExhaustion() override {}

 private:
  std::vector<absl::Time> stamps_;
};

// A range from construction to destruction of this object.
class DeviceRange {
 public:
  DeviceRange(DeviceMemory& memory, const char* name) : memory_(memory) { memory.BeginRange(name); }
  ~DeviceRange() { memory_.EndRange(); }
  DeviceRange(const DeviceRange&) = delete;
  DeviceRange& operator=(const DeviceRange&) = delete;

 private:
  DeviceMemory& memory_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_DEVICE_MEMORY_H_
